package comm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// Whom a rank waits for may itself wait for another: all return one report, and it names the rank that holds them up and nobody else,
// over hosts, in a part of the group, and where ranks come at other times.
func TestOneReportOfAStall(t *testing.T) {
	for name, c := range map[string]struct {
		open   func() []Transport
		absent int
	}{
		"hosts, absent of the first":  {func() []Transport { return NewInProcessOn(strings.Split("aabb", "")) }, 0},
		"hosts, absent of the second": {func() []Transport { return NewInProcessOn(strings.Split("aabb", "")) }, 2},
		"hosts sharing memory": {func() []Transport {
			return meshOn(t, 4, ShareAuto, func(r int) string { return fmt.Sprint("host ", r/2) })
		}, 3},
		"connections": {func() []Transport { return meshOf(t, 4, ShareNever) }, 1},
		"memory":      {func() []Transport { return sharing(t, 4) }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			errs := onAll(t, c.open(), Options{Timeout: 2 * time.Second}, func(ctx context.Context, g *Group) error {
				b := make([]float32, 5000)
				if err := g.AllReduce(ctx, "bucket 1", b); err != nil {
					return err
				}
				if g.Rank() == c.absent {
					<-g.Failed()
					return g.Err()
				}
				time.Sleep(time.Duration(g.Rank()) * 20 * time.Millisecond)
				return g.AllReduce(ctx, "bucket 2", b)
			})
			sameStall(t, errs, c.absent, "bucket 2")
		})
	}
	t.Run("a chain of pairs", func(t *testing.T) {
		t.Parallel()
		errs := onAll(t, inProcess(t, 4), Options{Timeout: 2 * time.Second}, func(ctx context.Context, g *Group) error {
			pair, err := g.Subgroup("pair", []int{g.Rank() &^ 1, g.Rank() | 1})
			if err != nil {
				return err
			}
			defer pair.Close()
			for _, of := range []*Group{g, pair} {
				if err := of.Barrier(ctx, "all here"); err != nil {
					return err
				}
			}
			switch g.Rank() {
			case 3:
				<-g.Failed()
				return g.Err()
			case 2: // waits for rank 3 where ranks 0 and 1 do not see it
				return pair.Barrier(ctx, "of the pair")
			}
			return g.Barrier(ctx, "of all")
		})
		sameStall(t, errs, 3, "of ")
	})
}

func sameStall(t *testing.T, errs []error, absent int, label string) {
	t.Helper()
	for r, err := range errs {
		var stall *StallError
		if !errors.As(err, &stall) {
			t.Fatalf("rank %d: %v", r, err)
		}
		if err.Error() != errs[0].Error() {
			t.Errorf("rank %d reports %v, rank 0 %v", r, err, errs[0])
		}
		if got := slices.Concat(stall.Missing, stall.Waiting); !slices.Equal(got, []int{absent}) || !strings.HasPrefix(stall.Label, label) {
			t.Errorf("rank %d blames %v in %q, want %d in %q", r, got, stall.Label, absent, label)
		}
	}
}

// A rank that comes after the deadline has passed, and before the others have made up their minds, is none the worse for it; what was said
// then does not count later.
func TestDoubtsAreWithdrawn(t *testing.T) {
	opt := Options{Timeout: 4 * time.Second} // they confer for a second
	noErrors(t, onAll(t, meshOf(t, 3, ShareNever), opt, func(ctx context.Context, g *Group) error {
		b := make([]float32, 100)
		if err := g.AllReduce(ctx, "bucket 0", b); err != nil {
			return err
		}
		if g.Rank() == 2 {
			for end := time.Now().Add(10 * time.Second); !g.doubts.active.Load(); time.Sleep(5 * time.Millisecond) {
				if time.Now().After(end) {
					return errors.New("nobody doubts")
				}
			}
		}
		if err := g.AllReduce(ctx, "bucket 1", b); err != nil {
			return err
		}
		for end := time.Now().Add(10 * time.Second); g.doubts.active.Load(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				return errors.New("doubts are left")
			}
		}
		return g.AllReduce(ctx, "bucket 2", b)
	}))
}

