package data

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

// Array is a dataset held in memory: samples of real features, each with a class
// label or with a real number to predict. Fields: "features" (Float32, of any shape), and
// "labels" (Int32, scalar) or "targets" (Float32 [1]).
type Array struct {
	features []float32      // nil where there are pixels
	pixels   []uint8        // [channel, row, column] of each sample
	levels   [][256]float32 // the value of a pixel, for each channel
	labels   []int32        // nil where there are targets
	targets  []float32      // nil where there are labels
	classes  int            // 0 where there are targets
	each     int            // features a sample
	fields   []Field
}

// NewArray makes a dataset of len(labels) samples. features holds them one after
// another, each of the given shape; both slices are kept, not copied. Labels are
// 0 … classes-1; classes = 0 means one more than the largest label.
func NewArray(features []float32, shape []int, labels []int32, classes int) (*Array, error) {
	each, err := featuresEach(features, shape, len(labels))
	if err != nil {
		return nil, err
	}
	if classes == 0 {
		for _, y := range labels {
			classes = max(classes, int(y)+1)
		}
	}
	for i, y := range labels {
		if y < 0 || int(y) >= classes {
			return nil, fmt.Errorf("data: sample %d has label %d; labels are 0 to %d", i, y, classes-1)
		}
	}
	return &Array{
		features: features,
		labels:   labels,
		classes:  classes,
		each:     each,
		fields:   LabelledFields(shape),
	}, nil
}

// NewRegression makes a dataset of len(targets) samples, each with one real number to
// predict. The rest is as in NewArray.
func NewRegression(features []float32, shape []int, targets []float32) (*Array, error) {
	each, err := featuresEach(features, shape, len(targets))
	if err != nil {
		return nil, err
	}
	return &Array{features: features, targets: targets, each: each, fields: RegressionFields(shape)}, nil
}

// LabelledFields are the fields of NewArray's datasets.
func LabelledFields(shape []int) []Field {
	return []Field{
		{Name: "features", DType: Float32, Shape: slices.Clone(shape), Role: Input},
		{Name: "labels", DType: Int32, Role: Target},
	}
}

// RegressionFields are the fields of NewRegression's datasets.
func RegressionFields(shape []int) []Field {
	return []Field{
		{Name: "features", DType: Float32, Shape: slices.Clone(shape), Role: Input},
		{Name: "targets", DType: Float32, Shape: []int{1}, Role: Target},
	}
}

// newPixels makes a dataset of images of one byte an element, which levels turns into features, channel by channel.
func newPixels(pixels []uint8, shape []int, labels []int32, classes int, levels [][256]float32) (*Array, error) {
	each := shape[0] * shape[1] * shape[2]
	if len(labels) == 0 || len(pixels) != each*len(labels) {
		return nil, fmt.Errorf("data: %d images of shape %v need %d bytes, there are %d", len(labels), shape, each*len(labels), len(pixels))
	}
	return &Array{pixels: pixels, levels: levels, labels: labels, classes: classes, each: each, fields: LabelledFields(shape)}, nil
}

// pixelLevels are the values of bytes as fractions of 255, less a channel's mean, over its standard deviation.
func pixelLevels(mean, deviation []float64) [][256]float32 {
	out := make([][256]float32, len(mean))
	for c := range out {
		for v := range out[c] {
			out[c][v] = float32((float64(v)/255 - mean[c]) / deviation[c])
		}
	}
	return out
}

// featuresEach is the number of features of one of n samples.
func featuresEach(features []float32, shape []int, n int) (int, error) {
	each := 1
	for _, d := range shape {
		if d < 1 {
			return 0, fmt.Errorf("data: feature shape %v has an empty dimension", shape)
		}
		each *= d
	}
	if n == 0 {
		return 0, errors.New("data: a dataset needs at least one sample")
	}
	if len(features) != each*n {
		return 0, fmt.Errorf("data: %d samples of shape %v need %d features, there are %d", n, shape, each*n, len(features))
	}
	return each, nil
}

// Len is the number of samples.
func (a *Array) Len() int64 { return int64(len(a.labels) + len(a.targets)) }

// Classes is the number of classes, 0 where the samples have targets.
func (a *Array) Classes() int { return a.classes }

// Fields lists features, and labels or targets.
func (a *Array) Fields() []Field { return a.fields }

// Bytes is the memory that the samples hold.
func (a *Array) Bytes() int64 { return 4*(int64(len(a.features))+a.Len()) + int64(len(a.pixels)) }

