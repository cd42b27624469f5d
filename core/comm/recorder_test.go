package comm

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestRecorder: a rank knows its last operations, and which rank it waits for.
func TestRecorder(t *testing.T) {
	for name, ts := range map[string][]Transport{"inprocess": inProcess(t, 3), "shm": sharing(t, 3), "unix": meshOf(t, 3, ShareNever)} {
		t.Run(name, func(t *testing.T) {
			const rounds, nap = recorded/2 + 20, 15 * time.Millisecond
			records := []*Recorder{NewRecorder(), NewRecorder(), NewRecorder()}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			errs := make(chan error)
			for r, x := range ts {
				go func() {
					errs <- func() error {
						g, err := NewGroup(x, "data", []int{0, 1, 2}, Options{Recorder: records[r]})
						if err != nil {
							return err
						}
						defer g.Close()
						b := make([]float32, 10)
						for i := range rounds {
							if r == 1 && i < 20 {
								time.Sleep(nap)
							}
							if err := g.AllReduce(ctx, fmt.Sprint("bucket ", i), b); err != nil {
								return err
							}
							if err := g.Barrier(ctx, "step"); err != nil {
								return err
							}
						}
						return nil
					}()
				}()
			}
			for range ts {
				if err := <-errs; err != nil {
					t.Fatal(err)
				}
			}
			last := records[2].Last()
			if len(last) != recorded {
				t.Fatalf("%d operations are kept, want %d", len(last), recorded)
			}
			for i, x := range last {
				seq := uint64(2*rounds - recorded + i)
				if x.Seq != seq || x.Finished.IsZero() || x.Err != nil || x.Finished.Before(x.Started) || x.Started.Before(x.Issued) {
					t.Fatalf("operation %d is kept as %+v", seq, x)
				}
			}
			late := records[2].Lateness()
			if late[1] < 20*nap*8/10 || late[0] > late[1] {
				t.Errorf("rank 1 came 20 times %v late, and rank 2 waited %v for it, %v for rank 0", nap, late[1], late[0])
			}
			var b strings.Builder
			if _, err := records[0].WriteTo(&b); err != nil || strings.Count(b.String(), "\n") != recorded || !strings.Contains(b.String(), `all_reduce "bucket 147" of 40 bytes of float32 number 294 of group data`) {
				t.Errorf("printed (%v):\n%s", err, b.String())
			}
		})
	}
}
