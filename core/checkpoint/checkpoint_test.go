package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestWriteAndRead(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "on", "the", "way")
	w := ramp("h.0.w", 24)
	w.Shape = []int{4, 6}
	count := Tensor{Name: "count", DType: I64, Data: []byte{7, 0, 0, 0, 0, 0, 0, 0}} // a scalar
	empty := Tensor{Name: "empty", DType: BF16, Shape: []int{0, 3}}
	path := save(t, dir, 250,
		[]Tensor{cut(w, 0, 5), count, filled("h.0.w/m", 3, 2)},
		[]Tensor{cut(w, 5, 24), empty})
	if want := filepath.Join(dir, "step-00000250"); path != want {
		t.Errorf("path %s, want %s", path, want)
	}
	if got, want := names(t, path), "COMMIT manifest.json shard-00000.safetensors shard-00001.safetensors trainer.json"; got != want {
		t.Errorf("files %s, want %s", got, want)
	}
	if got := names(t, dir); got != "step-00000250" {
		t.Errorf("the folder holds %s", got)
	}
	c := mustOpen(t, path)
	if c.Step() != 250 || string(c.Trainer()) != `{"step": 250}` || c.Path() != path {
		t.Errorf("step %d, trainer %s, path %s", c.Step(), c.Trainer(), c.Path())
	}
	want := "[{count I64 []} {empty BF16 [0 3]} {h.0.w F32 [4 6]} {h.0.w/m F32 [3]}]"
	if got := fmt.Sprint(c.Tensors()); got != want {
		t.Errorf("tensors %s, want %s", got, want)
	}
	if info, ok := c.Lookup("h.0.w"); !ok || info.DType != F32 || !slices.Equal(info.Shape, []int{4, 6}) {
		t.Errorf("%+v, %v", info, ok)
	}
	if _, ok := c.Lookup("h.1.w"); ok {
		t.Error("a tensor that is not there was found")
	}
	for _, r := range [][2]int{{0, 24}, {0, 5}, {5, 24}, {4, 6}, {23, 24}, {3, 3}, {24, 24}} {
		got := read(t, c, "h.0.w", r[0], r[1])
		for k, v := range got {
			if v != float32(r[0]+k) {
				t.Errorf("elements %v: %v", r, got)
			}
		}
	}
	scalar := make([]byte, 8)
	if err := c.ReadRange("count", 0, scalar); err != nil || scalar[0] != 7 {
		t.Errorf("%v, %v", scalar, err)
	}
	if err := c.ReadRange("empty", 0, nil); err != nil {
		t.Error(err)
	}
	wantError(t, c.ReadRange("nothing", 0, nil), path, `no tensor "nothing"`)
	wantError(t, c.ReadRange("h.0.w", 20, make([]byte, 20)), "20 bytes from element 20", "F32[4 6]")
	wantError(t, c.ReadRange("h.0.w", -1, make([]byte, 4)), "element -1")
	wantError(t, c.ReadRange("h.0.w", 0, make([]byte, 6)), "6 bytes")
}

// Tensors of any sizes written by any number of ranks are read by any number.
func TestReshard(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir := t.TempDir()
		writers := rapid.IntRange(1, 6).Draw(rt, "writers")
		shards := make([][]Tensor, writers)
		var whole []Tensor
		for k := range rapid.IntRange(1, 4).Draw(rt, "tensors") {
			w := ramp(fmt.Sprintf("t%d", k), rapid.IntRange(1, 40).Draw(rt, "elements"))
			whole = append(whole, w)
			n := int(w.Count())
			lo := 0
			for r := range writers { // uneven cuts, some empty, left out as often as not
				hi := n
				if r < writers-1 {
					hi = rapid.IntRange(lo, n).Draw(rt, "cut")
				}
				if hi > lo || rapid.Bool().Draw(rt, "empty piece") {
					shards[r] = append(shards[r], cut(w, lo, hi))
				}
				lo = hi
			}
		}
		c := mustOpen(t, save(t, dir, 1, shards...))
		readers := rapid.IntRange(1, 16).Draw(rt, "readers")
		for _, w := range whole {
			n := int(w.Count())
			var got []float32
			for r := range readers {
				got = append(got, read(t, c, w.Name, r*n/readers, (r+1)*n/readers)...)
			}
			if !slices.Equal(floatBytes(got...), w.Data) {
				rt.Fatalf("%s read by %d: %v", w.Name, readers, got)
			}
		}
	})
}

