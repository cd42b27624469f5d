package checkpoint

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if role, dir, ok := strings.Cut(os.Getenv(childVariable), ":"); ok {
		children[role](dir)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// childVariable, set in the environment to "role:folder", makes the test binary one of children instead of
// running tests.
const childVariable = "STARLING_CHECKPOINT_CHILD"

var children = map[string]func(dir string){"save for ever": saveForEver}

func child(t testing.TB, role, dir string) *exec.Cmd {
	c := exec.CommandContext(t.Context(), os.Args[0])
	c.Env = append(os.Environ(), childVariable+"="+role+":"+dir)
	return c
}

// failChild ends a child with an error.
func failChild(err error) {
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

// floats is a whole F32 tensor.
func floats(name string, shape []int, values ...float32) Tensor {
	return Tensor{Name: name, DType: F32, Shape: shape, Data: floatBytes(values...)}
}

func floatBytes(values ...float32) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

// filled is a vector of n elements, each v.
func filled(name string, n int, v float32) Tensor {
	values := make([]float32, n)
	for i := range values {
		values[i] = v
	}
	return floats(name, []int{n}, values...)
}

// ramp is a vector of n elements 0, 1, 2, …
func ramp(name string, n int) Tensor {
	values := make([]float32, n)
	for i := range values {
		values[i] = float32(i)
	}
	return floats(name, []int{n}, values...)
}

// cut is elements lo … hi-1 of a whole F32 tensor.
func cut(t Tensor, lo, hi int) Tensor {
	t.Offset = int64(lo)
	t.Data = t.Data[4*lo : 4*hi]
	return t
}

// save commits a checkpoint whose shards hold the given tensors.
func save(t testing.TB, dir string, step int64, shards ...[]Tensor) string {
	t.Helper()
	var written []Shard
	for i, tensors := range shards {
		s, err := WriteShard(t.Context(), dir, step, i, tensors)
		if err != nil {
			t.Fatal(err)
		}
		written = append(written, s)
	}
	path, err := Commit(dir, step, fmt.Appendf(nil, `{"step": %d}`, step), written)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func mustOpen(t testing.TB, path string) *Checkpoint {
	t.Helper()
	c, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.Verify(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

// read reads elements lo … hi-1 of an F32 tensor.
func read(t testing.TB, c *Checkpoint, name string, lo, hi int) []float32 {
	t.Helper()
	b := make([]byte, 4*(hi-lo))
	if err := c.ReadRange(name, int64(lo), b); err != nil {
		t.Fatal(err)
	}
	out := make([]float32, hi-lo)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return out
}

func steps(t testing.TB, dir string) (out []int64) {
	t.Helper()
	entries, err := List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		out = append(out, e.Step)
	}
	return out
}

// names lists everything in a folder.
func names(t testing.TB, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return strings.Join(out, " ")
}

func wantError(t testing.TB, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want one with %q", parts)
		return
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("error %q does not contain %q", err, p)
		}
	}
}

func writeFile(t testing.TB, content []byte, path ...string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(path...), content, 0o644); err != nil {
		t.Fatal(err)
	}
}
