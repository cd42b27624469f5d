package train

import (
	"context"
	"fmt"
	"testing"

	"starling/core/comm"
	"starling/core/device"
	"starling/core/device/cpu"
	"starling/core/plan"
)

// TestCollectivesOfAStepAllocateNothing: from the second step on, whatever a step starts and waits for is prepared.
func TestCollectivesOfAStepAllocateNothing(t *testing.T) {
	for _, zero := range []int{0, 1, 3} {
		t.Run(fmt.Sprint("zero ", zero), func(t *testing.T) {
			const ranks, rounds, tries = 2, 20, 4
			step := make([]func() error, ranks)
			for r, transport := range comm.NewInProcess(ranks) {
				dev, err := cpu.Open(cpu.Config{Threads: 1, Ranks: ranks})
				if err != nil {
					t.Fatal(err)
				}
				defer dev.Close()
				g, err := comm.NewGroup(transport, "data", []int{0, 1}, comm.Options{})
				if err != nil {
					t.Fatal(err)
				}
				defer g.Close()
				s := testSpec(t)
				s.Mesh.Data, s.Mesh.Zero = ranks, zero
				if err := s.Validate(); err != nil {
					t.Fatal(err)
				}
				e, err := newEngine(s, &Env{Rank: r, World: ranks, Group: g, Device: dev, Threads: 1, Observe: func(Event) {}})
				if err != nil {
					t.Fatal(err)
				}
				defer e.close()
				step[r] = func() error { return collectStep(e) }
			}
			others := make(chan error, 1)
			go func() {
				for range 2 + tries*(rounds+1) {
					if err := step[1](); err != nil {
						others <- err
						return
					}
				}
				others <- nil
			}()
			var err error
			run := func() {
				if e := step[0](); e != nil {
					err = e
				}
			}
			run()
			run()
			// The other rank is in this process: its allocations count too, and so does whatever a finished test leaves running.
			got := testing.AllocsPerRun(rounds, run)
			for range tries - 1 {
				got = min(got, testing.AllocsPerRun(rounds, run))
			}
			if err == nil {
				err = <-others
			}
			if err != nil {
				t.Fatal(err)
			}
			if got >= 1 {
				t.Errorf("%v allocations in the collectives of a step of two ranks", got)
			}
		})
	}
}

// collectStep starts and waits for all that the programs of a step do, without computing.
func collectStep(e *engine) error {
	e.trace.begin(0)
	e.collect.begin(context.Background(), &e.trace)
	started := 0
	for round := range max(len(e.plan.Rounds), 1) {
		e.collect.round = round
		for _, name := range []string{plan.SegmentMicro, plan.SegmentNorm, plan.SegmentUpdate} {
			instrs := e.plan.Segments[name].Instrs
			for i := range instrs {
				var err error
				switch instrs[i].Kind {
				case device.Start:
					started++
					err = e.collect.Start(&instrs[i])
				case device.Wait:
					err = e.collect.Wait(&instrs[i])
				}
				if err != nil {
					return err
				}
			}
		}
		if err := e.collect.wait(e.collect.ctx); err != nil {
			return err
		}
	}
	if started == 0 || len(e.trace.Collectives) < started {
		return fmt.Errorf("%d collectives of %d started ones were waited for", len(e.trace.Collectives), started)
	}
	return nil
}