// Who waits for nobody who waits is to blame, in a circle all are, and what those wait for that are not overdue counts only where an overdue
// call leads there.
func TestVerdict(t *testing.T) {
	type waits struct {
		rank, after      int // the deadline is 10
		missing, waiting []int
	}
	for _, c := range []struct {
		heard            []waits
		missing, waiting []int
		after            int
	}{
		{[]waits{{0, 13, nil, []int{2, 3}}, {1, 14, nil, []int{3}}, {3, 2, nil, []int{2}}}, nil, []int{2}, 13},
		{[]waits{{0, 13, []int{2}, nil}, {1, 14, nil, []int{0}}}, []int{2}, nil, 13},
		{[]waits{{0, 13, []int{2, 3}, nil}, {1, 14, nil, []int{3}}}, []int{2}, []int{3}, 14},
		{[]waits{{0, 13, []int{1}, nil}, {1, 12, []int{0}, nil}}, []int{0, 1}, nil, 13},
		{[]waits{{0, 13, []int{1}, nil}, {2, 3, []int{4}, nil}}, []int{1}, nil, 13},
		{[]waits{{0, 13, []int{1}, nil}, {1, 3, []int{2}, nil}, {2, 4, []int{4}, nil}}, []int{4}, nil, 4},
	} {
		var d doubts
		for i, w := range c.heard {
			d.put(&Doubt{Rank: w.rank, Call: uint64(i), Overdue: w.after > 10, Wait: &StallError{Missing: w.missing, Waiting: w.waiting, After: time.Duration(w.after)}})
		}
		v := d.verdict()
		if !slices.Equal(v.Missing, c.missing) || !slices.Equal(v.Waiting, c.waiting) || int(v.After) != c.after {
			t.Errorf("%v: missing %v, waiting %v after %d", c.heard, v.Missing, v.Waiting, v.After)
		}
	}
}

// A call that goes on waiting ends although other calls of the same rank come and go: what those withdraw is theirs alone.
func TestOtherCallsDoNotHideAStall(t *testing.T) {
	errs := onAll(t, inProcess(t, 2), Options{Timeout: time.Second}, func(ctx context.Context, g *Group) error {
		if err := g.Barrier(ctx, "all here"); err != nil {
			return err
		}
		if g.Rank() == 0 {
			g.StartRecv("never sent", 1, make([]byte, 4))
		}
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
			if err := g.Barrier(ctx, "goes on"); err != nil {
				return err
			}
			time.Sleep(time.Duration(g.Rank()) * 100 * time.Millisecond)
		}
		return errors.New("nobody noticed")
	})
	for r, err := range errs {
		var stall *StallError
		if !errors.As(err, &stall) || stall.Label != "never sent" || err.Error() != errs[0].Error() {
			t.Errorf("rank %d reports %v, rank 0 %v", r, err, errs[0])
		}
	}
}

// What a peer says of a wait for nobody, or in another's name, is not listened to.
func TestDoubtsThatSayNothing(t *testing.T) {
	var d doubts
	d.hear(1, &Doubt{Rank: 1, Call: 1, Overdue: true, Wait: &StallError{}})
	d.hear(1, &Doubt{Rank: 2, Call: 1, Overdue: true, Wait: &StallError{Missing: []int{0}}})
	if d.active.Load() || d.heard != nil {
		t.Errorf("%v is kept", d.heard)
	}
	d.hear(1, &Doubt{Rank: 1, Call: 1, Overdue: true, Wait: &StallError{Missing: []int{0}}})
	if v := d.verdict(); v == nil || !slices.Equal(v.Missing, []int{0}) {
		t.Errorf("the verdict is %v", v)
	}
}