func TestCommitRefusesWhatIsNotWhole(t *testing.T) {
	w := ramp("w", 10)
	for _, c := range []struct {
		name   string
		shards [][]Tensor
		drop   int // shard whose file is deleted, -1 for none
		want   []string
	}{
		{"a gap", [][]Tensor{{cut(w, 0, 4)}, {cut(w, 6, 10)}}, -1, []string{`tensor "w"`, "elements 4 to 5 are in no shard"}},
		{"the end", [][]Tensor{{cut(w, 0, 4)}, {cut(w, 4, 9)}}, -1, []string{"elements 9 to 9 are in no shard"}},
		{"an overlap", [][]Tensor{{cut(w, 0, 6)}, {cut(w, 4, 10)}}, -1, []string{"elements 4 to 5 are there twice", "shard-00001"}},
		{"twice", [][]Tensor{{w}, {w}}, -1, []string{"elements 0 to 9 are there twice"}},
		{"two shapes", [][]Tensor{{cut(w, 0, 5)}, {cut(ramp("w", 11), 5, 11)}}, -1, []string{"outside shape [10]"}},
		{"a file gone", [][]Tensor{{cut(w, 0, 5)}, {cut(w, 5, 10)}}, 1, []string{"shard-00001.safetensors is not there", "same folder"}},
	} {
		dir := t.TempDir()
		save(t, dir, 1, []Tensor{w})
		var written []Shard
		for i, tensors := range c.shards {
			s, err := WriteShard(t.Context(), dir, 2, i, tensors)
			if err != nil {
				t.Fatal(err)
			}
			if i == c.drop {
				if err := os.Remove(filepath.Join(dir, ".tmp-step-00000002", s.File)); err != nil {
					t.Fatal(err)
				}
			}
			written = append(written, s)
		}
		_, err := Commit(dir, 2, []byte("{}"), written)
		wantError(t, err, append(c.want, "committing step 2", dir)...)
		if got := steps(t, dir); !slices.Equal(got, []int64{1}) {
			t.Errorf("%s: checkpoints %v", c.name, got)
		}
	}
	dir := t.TempDir()
	s, err := WriteShard(t.Context(), dir, 2, 0, []Tensor{w})
	if err != nil {
		t.Fatal(err)
	}
	_, err = Commit(dir, 2, []byte("{"), []Shard{s})
	wantError(t, err, "no JSON document")
	writeFile(t, []byte("x"), dir, ".tmp-step-00000002", s.File)
	_, err = Commit(dir, 2, []byte("{}"), []Shard{s})
	wantError(t, err, "has 1 bytes, its rank wrote")
	if err := Discard(dir, 2); err != nil || names(t, dir) != "" {
		t.Errorf("%v, the folder holds %q", err, names(t, dir))
	}
}

func TestTensorsThatCannotBe(t *testing.T) {
	for want, tensor := range map[string]Tensor{
		"has no name":                     {DType: F32},
		"keeps it for metadata":           {Name: "__metadata__", DType: F32},
		"no valid UTF-8":                  {Name: "\xff", DType: F32},
		`unknown dtype "F33"`:             {Name: "w", DType: "F33"},
		"negative dimension":              {Name: "w", DType: F32, Shape: []int{-1}},
		"more bytes than can be counted":  {Name: "w", DType: F32, Shape: []int{1 << 31, 1 << 31}},
		"3 bytes are no whole number":     {Name: "w", DType: F32, Shape: []int{1}, Data: make([]byte, 3)},
		"2 elements from 0 lies outside":  {Name: "w", DType: F32, Shape: []int{1}, Data: make([]byte, 8)},
		"1 elements from -1 lies outside": {Name: "w", DType: F32, Shape: []int{1}, Offset: -1, Data: make([]byte, 4)},
		"1 elements from 1 lies outside":  {Name: "w", DType: F32, Shape: []int{1}, Offset: 1, Data: make([]byte, 4)},
		"0 elements from 2 lies outside":  {Name: "w", DType: F32, Shape: []int{1}, Offset: 2},
	} {
		_, err := WriteShard(t.Context(), t.TempDir(), 1, 0, []Tensor{tensor})
		wantError(t, err, want)
	}
	w := ramp("w", 3)
	_, err := WriteShard(t.Context(), t.TempDir(), 1, 0, []Tensor{w, w})
	wantError(t, err, `"w" is there twice`)
	_, err = WriteShard(t.Context(), t.TempDir(), -1, 0, []Tensor{w})
	wantError(t, err, "numbered from 0")
}

// What an earlier attempt left in the temporary folder is no part of the checkpoint.
func TestLeftoversOfAnEarlierAttempt(t *testing.T) {
	dir := t.TempDir()
	w := ramp("w", 8)
	for i := range 4 {
		if _, err := WriteShard(t.Context(), dir, 5, i, []Tensor{cut(w, 2*i, 2*i+2)}); err != nil {
			t.Fatal(err)
		}
	}
	path := save(t, dir, 5, []Tensor{cut(w, 0, 4)}, []Tensor{cut(w, 4, 8)}) // now by two ranks
	if got := names(t, path); strings.Contains(got, "00002") {
		t.Errorf("files %s", got)
	}
	mustOpen(t, path)
}

func TestSameStepReplaces(t *testing.T) {
	dir := t.TempDir()
	save(t, dir, 5, []Tensor{filled("w", 3, 1)})
	path := save(t, dir, 5, []Tensor{filled("w", 3, 2)})
	if got := names(t, dir); got != "step-00000005" {
		t.Errorf("the folder holds %s", got)
	}
	if v := read(t, mustOpen(t, path), "w", 0, 3); v[0] != 2 {
		t.Errorf("w = %v", v)
	}
}

