package checkpoint

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// maxHeader is the largest header that the reference implementation reads.
const maxHeader = 100_000_000

// headerAlign is the multiple of bytes at which the data of a file we write begins.
const headerAlign = 64

// entry is one tensor of a safetensors file.
type entry struct {
	Key        string
	DType      DType
	Shape      []int
	Begin, End int64 // bytes from the end of the header
}

// layout sorts tensors into the order of the file and gives each its key and place. The
// result lists the entries and, beside them, the tensors.
func layout(tensors []Tensor) ([]entry, []Tensor, error) {
	tensors = slices.Clone(tensors)
	keys := make(map[string]bool, len(tensors))
	entries := make([]entry, len(tensors))
	order := make([]int, len(tensors))
	for i, t := range tensors {
		if err := t.Validate(); err != nil {
			return nil, nil, err
		}
		key, shape, err := t.piece().stored()
		if err != nil {
			return nil, nil, err
		}
		if keys[key] {
			return nil, nil, fmt.Errorf("tensor %q is there twice", key)
		}
		keys[key] = true
		entries[i] = entry{Key: key, DType: t.DType, Shape: shape}
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(
			cmp.Compare(entries[b].DType.Size(), entries[a].DType.Size()),
			cmp.Compare(entries[a].Key, entries[b].Key))
	})
	sorted, data := make([]entry, len(order)), make([]Tensor, len(order))
	at := int64(0)
	for k, i := range order {
		sorted[k], data[k] = entries[i], tensors[i]
		sorted[k].Begin = at
		at += int64(len(tensors[i].Data))
		sorted[k].End = at
	}
	return sorted, data, nil
}

// encodeHeader is the file up to its data: the length, the JSON and its padding.
func encodeHeader(entries []entry, metadata map[string]string) ([]byte, error) {
	var b bytes.Buffer
	b.Write(make([]byte, 8))
	put := func(key string, value any) error {
		if b.Len() == 8 {
			b.WriteByte('{')
		} else {
			b.WriteByte(',')
		}
		k, err := json.Marshal(key)
		if err != nil {
			return err
		}
		v, err := json.Marshal(value)
		if err != nil {
			return err
		}
		b.Write(k)
		b.WriteByte(':')
		b.Write(v)
		return nil
	}
	if len(metadata) > 0 {
		if err := put(metadataKey, metadata); err != nil {
			return nil, err
		}
	}
	for _, e := range entries {
		shape := e.Shape
		if shape == nil {
			shape = []int{}
		}
		if err := put(e.Key, headerEntry{e.DType, shape, []int64{e.Begin, e.End}}); err != nil {
			return nil, err
		}
	}
	if b.Len() == 8 {
		b.WriteByte('{')
	}
	b.WriteByte('}')
	for b.Len()%headerAlign != 0 {
		b.WriteByte(' ')
	}
	if b.Len()-8 > maxHeader {
		return nil, fmt.Errorf("a header of %d bytes is more than the format allows (%d); use more shards", b.Len()-8, maxHeader)
	}
	out := b.Bytes()
	binary.LittleEndian.PutUint64(out, uint64(len(out)-8))
	return out, nil
}

type headerEntry struct {
	DType   DType   `json:"dtype"`
	Shape   []int   `json:"shape"`
	Offsets []int64 `json:"data_offsets"`
}

