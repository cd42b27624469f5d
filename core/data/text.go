package data

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Text is a corpus in memory: the train stream and the holdout stream, each the
// bytes of its files with a Separator after every one. It is safe for use by several
// goroutines.
type Text struct {
	index       *TextIndex
	memory      []byte // train stream, then holdout stream; outside the garbage collector's heap
	fingerprint string
}

// Separator follows every file in a stream.
const Separator = 0

// Index is the list of files the corpus was read from.
func (t *Text) Index() *TextIndex { return t.index }

// Fingerprint is the data fingerprint that the package comment defines.
func (t *Text) Fingerprint() string { return t.fingerprint }

// Bytes is the memory the corpus holds, the same figure as TextIndex.Bytes.
func (t *Text) Bytes() int64 { return int64(len(t.memory)) }

// TrainBytes is the train stream, to be read only and not after Close.
func (t *Text) TrainBytes() []byte { return slices.Clip(t.memory[:t.index.TrainBytes]) }

// HoldoutBytes is the holdout stream, to be read only and not after Close.
func (t *Text) HoldoutBytes() []byte { return slices.Clip(t.memory[t.index.TrainBytes:]) }

// Train is the train stream as windows of context tokens.
func (t *Text) Train(context int) (*Windows, error) {
	return t.windows(t.TrainBytes(), "the train stream", context)
}

// Holdout is the holdout stream as windows of context tokens. It fails where the
// source holds nothing out.
func (t *Text) Holdout(context int) (*Windows, error) {
	if t.index.HoldoutBytes == 0 {
		return nil, fmt.Errorf("data: %s holds nothing out; give data.text a holdout, such as holdout = 0.02", t.index.Pattern)
	}
	return t.windows(t.HoldoutBytes(), "the holdout stream", context)
}

func (t *Text) windows(stream []byte, name string, context int) (*Windows, error) {
	w, err := NewWindows(stream, context)
	if err != nil {
		return nil, fmt.Errorf("%w: %s of %s", err, name, t.index.Pattern)
	}
	return w, nil
}

// Close gives the memory back. Loaders over the corpus must have been closed.
func (t *Text) Close() error {
	memory := t.memory
	t.memory = nil
	return freeBytes(memory)
}

// Windows is a byte stream cut into samples: field "tokens" (Int32 [context]) and,
// one byte later, field "targets" (Int32 [context]).
type Windows struct {
	stream  []byte
	context int
	fields  []Field
}

// NewWindows cuts stream, which must hold at least context+1 bytes.
func NewWindows(stream []byte, context int) (*Windows, error) {
	if context < 1 {
		return nil, fmt.Errorf("data: context = %d must be at least 1", context)
	}
	if len(stream) <= context {
		return nil, fmt.Errorf("data: %d bytes are too few for one sample of context = %d; use a smaller context or more text", len(stream), context)
	}
	return &Windows{
		stream:  stream,
		context: context,
		fields: []Field{
			{Name: "tokens", DType: Int32, Shape: []int{context}, Role: Input},
			{Name: "targets", DType: Int32, Shape: []int{context}, Role: Target},
		},
	}, nil
}

// WindowCount is the number of samples in a stream of n bytes, before it is read.
func WindowCount(n int64, context int) int64 {
	if n < 1 || context < 1 {
		return 0
	}
	return (n - 1) / int64(context)
}

// Len is (stream bytes - 1) / context.
func (w *Windows) Len() int64 { return WindowCount(int64(len(w.stream)), w.context) }

// Fields lists tokens and targets.
func (w *Windows) Fields() []Field { return w.fields }

// Sample writes window i.
func (w *Windows) Sample(i int64, dst []Values) error {
	if i < 0 || i >= w.Len() {
		return fmt.Errorf("no window %d of %d", i, w.Len())
	}
	at := int(i) * w.context
	window := w.stream[at : at+w.context+1]
	tokens, targets := dst[0].Int32[:w.context], dst[1].Int32[:w.context]
	for k := range tokens {
		tokens[k] = int32(window[k])
		targets[k] = int32(window[k+1])
	}
	return nil
}

// Progress is how far the reading of a corpus has come.
type Progress struct {
	Files, TotalFiles int
	Bytes, TotalBytes int64
}

// ErrChanged is wrapped by the error of a file whose size is not what ScanText saw.
var ErrChanged = errors.New("the file changed while it was being read")

// OpenText lists and reads a corpus in one go: ScanText, then Load.
func OpenText(ctx context.Context, cfg TextConfig, progress func(Progress)) (*Text, error) {
	index, err := ScanText(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return index.Load(ctx, progress)
}