// Killed between the two renames of a replacement, the folder holds the checkpoint under its other name.
func TestKilledWhileReplacing(t *testing.T) {
	dir := t.TempDir()
	path := save(t, dir, 5, []Tensor{filled("w", 3, 1)})
	old := filepath.Join(dir, ".old-step-00000005")
	if err := os.Rename(path, old); err != nil {
		t.Fatal(err)
	}
	latest := func(want string) {
		t.Helper()
		c, skipped, err := Latest(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		if c.Path() != want || c.Step() != 5 || len(skipped) != 0 {
			t.Errorf("found %s, step %d, skipped %v", c.Path(), c.Step(), skipped)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	latest(old)
	if err := Clean(dir); err != nil {
		t.Fatal(err)
	}
	latest(path)

	// Killed after the second: the new one counts, the other goes.
	if err := os.CopyFS(old, os.DirFS(path)); err != nil {
		t.Fatal(err)
	}
	latest(path)
	if err := Clean(dir); err != nil {
		t.Fatal(err)
	}
	latest(path)
	if got := names(t, dir); got != "step-00000005" {
		t.Errorf("the folder holds %s", got)
	}
}

func TestCleanTakesOnlyItsOwn(t *testing.T) {
	dir := t.TempDir()
	save(t, dir, 5, []Tensor{ramp("w", 3)})
	for _, name := range []string{".tmp-step-00000006", ".del-step-00000001", ".tmp-other", "step-7", "notes"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	writeFile(t, nil, dir, "step-00000009") // a file, not a folder
	if err := Clean(dir); err != nil {
		t.Fatal(err)
	}
	if got, want := names(t, dir), ".tmp-other notes step-00000005 step-00000009 step-7"; got != want {
		t.Errorf("left are %s, want %s", got, want)
	}
	if got := steps(t, dir); !slices.Equal(got, []int64{5}) {
		t.Errorf("checkpoints %v", got)
	}
}

func TestBestAndPrune(t *testing.T) {
	dir := t.TempDir()
	if _, err := Best(dir); !errors.Is(err, ErrNone) {
		t.Errorf("error %v", err)
	}
	for step := int64(1); step <= 6; step++ {
		save(t, dir, step, []Tensor{ramp("w", 2)})
	}
	if err := MarkBest(dir, 2); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "best")); string(b) != "step-00000002\n" {
		t.Errorf("best holds %q, %v", b, err)
	}
	if best, err := Best(dir); err != nil || best.Step != 2 || best.Path != filepath.Join(dir, "step-00000002") {
		t.Errorf("%+v, %v", best, err)
	}
	wantError(t, MarkBest(dir, 7), "step 7")
	writeFile(t, nil, dir, "step-00000007") // neither of these is a checkpoint to count or to delete
	if err := os.Mkdir(filepath.Join(dir, "step-00000008"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Prune(dir, 2, 6); err != nil {
		t.Fatal(err)
	}
	if got := names(t, dir); got != "best step-00000002 step-00000005 step-00000006 step-00000007 step-00000008" {
		t.Errorf("left are %s", got)
	}
	// The one just committed stays, even if others have higher steps.
	save(t, dir, 3, []Tensor{ramp("w", 2)})
	if err := Prune(dir, 1, 3); err != nil {
		t.Fatal(err)
	}
	if got := steps(t, dir); !slices.Equal(got, []int64{2, 3, 8}) {
		t.Errorf("left are %v", got)
	}
	writeFile(t, []byte("../../etc"), dir, "best")
	_, err := Best(dir)
	wantError(t, err, "no checkpoint's name", "delete it")
	wantError(t, Prune(dir, 1, 3), "no checkpoint's name")
	if got := steps(t, dir); !slices.Equal(got, []int64{2, 3, 8}) {
		t.Errorf("with a damaged best, left are %v", got)
	}
}

func TestWeightsHash(t *testing.T) {
	a, b := filled("a", 3, 1), ramp("b", 4)
	want := sumOf(slices.Concat(a.Data, b.Data))
	for name, tensors := range map[string][]Tensor{
		"in order":     {a, b},
		"out of order": {b, a},
		"in pieces":    {cut(b, 1, 4), a, cut(b, 0, 1)},
	} {
		if got, err := WeightsHash(tensors); err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s", name, got, err, want)
		}
	}
	for want, tensors := range map[string][]Tensor{
		"has 3 elements of 4":             {cut(b, 0, 3)},
		"from element 2 where one from 1": {cut(b, 0, 1), cut(b, 2, 4)},
		"from element 0 where one from 4": {b, b},
		"only F32":                        {{Name: "c", DType: I64}, a},
		`unknown dtype ""`:                {{Name: "c"}},
	} {
		_, err := WeightsHash(tensors)
		wantError(t, err, want)
	}
}