// readHeader reads and checks the header of a file of size bytes. What it
// allocates is bounded by the file's own size. The entries come sorted by place; start
// is where the data begins.
func readHeader(r io.ReaderAt, size int64) (entries []entry, metadata map[string]string, start int64, err error) {
	var length [8]byte
	if size < 8 {
		return nil, nil, 0, fmt.Errorf("%d bytes are too few for a safetensors file", size)
	}
	if _, err := r.ReadAt(length[:], 0); err != nil {
		return nil, nil, 0, fmt.Errorf("reading the header's length: %w", err)
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n > maxHeader || int64(n) > size-8 {
		return nil, nil, 0, fmt.Errorf("the header claims %d bytes, the file has %d (and the format allows %d)", n, size, maxHeader)
	}
	header := make([]byte, n)
	if _, err := r.ReadAt(header, 8); err != nil {
		return nil, nil, 0, fmt.Errorf("reading the header: %w", err)
	}
	start = 8 + int64(n)
	entries, metadata, err = parseHeader(header, size-start)
	return entries, metadata, start, err
}

// parseHeader parses the JSON of a header that describes dataSize bytes of data.
func parseHeader(header []byte, dataSize int64) ([]entry, map[string]string, error) {
	if len(header) == 0 || header[0] != '{' {
		return nil, nil, errors.New("the header does not begin with {")
	}
	// Key by key, because a map would hide a key that is there twice.
	d := json.NewDecoder(bytes.NewReader(header))
	if _, err := d.Token(); err != nil {
		return nil, nil, fmt.Errorf("the header is no JSON: %w", err)
	}
	var entries []entry
	var metadata map[string]string
	seen := map[string]bool{}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return nil, nil, fmt.Errorf("the header is no JSON: %w", err)
		}
		key, _ := token.(string)
		if seen[key] {
			return nil, nil, fmt.Errorf("the header has %q twice", key)
		}
		seen[key] = true
		if key == metadataKey {
			if err := d.Decode(&metadata); err != nil {
				return nil, nil, fmt.Errorf("the header's metadata: %w", err)
			}
			continue
		}
		var h headerEntry
		if err := d.Decode(&h); err != nil {
			return nil, nil, fmt.Errorf("the header's entry %q: %w", key, err)
		}
		e, err := h.entry(key, dataSize)
		if err != nil {
			return nil, nil, fmt.Errorf("the header's entry %q: %w", key, err)
		}
		entries = append(entries, e)
	}
	if _, err := d.Token(); err != nil {
		return nil, nil, fmt.Errorf("the header is no JSON: %w", err)
	}
	if rest := bytes.TrimLeft(header[d.InputOffset():], " "); len(rest) > 0 {
		return nil, nil, errors.New("the header goes on after its JSON object")
	}
	slices.SortFunc(entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.Begin, b.Begin), cmp.Compare(a.End, b.End), cmp.Compare(a.Key, b.Key))
	})
	at := int64(0)
	for _, e := range entries {
		if e.Begin != at {
			return nil, nil, fmt.Errorf("%q begins at byte %d of the data, where the tensor before it ends at %d", e.Key, e.Begin, at)
		}
		at = e.End
	}
	if at != dataSize {
		return nil, nil, fmt.Errorf("the header describes %d bytes of data, the file has %d", at, dataSize)
	}
	return entries, metadata, nil
}

func (h headerEntry) entry(key string, dataSize int64) (entry, error) {
	if err := checkName(key); err != nil {
		return entry{}, err
	}
	if h.Shape == nil {
		return entry{}, errors.New("there is no shape")
	}
	n, err := elements(h.DType, h.Shape)
	if err != nil {
		return entry{}, err
	}
	if len(h.Offsets) != 2 {
		return entry{}, fmt.Errorf("data_offsets has %d numbers, not 2", len(h.Offsets))
	}
	begin, end := h.Offsets[0], h.Offsets[1]
	if begin < 0 || end < begin || end > dataSize {
		return entry{}, fmt.Errorf("data_offsets [%d, %d] lie outside the file's %d bytes of data", begin, end, dataSize)
	}
	if want := n * int64(h.DType.Size()); end-begin != want {
		return entry{}, fmt.Errorf("%s%v takes %d bytes, data_offsets give %d", h.DType, h.Shape, want, end-begin)
	}
	return entry{Key: key, DType: h.DType, Shape: h.Shape, Begin: begin, End: end}, nil
}

// WriteSafetensors writes tensors to one safetensors file at path, in place of
// whatever is there: a reader sees the old file or the whole new one. metadata may be
// nil.
func WriteSafetensors(path string, tensors []Tensor, metadata map[string]string) error {
	entries, data, err := layout(tensors)
	if err == nil {
		err = replaceFile(path, func(w io.Writer) error {
			return writeTensors(w, entries, data, metadata)
		})
	}
	if err != nil {
		return fmt.Errorf("checkpoint: writing %s: %w", path, explain(err))
	}
	return syncDir(filepath.Dir(path))
}

func writeTensors(w io.Writer, entries []entry, data []Tensor, metadata map[string]string) error {
	header, err := encodeHeader(entries, metadata)
	if err != nil {
		return err
	}
	if _, err := w.Write(header); err != nil {
		return err
	}
	for _, t := range data {
		if _, err := w.Write(t.Data); err != nil {
			return err
		}
	}
	return nil
}

// ReadSafetensors reads a whole safetensors file. Its tensors come in the order of
// their data; each is whole, with Offset 0.
func ReadSafetensors(path string) (tensors []Tensor, metadata map[string]string, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, nil, fmt.Errorf("checkpoint: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, nil, fmt.Errorf("checkpoint: %w", err)
	}
	entries, metadata, start, err := readHeader(file, info.Size())
	if err != nil {
		return nil, nil, fmt.Errorf("checkpoint: %s: %w", path, err)
	}
	for _, e := range entries {
		t := Tensor{Name: e.Key, DType: e.DType, Shape: e.Shape, Data: make([]byte, e.End-e.Begin)}
		if _, err := file.ReadAt(t.Data, start+e.Begin); err != nil {
			return nil, nil, fmt.Errorf("checkpoint: %s: reading %q: %w", path, e.Key, err)
		}
		tensors = append(tensors, t)
	}
	return tensors, metadata, nil
}
