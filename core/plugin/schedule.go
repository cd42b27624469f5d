package plugin

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"starling/core/optim"
	pb "starling/sdk/proto/v1"
)

// MaxRates is the longest table of learning rates that is asked for.
const MaxRates = 10_000_000

const (
	rateBatch   = 1 << 16 // of one message
	rateTimeout = startTimeout
)

// Schedule is a table of learning rates that a plugin gave. It implements optim.Schedule: no process stands behind it any more.
type Schedule struct {
	text  string
	rates []float64
}

var _ optim.Schedule = (*Schedule)(nil)

// AskSchedule starts a plugin for the rates of the steps before total, and ends it.
func AskSchedule(ctx context.Context, u *Use, settings map[string]any, total int) (*Schedule, error) {
	if total < 1 || total > MaxRates {
		return nil, fmt.Errorf("total = %d: must lie between 1 and %d", total, MaxRates)
	}
	s := &Schedule{}
	for try := 1; ; try++ {
		err := s.ask(ctx, u, settings, total)
		var killed *killedError
		if err == nil {
			break
		}
		if !errors.As(err, &killed) || try == describeTries {
			return nil, err
		}
	}
	h := sha256.New()
	for step, r := range s.rates {
		if !(r >= 0) || math.IsInf(r, 0) {
			return nil, fmt.Errorf("plugin %s: the learning rate of step %d is %v: it must be a finite number, at least 0", u.Name, step, r)
		}
		_ = binary.Write(h, binary.LittleEndian, math.Float64bits(r))
	}
	// The rates' checksum is part of the digest: a plugin that answers one rank otherwise than another, or otherwise after a resume, is found out.
	var b strings.Builder
	fmt.Fprintf(&b, "plugin %s %s(%d steps", u.Manifest.Name, u.Manifest.Version, total)
	for _, k := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&b, ", %s %v", k, settings[k])
	}
	s.text = b.String() + ", rates " + hex.EncodeToString(h.Sum(nil))[:16] + ")"
	return s, nil
}

func (s *Schedule) ask(ctx context.Context, u *Use, settings map[string]any, total int) error {
	return asking(ctx, u, settings, total, func(rates func(first, last int) ([]float64, error)) error {
		s.rates = s.rates[:0]
		for len(s.rates) < total {
			more, err := rates(len(s.rates), min(total, len(s.rates)+rateBatch))
			if err != nil {
				return err
			}
			s.rates = append(s.rates, more...)
		}
		return nil
	})
}

// AskScheduleBackwards asks one process for the rates of a few steps at a time, the last ones first. A schedule that keeps its word says what it
// says to AskSchedule; the conformance suite compares the two.
func AskScheduleBackwards(ctx context.Context, u *Use, settings map[string]any, total, piece int) ([]float64, error) {
	out := make([]float64, total)
	return out, asking(ctx, u, settings, total, func(rates func(first, last int) ([]float64, error)) error {
		for last := total; last > 0; last -= piece {
			first := max(0, last-piece)
			part, err := rates(first, last)
			if err != nil {
				return err
			}
			copy(out[first:], part)
		}
		return nil
	})
}

// asking starts a schedule for the questions of f, and ends it.
func asking(ctx context.Context, u *Use, settings map[string]any, total int, f func(rates func(first, last int) ([]float64, error)) error) error {
	if err := u.verify(); err != nil {
		return err
	}
	p, err := Start(ctx, u.Found, StartOptions{Threads: 1})
	if err != nil {
		return err
	}
	defer p.Kill()
	r := &pb.RatesRequest{Settings: values(settings), Total: int64(total)}
	return f(func(first, last int) ([]float64, error) {
		r.First, r.Last = int64(first), int64(last)
		c, cancel := context.WithTimeout(ctx, rateTimeout)
		defer cancel()
		answer, err := pb.NewScheduleClient(p.conn).Rates(c, r)
		if err != nil {
			p.child.settle()
			return nil, p.ended(fmt.Errorf("plugin %s: asking for learning rates: %w%s", u.Name, plain(err), p.out.quoted()))
		}
		if len(answer.Rates) != last-first {
			return nil, fmt.Errorf("plugin %s: asked for the learning rates of %d steps, it gave %d", u.Name, last-first, len(answer.Rates))
		}
		return answer.Rates, nil
	})
}

// At is the rate of a step; after the last it stays.
func (s *Schedule) At(step int) float64 { return s.rates[min(max(step, 0), len(s.rates)-1)] }

// Validate has nothing left to say.
func (s *Schedule) Validate() error { return nil }

// String is the canonical form.
func (s *Schedule) String() string { return s.text }
