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
	"time"

	"starling/core/optim"
	"starling/sdk"
	pb "starling/sdk/proto/v1"
)

// MaxRates is the longest table of learning rates that is asked for.
const MaxRates = 10_000_000

const (
	rateBatch   = 1 << 16 // of one message
	rateTimeout = 20 * time.Second
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
	if err := u.verify(); err != nil {
		return err
	}
	p, err := Start(ctx, u.Found, StartOptions{Threads: 1})
	if err != nil {
		return err
	}
	defer p.Kill()
	r := &pb.RatesRequest{Settings: map[string]*pb.Value{}, Total: int64(total)}
	for k, v := range settings {
		r.Settings[k] = sdk.ToValue(v)
	}
	s.rates = s.rates[:0]
	for len(s.rates) < total {
		r.First, r.Last = int64(len(s.rates)), int64(min(total, len(s.rates)+rateBatch))
		c, cancel := context.WithTimeout(ctx, rateTimeout)
		answer, err := pb.NewScheduleClient(p.conn).Rates(c, r)
		cancel()
		if err != nil {
			p.child.settle()
			return p.ended(fmt.Errorf("plugin %s: asking for learning rates: %w%s", u.Name, plain(err), p.out.quoted()))
		}
		if int64(len(answer.Rates)) != r.Last-r.First {
			return fmt.Errorf("plugin %s: asked for the learning rates of %d steps, it gave %d", u.Name, r.Last-r.First, len(answer.Rates))
		}
		s.rates = append(s.rates, answer.Rates...)
	}
	return nil
}

// At is the rate of a step; after the last it stays.
func (s *Schedule) At(step int) float64 { return s.rates[min(max(step, 0), len(s.rates)-1)] }

// Validate has nothing left to say.
func (s *Schedule) Validate() error { return nil }

// String is the canonical form.
func (s *Schedule) String() string { return s.text }
