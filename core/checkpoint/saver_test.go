package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
)

func newSaver(t testing.TB, c SaverConfig) *Saver {
	t.Helper()
	s, err := NewSaver(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func mustSave(t testing.TB, s *Saver, r SaveRequest) {
	t.Helper()
	if r.Trainer == nil {
		r.Trainer = []byte("{}")
	}
	if err := s.Save(t.Context(), r); err != nil {
		t.Fatal(err)
	}
}

func mustWait(t testing.TB, s *Saver) {
	t.Helper()
	if err := s.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// w = 1, a save in the background, then an update at once: the file holds 1.
func TestUpdateRightAfterSave(t *testing.T) {
	dir := t.TempDir()
	w := filled("w", 4<<20, 1)
	s := newSaver(t, SaverConfig{Dir: dir, Snapshot: SnapshotBytes([]Tensor{w})})
	memory := &s.memory[:1][0]
	for step := int64(1); step <= 2; step++ {
		copy(w.Data, filled("w", 4<<20, float32(step)).Data)
		trainer := []byte(`{"a": 1}`)
		mustSave(t, s, SaveRequest{Step: step, Tensors: []Tensor{w}, Trainer: trainer})
		clear(w.Data)
		copy(trainer, "xxxxxxx")
		mustWait(t, s)
		c := mustOpen(t, filepath.Join(dir, stepName(step)))
		for i, v := range read(t, c, "w", 0, 4<<20) {
			if v != float32(step) {
				t.Fatalf("step %d: element %d is %v", step, i, v)
			}
		}
		if string(c.Trainer()) != `{"a": 1}` {
			t.Errorf("trainer %s", c.Trainer())
		}
		if e, ok := s.Last(); !ok || e.Step != step || e.Path != c.Path() {
			t.Errorf("last %+v", e)
		}
	}
	if &s.memory[0] != memory || cap(s.memory) != 16<<20 {
		t.Errorf("the snapshot was allocated anew: %d bytes of capacity", cap(s.memory))
	}
}

func TestKeepAndBest(t *testing.T) {
	dir := t.TempDir()
	var outcomes []Outcome
	s := newSaver(t, SaverConfig{Dir: dir, Keep: 2, Done: func(o Outcome) { outcomes = append(outcomes, o) }})
	for step := int64(1); step <= 5; step++ {
		mustSave(t, s, SaveRequest{Step: step, Tensors: []Tensor{ramp("w", 4)}, Best: step == 2})
	}
	mustWait(t, s)
	if got := names(t, dir); got != "best step-00000002 step-00000004 step-00000005" {
		t.Errorf("left are %s", got)
	}
	if len(outcomes) != 5 {
		t.Fatalf("outcomes %+v", outcomes)
	}
	info, err := os.Stat(filepath.Join(dir, "step-00000005", "shard-00000.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	if o := outcomes[4]; o.Step != 5 || o.Err != nil || o.Path != filepath.Join(dir, "step-00000005") || o.Bytes != info.Size() || o.Took <= 0 {
		t.Errorf("outcome %+v", o)
	}
}

// exchange is a Gather among goroutines; what it carries goes through JSON, as between processes.
type exchange struct {
	to   chan []byte
	size int
}

func (x exchange) gather(rank int) func(context.Context, Result) ([]Result, error) {
	return func(ctx context.Context, mine Result) ([]Result, error) {
		b, err := json.Marshal(mine)
		if err != nil {
			return nil, err
		}
		if rank != 0 {
			x.to <- b
			return nil, nil
		}
		all := []Result{mine}
		for range x.size - 1 {
			var r Result
			select {
			case b := <-x.to:
				if err := json.Unmarshal(b, &r); err != nil {
					return nil, err
				}
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			all = append(all, r)
		}
		return all, nil
	}
}

func TestRanksSaveTogether(t *testing.T) {
	dir := t.TempDir()
	const ranks = 3
	x := exchange{make(chan []byte), ranks}
	savers := make([]*Saver, ranks)
	for r := range savers {
		savers[r] = newSaver(t, SaverConfig{Dir: dir, Shard: r, Gather: x.gather(r)})
	}
	w := ramp("w", 10)
	each := func(step int64, pieces func(r int) []Tensor) []error {
		errs := make([]error, ranks)
		var wg sync.WaitGroup
		for r, s := range savers {
			wg.Go(func() {
				err := s.Save(t.Context(), SaveRequest{Step: step, Tensors: pieces(r), Trainer: []byte("{}")})
				errs[r] = errors.Join(err, s.Wait(t.Context()))
			})
		}
		wg.Wait()
		return errs
	}
	share := func(r int) []Tensor { return []Tensor{cut(w, r*10/ranks, (r+1)*10/ranks)} }
	if errs := each(1, share); errors.Join(errs...) != nil {
		t.Fatal(errs)
	}
	if got := read(t, mustOpen(t, filepath.Join(dir, "step-00000001")), "w", 0, 10); !slices.Equal(floatBytes(got...), w.Data) {
		t.Errorf("w = %v", got)
	}

	// A rank that cannot write its shard: the others do not hang, nothing is committed, nothing is lost.
	blocked := filepath.Join(dir, tmpPrefix+stepName(2), shardName(1))
	if err := os.MkdirAll(blocked, 0o755); err != nil {
		t.Fatal(err)
	}
	errs := each(2, share)
	wantError(t, errs[0], "saving step 2", "another rank failed", "shard 1", "the last good checkpoint is "+filepath.Join(dir, "step-00000001"))
	wantError(t, errs[1], "saving step 2", "is a directory")
	if errs[2] != nil {
		t.Error(errs[2])
	}
	if got := names(t, dir); got != "step-00000001" {
		t.Errorf("the folder holds %s", got)
	}
	if errs := each(3, share); errors.Join(errs...) != nil {
		t.Fatal(errs)
	}
}

func TestErrorIsReportedAtTheNextCall(t *testing.T) {
	dir := t.TempDir()
	fail := errors.New("no answer")
	failing := true
	var told []error
	s := newSaver(t, SaverConfig{
		Dir: dir,
		Gather: func(_ context.Context, mine Result) ([]Result, error) {
			if failing {
				return nil, fail
			}
			return []Result{mine}, nil
		},
		Done: func(o Outcome) { told = append(told, o.Err) },
	})
	s.Resumed(Entry{Step: 7, Path: "elsewhere/step-00000007"})
	mustSave(t, s, SaveRequest{Step: 8, Tensors: []Tensor{ramp("w", 4)}})
	<-s.idle // until it has failed; the token goes back for Save to take
	s.idle <- struct{}{}
	failing = false
	err := s.Save(t.Context(), SaveRequest{Step: 9, Tensors: []Tensor{ramp("w", 4)}, Trainer: []byte("{}")})
	var failed *SaveError
	if !errors.As(err, &failed) || failed.Step != 8 || !errors.Is(err, fail) {
		t.Errorf("error %v", err)
	}
	wantError(t, err, "saving step 8", "gathering the shards: no answer", "the last good checkpoint is elsewhere/step-00000007")
	mustWait(t, s) // step 9 was saved all the same
	if got := names(t, dir); got != "step-00000009" {
		t.Errorf("the folder holds %s", got)
	}
	if len(told) != 2 || told[0] == nil || told[1] != nil {
		t.Errorf("told of %v", told)
	}
}

func TestSaveWaitsForTheOneBefore(t *testing.T) {
	going := make(chan struct{})
	s := newSaver(t, SaverConfig{
		Dir: t.TempDir(),
		Gather: func(ctx context.Context, mine Result) ([]Result, error) {
			select {
			case <-going:
				return []Result{mine}, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		},
	})
	mustSave(t, s, SaveRequest{Step: 1, Tensors: []Tensor{ramp("w", 4)}})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantError(t, s.Save(ctx, SaveRequest{Step: 2}), "saving step 2", "waiting for the save before it", "canceled")
	wantError(t, s.Wait(ctx), "canceled")
	going <- struct{}{}
	mustWait(t, s)

	// Closed in the middle of a save, it ends, and the save is no checkpoint.
	mustSave(t, s, SaveRequest{Step: 3, Tensors: []Tensor{ramp("w", 4)}})
	s.Close()
	s.Close()
	wantError(t, s.Save(t.Context(), SaveRequest{Step: 4}), "the saver is closed")
	wantError(t, s.Wait(t.Context()), "the saver is closed")
	if got := steps(t, s.cfg.Dir); !slices.Equal(got, []int64{1}) {
		t.Errorf("checkpoints %v", got)
	}
}

func TestSaverCleansUpAfterAKilledRun(t *testing.T) {
	dir := t.TempDir()
	if _, err := WriteShard(t.Context(), dir, 4, 0, []Tensor{ramp("w", 4)}); err != nil {
		t.Fatal(err)
	}
	newSaver(t, SaverConfig{Dir: dir})
	if got := names(t, dir); got != "" {
		t.Errorf("the folder holds %s", got)
	}
}

func TestSaverRefuses(t *testing.T) {
	dir := t.TempDir()
	occupied := filepath.Join(dir, "file")
	writeFile(t, nil, occupied)
	for want, c := range map[string]SaverConfig{
		"needs a folder":    {},
		"keep = -1":         {Dir: dir, Keep: -1},
		"shard = -1":        {Dir: dir, Shard: -1},
		"a way to reach":    {Dir: dir, Shard: 1},
		"making the folder": {Dir: occupied},
	} {
		_, err := NewSaver(c)
		wantError(t, err, want)
	}
	s := newSaver(t, SaverConfig{Dir: dir})
	wantError(t, s.Save(t.Context(), SaveRequest{Step: 3, Tensors: []Tensor{{Name: "w"}}}), "saving step 3", "unknown dtype")
	mustSave(t, s, SaveRequest{Step: 3, Trainer: []byte("{")})
	wantError(t, s.Wait(t.Context()), "saving step 3", "no JSON document")
	if got := names(t, dir); got != "file" {
		t.Errorf("the folder holds %s", got)
	}
}

func TestWriteShardStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := t.TempDir()
	if _, err := WriteShard(ctx, dir, 1, 0, []Tensor{ramp("w", 4)}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if got := names(t, filepath.Join(dir, ".tmp-step-00000001")); got != "" {
		t.Errorf("left is %s", got)
	}
	c := mustOpen(t, save(t, dir, 2, []Tensor{ramp("w", 4)}))
	if err := c.Verify(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if _, _, err := Latest(ctx, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func BenchmarkSave(b *testing.B) {
	s := newSaver(b, SaverConfig{Dir: b.TempDir(), Keep: 1})
	w := filled("w", 16<<20, 1)
	b.SetBytes(int64(len(w.Data)))
	step := int64(0)
	for b.Loop() {
		step++
		mustSave(b, s, SaveRequest{Step: step, Tensors: []Tensor{w}})
		mustWait(b, s)
	}
}

func BenchmarkSnapshot(b *testing.B) {
	s := newSaver(b, SaverConfig{Dir: b.TempDir()})
	w := filled("w", 16<<20, 1)
	b.SetBytes(int64(len(w.Data)))
	for b.Loop() {
		s.snapshot([]Tensor{w})
	}
}

func ExampleLatest() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	w := Tensor{Name: "w", DType: F32, Shape: []int{2}, Data: floatBytes(1, 2)}
	for step := range int64(3) {
		shard, err := WriteShard(ctx, dir, step, 0, []Tensor{w})
		if err != nil {
			panic(err)
		}
		path, err := Commit(dir, step, []byte(`{"tokens": 2048}`), []Shard{shard})
		if err != nil {
			panic(err)
		}
		if step == 2 { // a disk that loses the end of a file
			if err := os.Truncate(filepath.Join(path, shard.File), 100); err != nil {
				panic(err)
			}
		}
	}
	c, skipped, err := Latest(ctx, dir)
	if err != nil {
		panic(err)
	}
	defer c.Close()
	for _, s := range skipped {
		fmt.Println("skipped", filepath.Base(s.Path))
	}
	second := make([]byte, 4)
	if err := c.ReadRange("w", 1, second); err != nil {
		panic(err)
	}
	fmt.Printf("step %d, %s, w[1] = % x\n", c.Step(), c.Trainer(), second)
	// Output:
	// skipped step-00000002
	// step 1, {"tokens": 2048}, w[1] = 00 00 00 40
}

// With InPlace nothing is copied: the checkpoint is there, from the tensors' own memory, when Save returns.
func TestSavingInPlace(t *testing.T) {
	dir := t.TempDir()
	s, err := NewSaver(SaverConfig{Dir: dir, InPlace: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	data := []byte{0, 0, 128, 63} // 1
	if err := s.Save(t.Context(), SaveRequest{Step: 1, Tensors: []Tensor{{Name: "w", DType: F32, Shape: []int{1}, Data: data}}, Trainer: []byte("{}")}); err != nil {
		t.Fatal(err)
	}
	data[3] = 0 // an update at once
	c, _, err := Latest(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	got := make([]byte, 4)
	if err := c.ReadRange("w", 0, got); err != nil || got[3] != 63 {
		t.Errorf("the file holds %v (%v), want 1", got, err)
	}
	if cap(s.memory) != 0 {
		t.Errorf("%d bytes were set aside for a copy", cap(s.memory))
	}
}
