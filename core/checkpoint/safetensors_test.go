package checkpoint

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The bytes of a file, as a person can check them against the format's description. The golden file holds the same
// ones; testdata/read_golden.py reads it with the reference implementation.
func TestWriteSafetensors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "w.safetensors")
	w := ramp("h.0.w", 6)
	w.Shape = []int{2, 3}
	tensors := []Tensor{
		{Name: "mask", DType: Bool, Shape: []int{3}, Data: []byte{1, 0, 1}},
		w,
		{Name: "a", DType: F32, Shape: nil, Data: floatBytes(1.5)},
		{Name: "steps", DType: I64, Shape: []int{1}, Data: []byte{250, 0, 0, 0, 0, 0, 0, 0}},
		{Name: "half", DType: BF16, Shape: []int{2}, Data: []byte{0x80, 0x3f, 0x00, 0xc0}},
	}
	if err := WriteSafetensors(path, tensors, map[string]string{"format": "pt", "made by": "starling"}); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	header := `{"__metadata__":{"format":"pt","made by":"starling"},` +
		`"steps":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},` +
		`"a":{"dtype":"F32","shape":[],"data_offsets":[8,12]},` +
		`"h.0.w":{"dtype":"F32","shape":[2,3],"data_offsets":[12,36]},` +
		`"half":{"dtype":"BF16","shape":[2],"data_offsets":[36,40]},` +
		`"mask":{"dtype":"BOOL","shape":[3],"data_offsets":[40,43]}}`
	for (8+len(header))%64 != 0 {
		header += " "
	}
	want := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	want = append(want, header...)
	want = append(want, 250, 0, 0, 0, 0, 0, 0, 0)
	want = append(want, floatBytes(1.5, 0, 1, 2, 3, 4, 5)...)
	want = append(want, 0x80, 0x3f, 0x00, 0xc0, 1, 0, 1)
	if !bytes.Equal(got, want) {
		t.Errorf("the file is\n%q\nwant\n%q", got, want)
	}
	golden, err := os.ReadFile(filepath.Join("testdata", "golden.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, golden) {
		t.Error("the file is not testdata/golden.safetensors")
	}

	back, metadata, err := ReadSafetensors(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(back) != 5 || metadata["made by"] != "starling" || len(metadata) != 2 {
		t.Errorf("%d tensors, metadata %v", len(back), metadata)
	}
	for _, b := range back {
		found := false
		for _, w := range tensors {
			if w.Name == b.Name {
				found = b.DType == w.DType && fmt.Sprint(b.Shape) == fmt.Sprint(w.Shape) && bytes.Equal(b.Data, w.Data)
			}
		}
		if !found {
			t.Errorf("%+v is not what was written", b)
		}
	}
}

func TestSafetensorsWithoutTensors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "w.safetensors")
	if err := WriteSafetensors(path, nil, nil); err != nil {
		t.Fatal(err)
	}
	if tensors, metadata, err := ReadSafetensors(path); err != nil || len(tensors)+len(metadata) != 0 {
		t.Errorf("%v, %v, %v", tensors, metadata, err)
	}
}

func TestWriteSafetensorsKeepsTheOldFileOnFailure(t *testing.T) {
	path := filepath.Join(t.TempDir(), "w.safetensors")
	if err := WriteSafetensors(path, []Tensor{ramp("w", 2)}, nil); err != nil {
		t.Fatal(err)
	}
	wantError(t, WriteSafetensors(path, []Tensor{{Name: "w", DType: "F1"}}, nil), path, "unknown dtype")
	if tensors, _, err := ReadSafetensors(path); err != nil || len(tensors) != 1 {
		t.Errorf("%v, %v", tensors, err)
	}
	wantError(t, WriteSafetensors(filepath.Join(path, "below", "a", "file"), nil, nil), "not a directory")
}

// file is a safetensors file with the given header and bytes of data.
func file(header string, data int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, data)...)
}

