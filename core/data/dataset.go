package data

import (
	"fmt"
	"unsafe"
)

// DType is the element type of a field.
type DType uint8

const (
	// Int32 marks token ids, class labels and other integers.
	Int32 DType = iota
	// Float32 marks real-valued features.
	Float32
)

// Size is the number of bytes of one element; every field type has four.
func (d DType) Size() int { return 4 }

// String gives the name that a graph dump uses: "i32" or "f32".
func (d DType) String() string {
	if d == Float32 {
		return "f32"
	}
	return "i32"
}

// Role says what padding writes into a field and whether its elements count.
type Role uint8

const (
	// Input fields are what the model sees; padding writes zeros.
	Input Role = iota
	// Target fields are what the loss compares with. Padding writes Masked into those that
	// are Int32, and their elements that are not negative make up Batch.Weight; into others it
	// writes zeros.
	Target
)

// Masked is the target value that a loss ignores.
const Masked = -1

// Field describes one value of a sample.
type Field struct {
	Name  string // as the recipe reads it: batch.<name>
	DType DType
	Shape []int // of one sample, without the batch dimension; empty for a scalar
	Role  Role
}

// Elements is the number of elements in one sample.
func (f Field) Elements() int {
	n := 1
	for _, d := range f.Shape {
		n *= d
	}
	return n
}

// Dataset is a finite, ordered set of samples of equal shape. Its methods may be
// called from several goroutines at once.
type Dataset interface {
	// Len is the number of samples, at least one.
	Len() int64
	// Fields lists the values of a sample. The result is constant and shared.
	Fields() []Field
	// Sample writes sample i, 0 <= i < Len(), into dst, which holds one Values per
	// field, each of exactly Field.Elements elements. It allocates nothing.
	Sample(i int64, dst []Values) error
}

// Values is a run of elements: the slice of the field's type is set, the other
// is nil.
type Values struct {
	Int32   []int32
	Float32 []float32
}

// Len is the number of elements.
func (v Values) Len() int { return len(v.Int32) + len(v.Float32) }

// Bytes is the memory of the elements, in the machine's byte order, without a copy.
func (v Values) Bytes() []byte {
	switch {
	case len(v.Int32) > 0:
		return unsafe.Slice((*byte)(unsafe.Pointer(&v.Int32[0])), 4*len(v.Int32))
	case len(v.Float32) > 0:
		return unsafe.Slice((*byte)(unsafe.Pointer(&v.Float32[0])), 4*len(v.Float32))
	}
	return nil
}

func (v Values) slice(lo, hi int) Values {
	if v.Float32 != nil {
		return Values{Float32: v.Float32[lo:hi:hi]}
	}
	return Values{Int32: v.Int32[lo:hi:hi]}
}

func makeValues(d DType, n int) Values {
	if d == Float32 {
		return Values{Float32: make([]float32, n)}
	}
	return Values{Int32: make([]int32, n)}
}

// Column is one field of a whole batch: Values holds the samples one after
// another, so its shape is [batch, Field.Shape...].
type Column struct {
	Field
	Values
}

// Batch is one micro-batch of one step.
type Batch struct {
	Step  int64 // the step it belongs to
	Epoch int64 // the epoch of that step
	Index int   // its micro-batch number in the step

	// Samples is the number of real samples; the rest of the batch is padding.
	Samples int
	// Weight is the exact number of Int32 target elements that count (not Masked): a
	// language model's tokens, or a classifier's samples. Without a field of that kind, as in
	// regression, it is the number of samples. It is 0 for a batch of padding.
	Weight int64

	Columns []Column

	indices []int64
	rows    [][]Values // rows[r] views row r of every column
	release func()     // nil for a batch of NewBatch
}

// NewBatch allocates a batch of size samples of the given fields.
func NewBatch(fields []Field, size int) *Batch {
	b := &Batch{
		Columns: make([]Column, len(fields)),
		indices: make([]int64, size),
		rows:    make([][]Values, size),
	}
	for k, f := range fields {
		b.Columns[k] = Column{Field: f, Values: makeValues(f.DType, size*f.Elements())}
	}
	views := make([]Values, size*len(fields))
	for r := range b.rows {
		b.rows[r], views = views[:len(fields):len(fields)], views[len(fields):]
		for k, f := range fields {
			n := f.Elements()
			b.rows[r][k] = b.Columns[k].slice(r*n, (r+1)*n)
		}
	}
	return b
}

// BatchBytes is what the elements of NewBatch(fields, size) occupy.
func BatchBytes(fields []Field, size int) int64 {
	var n int64
	for _, f := range fields {
		n += int64(size) * int64(f.Elements()) * int64(f.DType.Size())
	}
	return n
}

// Size is the number of samples the batch has room for, padding included.
func (b *Batch) Size() int { return len(b.rows) }

// Indices lists the dataset's sample numbers in the batch, -1 for padding. It is
// valid until Release.
func (b *Batch) Indices() []int64 { return b.indices }

// Column is the column of the field called name, or nil where there is none.
func (b *Batch) Column(name string) *Column {
	for k := range b.Columns {
		if b.Columns[k].Name == name {
			return &b.Columns[k]
		}
	}
	return nil
}

// Release gives the batch back to its loader, which will overwrite it. It must
// be called once for every batch that Next returned; on a batch from NewBatch it
// does nothing.
func (b *Batch) Release() {
	if b.release != nil {
		b.release()
	}
}

// Fill reads micro-batch index of step into the batch. An error names the
// sample that could not be read.
func (b *Batch) Fill(ds Dataset, s *Sampler, step int64, index int) error {
	b.Step, b.Index = step, index
	b.Epoch, _ = s.Position(step)
	b.Samples, b.Weight = 0, 0
	s.Indices(b.indices, step, index)
	for r, i := range b.indices {
		if i < 0 {
			b.pad(r)
			continue
		}
		if err := ds.Sample(i, b.rows[r]); err != nil {
			return fmt.Errorf("data: step %d, micro-batch %d: sample %d: %w", step, index, i, err)
		}
		b.Samples++
		b.Weight += b.weigh(r)
	}
	return nil
}

func (b *Batch) pad(row int) {
	for k, v := range b.rows[row] {
		clear(v.Float32)
		clear(v.Int32)
		if b.Columns[k].Role == Target {
			for j := range v.Int32 {
				v.Int32[j] = Masked
			}
		}
	}
}

func (b *Batch) weigh(row int) (n int64) {
	counted := false
	for k, v := range b.rows[row] {
		if b.Columns[k].Role != Target || b.Columns[k].DType != Int32 {
			continue
		}
		counted = true
		for _, t := range v.Int32 {
			if t >= 0 {
				n++
			}
		}
	}
	if !counted {
		return 1
	}
	return n
}
