package main

import (
	"encoding/hex"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"starling/sdk"
)

// What TensorBoard 2.21's own writer makes of the same two events.
const official = "1800000000000000a37f4b220900001040fc54d9411a0d627261696e2e4576656e743a32338d2fe93200000000000000241956ec0900006040fc54d94110ac022a240a110a0a747261696e2f6c6f7373150000a03f0a0f0a08747261696e2f6c72150000807f93dedef8"

func TestBytesAreTensorBoards(t *testing.T) {
	got := record(version(time.UnixMilli(1700000000250)))
	got = append(got, record(event(time.UnixMilli(1700000001500), 300, []scalar{{"train/loss", 1.25}, {"train/lr", float32(math.Inf(1))}}))...)
	if hex.EncodeToString(got) != official {
		t.Errorf("%x, want %s", got, official)
	}
}

// point is a scalar that was read back.
type point struct {
	step  int64
	value float32
}

// read parses a folder's event files.
func read(t *testing.T, dir string) map[string][]point {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "tensorboard", "events.out.tfevents.*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%v, %v", files, err)
	}
	out := map[string][]point{}
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for first := true; len(b) > 0; first = false {
			data, rest, ok := split(b)
			if !ok {
				t.Fatalf("%s is torn %d bytes before its end", path, len(b))
			}
			b = rest
			step, ok := stepOf(data)
			whole := fields(data, func(field, _ uint64, data []byte) {
				if field == 3 && (!first || string(data) != "brain.Event:2") {
					t.Errorf("version %q, first event: %v", data, first)
				}
				if field != 5 {
					return
				}
				fields(data, func(_, _ uint64, data []byte) {
					var tag string
					p := point{step: step}
					fields(data, func(field, bits uint64, data []byte) {
						if field == 1 {
							tag = string(data)
						} else {
							p.value = math.Float32frombits(uint32(bits))
						}
					})
					out[tag] = append(out[tag], p)
				})
			})
			if !ok || !whole {
				t.Fatalf("%x is no message", data)
			}
		}
	}
	return out
}

func write(t *testing.T, dir string, from, to int) {
	t.Helper()
	s := &sink{}
	if err := s.Open(sdk.Run{Settings: sdk.NewHypers(s.Manifest(), nil), Folder: dir, Step: from}); err != nil {
		t.Fatal(err)
	}
	for step := from + 1; step <= to; step++ {
		r := []sdk.Record{{Kind: "step", Step: step, Time: time.Now(), Values: map[string]float64{"loss": float64(step), "lr": 0.5}}}
		if step%5 == 0 {
			r = append(r, sdk.Record{Kind: "eval", Step: step, Time: time.Now(), Values: map[string]float64{"eval_loss": -float64(step)}})
		}
		if err := s.Write(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// Every step is there once, also where a run was killed in the middle of a write and went on from an earlier step.
func TestResume(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, 0, 12)
	files, err := filepath.Glob(filepath.Join(dir, "tensorboard", "*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v", files, err)
	}
	// The next process has another number; this test is one.
	if err := os.Rename(files[0], filepath.Join(dir, "tensorboard", "events.out.tfevents.0000000001.a.1.starling")); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "tensorboard", "events.out.tfevents.0000000001.a.1.starling"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	torn := record(event(time.Now(), 13, []scalar{{"train/loss", 13}}))
	if _, err := f.Write(torn[:len(torn)-3]); err != nil {
		t.Fatal(err)
	}
	f.Close()
	write(t, dir, 7, 15)
	got := read(t, dir)
	var loss, eval []point
	for step := int64(1); step <= 15; step++ {
		loss = append(loss, point{step, float32(step)})
		if step%5 == 0 {
			eval = append(eval, point{step, -float32(step)})
		}
	}
	if !reflect.DeepEqual(got["train/loss"], loss) || !reflect.DeepEqual(got["eval/loss"], eval) || len(got["train/lr"]) != 15 {
		t.Errorf("%v", got)
	}
}

// Whatever a file holds, cutting it neither fails nor reads past its end.
func FuzzSplit(f *testing.F) {
	b, err := hex.DecodeString(official)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:20])
	f.Fuzz(func(t *testing.T, b []byte) {
		for {
			data, rest, ok := split(b)
			if !ok {
				return
			}
			stepOf(data)
			b = rest
		}
	})
}
