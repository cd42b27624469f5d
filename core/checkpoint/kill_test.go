package checkpoint

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"
)

const childElements = 40_000

// childTensors is the state of the child at a step: every element is the step.
func childTensors(step int64) []Tensor {
	t := filled("w", childElements, float32(step))
	return []Tensor{t, filled("w/m", 10, float32(step))}
}

// saveForEver is a run: it goes on from the newest checkpoint, saves every step through a Saver, and prints each step
// once it is committed.
func saveForEver(dir string) {
	ctx := context.Background()
	s, err := NewSaver(SaverConfig{Dir: dir, Keep: 2, Done: func(o Outcome) {
		failChild(o.Err)
		fmt.Println(o.Step)
	}})
	failChild(err)
	step := int64(0)
	c, _, err := Latest(ctx, dir)
	if err == nil {
		step = c.Step()
		failChild(c.Close())
	} else if !errors.Is(err, ErrNone) {
		failChild(err)
	}
	for {
		// Every second save takes the place of the one before it, for the moment between two renames.
		for range 2 {
			failChild(s.Save(ctx, SaveRequest{Step: step + 1, Tensors: childTensors(step + 1), Trainer: []byte("{}"), Best: step%3 == 0}))
		}
		step++
	}
}

// A run that is killed at any instant leaves a good checkpoint: the last one it reported as committed, or
// the one after it, whole.
func TestKilledAtRandomInstants(t *testing.T) {
	dir := t.TempDir()
	random := rand.New(rand.NewPCG(1, 2))
	reached := int64(0)
	for round := range 20 {
		run := child(t, "save for ever", dir)
		out, err := run.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := run.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		committed := reached
		// Killed some time after its first save, so that every round gets somewhere.
		for lines.Scan() {
			step, err := strconv.ParseInt(lines.Text(), 10, 64)
			if err != nil {
				t.Fatalf("round %d: the run says %q", round, lines.Text())
			}
			if committed == reached {
				time.AfterFunc(time.Duration(random.IntN(30_000))*time.Microsecond, func() { _ = run.Process.Kill() })
			}
			committed = step
		}
		_ = run.Wait() // killed

		c, _, err := Latest(t.Context(), dir)
		if err != nil {
			t.Fatalf("round %d, %s: %v", round, names(t, dir), err)
		}
		if c.Step() < committed || c.Step() > committed+1 {
			t.Errorf("round %d: step %d is the newest, the run had committed %d", round, c.Step(), committed)
		}
		for _, want := range childTensors(c.Step()) {
			got := make([]byte, len(want.Data))
			if err := c.ReadRange(want.Name, 0, got); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, want.Data) {
				t.Errorf("round %d: %s of step %d is not what was saved", round, want.Name, c.Step())
			}
		}
		reached = c.Step()
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if best, err := Best(dir); err != nil {
			t.Errorf("round %d: %v", round, err)
		} else if _, err := os.Stat(filepath.Join(best.Path, commitName)); err != nil && !isOld(dir, best.Step) {
			t.Errorf("round %d: the best is gone: %v", round, err)
		}
	}
	t.Logf("%d steps saved by 20 runs", reached)
	if err := Clean(dir); err != nil {
		t.Fatal(err)
	}
	best, err := Best(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := slices.Compact(slices.Sorted(slices.Values([]int64{best.Step, reached - 1, reached})))
	if got := steps(t, dir); len(got) > 4 || !slices.Contains(got, reached) || !slices.Contains(got, best.Step) {
		t.Errorf("after cleaning there are steps %v, want about %v", got, want)
	}
}

func isOld(dir string, step int64) bool {
	_, err := os.Stat(filepath.Join(dir, oldPrefix+stepName(step), commitName))
	return err == nil
}