// Sample writes sample i.
func (a *Array) Sample(i int64, dst []Values) error {
	if i < 0 || i >= a.Len() {
		return fmt.Errorf("no sample %d of %d", i, a.Len())
	}
	if a.pixels != nil {
		plane := a.each / len(a.levels)
		image := a.pixels[int(i)*a.each:][:a.each]
		for c := range a.levels {
			to := dst[0].Float32[c*plane : (c+1)*plane]
			for k, v := range image[c*plane : (c+1)*plane] {
				to[k] = a.levels[c][v]
			}
		}
	} else {
		copy(dst[0].Float32, a.features[int(i)*a.each:][:a.each])
	}
	if a.targets != nil {
		dst[1].Float32[0] = a.targets[i]
	} else {
		dst[1].Int32[0] = a.labels[i]
	}
	return nil
}

// Fingerprint is the SHA-256, in hexadecimal, of "starling array fingerprint v1\n", the
// number of samples and of feature dimensions and each dimension (8 bytes,
// little-endian, each), the features (float32, little-endian) and the labels (int32, little-endian).
// With targets (float32, little-endian) in place of labels the first line is "starling regression fingerprint v1\n"; with pixels (a byte each) in
// place of features it is "starling pixels fingerprint v1\n", and the value of each byte (float32, little-endian) follows the dimensions, channel by channel.
func (a *Array) Fingerprint() string {
	h := sha256.New()
	switch {
	case a.pixels != nil:
		io.WriteString(h, "starling pixels fingerprint v1\n")
	case a.targets != nil:
		io.WriteString(h, "starling regression fingerprint v1\n")
	default:
		io.WriteString(h, "starling array fingerprint v1\n")
	}
	var buf [1 << 13]byte
	n := 0
	flush := func() { h.Write(buf[:n]); n = 0 }
	put64 := func(v int) {
		binary.LittleEndian.PutUint64(buf[n:], uint64(v))
		n += 8
	}
	put64(int(a.Len()))
	put64(len(a.fields[0].Shape))
	for _, d := range a.fields[0].Shape {
		put64(d)
	}
	flush()
	put32 := func(v uint32) {
		binary.LittleEndian.PutUint32(buf[n:], v)
		if n += 4; n == len(buf) {
			flush()
		}
	}
	for _, table := range a.levels {
		for _, v := range table {
			put32(math.Float32bits(v))
		}
	}
	flush()
	h.Write(a.pixels)
	for _, v := range a.features {
		put32(math.Float32bits(v))
	}
	for _, y := range a.labels {
		put32(uint32(y))
	}
	for _, y := range a.targets {
		put32(math.Float32bits(y))
	}
	flush()
	return hex.EncodeToString(h.Sum(nil))
}

// Split holds out the samples whose hash lies in the lowest fraction of all hashes,
// at least one and not all. The hash is of the sample's index, so that it does
// not move when samples are appended. Samples keep their order.
func (a *Array) Split(holdout float64) (train, held *Array, err error) {
	if !(holdout > 0 && holdout < 1) {
		return nil, nil, fmt.Errorf("data: holdout = %v must be more than 0 and less than 1", holdout)
	}
	if a.Len() < 2 {
		return nil, nil, errors.New("data: a dataset of one sample cannot be split; use more samples or holdout = 0")
	}
	limit := uint64(math.Ldexp(holdout, 64))
	out := make([]bool, a.Len())
	n, lowest, highest := 0, 0, 0
	for i := range out {
		h := indexHash(i)
		if h < limit {
			out[i] = true
			n++
		}
		if h < indexHash(lowest) {
			lowest = i
		}
		if h > indexHash(highest) {
			highest = i
		}
	}
	switch n {
	case 0:
		out[lowest] = true
	case len(out):
		out[highest] = false
	}
	return a.pick(out, false), a.pick(out, true), nil
}

// indexHash mixes the index twice, with an offset, so that index 0 is no fixed point.
func indexHash(i int) uint64 { return mix64(mix64(uint64(i)+goldenGamma) + goldenGamma) }

func (a *Array) pick(mark []bool, want bool) *Array {
	n := 0
	for _, m := range mark {
		if m == want {
			n++
		}
	}
	p := &Array{
		levels:  a.levels,
		classes: a.classes,
		each:    a.each,
		fields:  a.fields,
	}
	if a.pixels != nil {
		p.pixels = make([]uint8, 0, n*a.each)
	} else {
		p.features = make([]float32, 0, n*a.each)
	}
	for i, m := range mark {
		if m == want {
			if a.pixels != nil {
				p.pixels = append(p.pixels, a.pixels[i*a.each:][:a.each]...)
			} else {
				p.features = append(p.features, a.features[i*a.each:][:a.each]...)
			}
			if a.targets != nil {
				p.targets = append(p.targets, a.targets[i])
			} else {
				p.labels = append(p.labels, a.labels[i])
			}
		}
	}
	return p
}