func TestReadSafetensorsRefuses(t *testing.T) {
	entry := func(rest string) string { return `{"w":{"dtype":"F32","shape":[2],` + rest + `}}` }
	for _, c := range []struct {
		name    string
		content []byte
		want    string
	}{
		{"empty", nil, "0 bytes are too few"},
		{"no header", []byte("12345678"), "the header claims"},
		{"huge header", append(binary.LittleEndian.AppendUint64(nil, 1<<62), make([]byte, 100)...), "the header claims 4611686018427387904 bytes, the file has 108"},
		{"negative header", append(binary.LittleEndian.AppendUint64(nil, 1<<63), make([]byte, 100)...), "the header claims"},
		{"header past the end", file("{}", 0)[:9], "the header claims 2 bytes, the file has 9"},
		{"no object", file(" {}", 0), "does not begin with {"},
		{"cut object", file("{", 0), "no JSON"},
		{"cut entry", file(`{"w":{"dtype"`, 0), `entry "w"`},
		{"more after it", file("{}x", 0), "goes on after"},
		{"twice", file(`{"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, 0), `has "w" twice`},
		{"unknown type", file(`{"w":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}}`, 8), `unknown dtype "F31"`},
		{"no shape", file(`{"w":{"dtype":"F32","data_offsets":[0,4]}}`, 4), "no shape"},
		{"negative shape", file(`{"w":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}`, 8), "negative"},
		{"huge shape", file(`{"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}`, 0), "more bytes than can be counted"},
		{"one offset", file(entry(`"data_offsets":[0]`), 8), "1 numbers"},
		{"negative offset", file(entry(`"data_offsets":[-8,0]`), 8), "outside the file's 8 bytes"},
		{"past the end", file(entry(`"data_offsets":[0,8]`), 4), "outside the file's 4 bytes"},
		{"backwards", file(entry(`"data_offsets":[8,0]`), 8), "outside the file's 8 bytes"},
		{"wrong size", file(entry(`"data_offsets":[0,4]`), 4), "takes 8 bytes, data_offsets give 4"},
		{"gap before", file(entry(`"data_offsets":[4,12]`), 12), `"w" begins at byte 4`},
		{"gap after", file(entry(`"data_offsets":[0,8]`), 9), "describes 8 bytes of data, the file has 9"},
		{"overlap", file(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, 3), `"b" begins at byte 1`},
		{"metadata", file(`{"__metadata__":{"a":1}}`, 0), "metadata"},
		{"deep", file(`{"w":`+strings.Repeat("[", 20_000), 0), `entry "w"`},
	} {
		path := filepath.Join(t.TempDir(), "w.safetensors")
		writeFile(t, c.content, path)
		if _, _, err := ReadSafetensors(path); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.want)
		}
	}
	_, _, err := ReadSafetensors(filepath.Join(t.TempDir(), "missing"))
	wantError(t, err, "missing")
}

// Whatever the header says, parsing neither panics nor believes more than the file holds.
func FuzzHeader(f *testing.F) {
	golden, err := os.ReadFile(filepath.Join("testdata", "golden.safetensors"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(golden)
	f.Add(file("{}", 0))
	f.Add(file(`{"w":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}`, 0))
	f.Add(append(binary.LittleEndian.AppendUint64(nil, 99_999_999), '{', '}'))
	f.Fuzz(func(t *testing.T, b []byte) {
		entries, metadata, start, err := readHeader(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return
		}
		at := int64(0)
		for _, e := range entries {
			n, err := elements(e.DType, e.Shape)
			if err != nil || e.Begin != at || e.End-e.Begin != n*int64(e.DType.Size()) {
				t.Fatalf("entry %+v accepted at %d: %v", e, at, err)
			}
			at = e.End
		}
		if start+at != int64(len(b)) {
			t.Fatalf("%d bytes described of %d", start+at, len(b))
		}
		// What was accepted can be written, and is accepted again.
		header, err := encodeHeader(entries, metadata)
		if err != nil {
			t.Fatal(err)
		}
		again := append(header, b[start:]...)
		if _, _, _, err := readHeader(bytes.NewReader(again), int64(len(again))); err != nil {
			t.Fatalf("written again as %q: %v", header, err)
		}
	})
}

// A manifest that is accepted describes whole tensors in files that stay in the folder.
func FuzzManifest(f *testing.F) {
	dir := f.TempDir()
	w := ramp("w", 10)
	path := save(f, dir, 3, []Tensor{cut(w, 0, 4)}, []Tensor{cut(w, 4, 10), {Name: "n", DType: I64, Data: make([]byte, 8)}})
	b, err := os.ReadFile(filepath.Join(path, manifestName))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(bytes.ReplaceAll(b, []byte("shard-00000.safetensors"), []byte("../escape")))
	f.Add(bytes.ReplaceAll(b, []byte(`"count": 4`), []byte(`"count": 9223372036854775807`)))
	f.Add([]byte(`{"format":"starling-checkpoint","version":1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseManifest(b)
		if err != nil {
			return
		}
		for _, file := range m.Files {
			if file.Name != filepath.Base(file.Name) || strings.HasPrefix(file.Name, ".") {
				t.Fatalf("file %q accepted", file.Name)
			}
		}
		for _, tensor := range m.Tensors {
			n, err := elements(tensor.DType, tensor.Shape)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range tensor.Pieces {
				n -= p.Count
			}
			if n != 0 {
				t.Fatalf("tensor %+v accepted", tensor)
			}
		}
	})
}
