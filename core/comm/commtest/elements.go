package commtest

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"testing"

	"starling/core/comm"
	"starling/sdk/vec"
)

// typedValues are what n elements of a type are on each rank: anything, and at regular places the ends of the type, zeros of
// both signs, infinities and NaN.
func typedValues(e comm.Element, world, n int) [][]byte {
	all := make([][]byte, world)
	for r := range all {
		for i := range n {
			bits := (uint64(i+1)*0x9e3779b97f4a7c15 ^ uint64(r+1)*0xbf58476d1ce4e5b9) * 0x94d049bb133111eb
			all[r] = appendElement(all[r], e, i, r, world, bits^bits>>29)
		}
	}
	return all
}

func appendElement(b []byte, e comm.Element, i, rank, world int, bits uint64) []byte {
	if e >= comm.Int8 {
		most := int64(1)<<(8*e.Size()-1) - 1
		x := int64(bits) % most
		switch i % 16 {
		case 0:
			x = most
		case 1:
			x = -most - 1
		case 2:
			x = int64(rank) - 1
		}
		return binary.LittleEndian.AppendUint64(b, uint64(x))[:len(b)+e.Size()]
	}
	largest := map[comm.Element]float32{comm.Float16: 65504, comm.BFloat16: 0x1.fep127, comm.Float32: math.MaxFloat32}[e]
	x := (float32(bits%2000) - 1000) / 7
	switch at := i % 16; {
	case at == 0:
		x = largest
	case at == 1:
		x = -largest
	case at == 2 && rank == world/2:
		x = float32(math.NaN())
	case at == 3 && rank == 0:
		x = float32(math.Inf(1))
	case at == 4 && rank == world-1:
		x = float32(math.Inf(-1))
	case at == 5:
		x = float32(math.Copysign(0, float64(rank%2)-0.5))
	case at == 6:
		x = 1e-7 * float32(rank+1) // no normal number in float16
	}
	return appendFloat(b, e, x)
}

func appendFloat(b []byte, e comm.Element, x float32) []byte {
	var half [1]uint16
	switch e {
	case comm.Float32:
		return binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	case comm.Float16:
		vec.F32ToF16(half[:], []float32{x})
	default:
		vec.F32ToBF16(half[:], []float32{x})
	}
	return binary.LittleEndian.AppendUint16(b, half[0])
}

func floatAt(b []byte, e comm.Element, i int) float32 {
	var x [1]float32
	switch e {
	case comm.Float32:
		return math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	case comm.Float16:
		vec.F16ToF32(x[:], []uint16{binary.LittleEndian.Uint16(b[2*i:])})
	default:
		vec.BF16ToF32(x[:], []uint16{binary.LittleEndian.Uint16(b[2*i:])})
	}
	return x[0]
}

func wholeAt(b []byte, e comm.Element, i int) int64 {
	switch e {
	case comm.Int8:
		return int64(int8(b[i]))
	case comm.Int32:
		return int64(int32(binary.LittleEndian.Uint32(b[4*i:])))
	}
	return int64(binary.LittleEndian.Uint64(b[8*i:]))
}

// combination is the definition of a reduction of all ranks' values, element by element.
func combination(values [][]byte, e comm.Element, how comm.Combine) []byte {
	var out []byte
	for i := range len(values[0]) / e.Size() {
		if e >= comm.Int8 {
			out = appendWhole(out, values, e, how, i)
			continue
		}
		x := make([]float32, len(values))
		for r, v := range values {
			x[r] = floatAt(v, e, i)
			if how == comm.CombineMean {
				x[r] *= 1 / float32(len(values))
			}
		}
		total := x[0]
		switch how {
		case comm.CombineMax, comm.CombineMin:
			for _, v := range x[1:] {
				switch {
				case total != total || v != v:
					total = float32(math.NaN())
				case how == comm.CombineMax && v >= total, how == comm.CombineMin && v <= total:
					total = v
				}
			}
		default:
			total = treeSum(comm.Tree{Lanes: len(x)}, comm.Tree{Lanes: len(x)}.Root(), x)
		}
		out = appendFloat(out, e, total)
	}
	return out
}

func treeSum(t comm.Tree, node comm.Range, x []float32) float32 {
	left, right, ok := t.Children(node)
	if !ok {
		return x[node.Lo]
	}
	return treeSum(t, left, x) + treeSum(t, right, x)
}

// appendWhole appends the combination of whole numbers as numbers without limits make it, and then what is nearest.
func appendWhole(b []byte, values [][]byte, e comm.Element, how comm.Combine, i int) []byte {
	total := big.NewInt(wholeAt(values[0], e, i))
	for _, v := range values[1:] {
		x := big.NewInt(wholeAt(v, e, i))
		switch how {
		case comm.CombineMax:
			if x.Cmp(total) > 0 {
				total = x
			}
		case comm.CombineMin:
			if x.Cmp(total) < 0 {
				total = x
			}
		default:
			total.Add(total, x)
		}
	}
	if how == comm.CombineMean {
		total.Quo(total, big.NewInt(int64(len(values))))
	}
	most := int64(1)<<(8*e.Size()-1) - 1
	if total.Cmp(big.NewInt(most)) > 0 {
		total.SetInt64(most)
	}
	if total.Cmp(big.NewInt(-most-1)) < 0 {
		total.SetInt64(-most - 1)
	}
	return binary.LittleEndian.AppendUint64(b, uint64(total.Int64()))[:len(b)+e.Size()]
}

// sameElements compares elements bit by bit; of NaN there is one.
func sameElements(got, want []byte, e comm.Element) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d bytes, want %d", len(got), len(want))
	}
	for i := range len(want) / e.Size() {
		a, b := got[i*e.Size():][:e.Size()], want[i*e.Size():][:e.Size()]
		if bytes.Equal(a, b) {
			continue
		}
		if e < comm.Int8 {
			if x, y := floatAt(got, e, i), floatAt(want, e, i); x == x || y == y {
				return fmt.Errorf("element %d of %d is %v, want %v", i, len(want)/e.Size(), x, y)
			}
			continue
		}
		return fmt.Errorf("element %d of %d is %d, want %d", i, len(want)/e.Size(), wholeAt(got, e, i), wholeAt(want, e, i))
	}
	return nil
}

// unevenChunks cuts n elements into a chunk per member, of which some are much longer than others, or empty.
func unevenChunks(n, members int) []comm.Range {
	out := make([]comm.Range, members)
	at, weight, total := 0, 0, 0
	of := func(m int) int { return (m*37 + 11) % 5 }
	for m := range members {
		total += of(m)
	}
	for m := range out {
		weight += of(m)
		end := n
		if total > 0 && m < members-1 {
			end = n * weight / total
		}
		out[m] = comm.Range{Lo: at, Hi: end}
		at = end
	}
	return out
}

// slice is the part of a vector of elements of a type.
func slice(b []byte, e comm.Element, r comm.Range) []byte { return b[r.Lo*e.Size() : r.Hi*e.Size()] }

// reduction is what is expected of one reduction.
type reduction struct {
	e      comm.Element
	how    comm.Combine
	values [][]byte // by rank
	want   []byte
}

func (c reduction) String() string {
	return fmt.Sprintf("%v of %d %v", c.how, len(c.want)/c.e.Size(), c.e)
}

// elements checks reductions of every element type and combination against their definitions, bit by bit: all-reduce,
// reduce-scatter into uneven chunks, and both of lists.
func elements(t *testing.T, ts []comm.Transport) {
	var cases []reduction
	for e := comm.Float32; e <= comm.Int64; e++ {
		for how := comm.CombineSum; how <= comm.CombineMin; how++ {
			for _, n := range []int{0, 1, 3, 77, 700} {
				c := reduction{e: e, how: how, values: typedValues(e, len(ts), n)}
				c.want = combination(c.values, e, how)
				cases = append(cases, c)
			}
		}
	}
	onAll(t, ts, allRanks(ts), func(ctx context.Context, g *comm.Group) error {
		me := g.Rank()
		for _, c := range cases {
			chunks := unevenChunks(len(c.want)/c.e.Size(), g.Size())
			all, part := bytes.Clone(c.values[me]), bytes.Clone(c.values[me])
			// Both are under way at once.
			reduce, err := g.PrepareAllReduceOf("values", all, c.e, c.how)
			if err != nil {
				return err
			}
			scatter, err := g.PrepareReduceScatterOf("values", chunks, part, c.e, c.how)
			if err != nil {
				return err
			}
			for range 2 {
				copy(all, c.values[me])
				copy(part, c.values[me])
				handles := []*comm.Handle{reduce.Start(), scatter.Start()}
				for _, h := range handles {
					if err := h.Wait(ctx); err != nil {
						return err
					}
				}
				if err := sameElements(all, c.want, c.e); err != nil {
					return fmt.Errorf("all-reduce, %v: %w", c, err)
				}
				want := bytes.Clone(c.values[me])
				copy(slice(want, c.e, chunks[me]), slice(c.want, c.e, chunks[me]))
				if err := sameElements(part, want, c.e); err != nil {
					return fmt.Errorf("reduce-scatter into %v, %v: %w", chunks, c, err)
				}
			}
		}
		for at := 0; at < len(cases); at += 5 { // one type and combination each
			if err := reducedLists(ctx, g, cases[at:at+5]); err != nil {
				return err
			}
		}
		return nil
	})
}

// reducedLists checks reductions of lists: what each vector gives alone.
func reducedLists(ctx context.Context, g *comm.Group, cases []reduction) error {
	me, e, how := g.Rank(), cases[0].e, cases[0].how
	var all, parts [][]byte
	var chunks [][]comm.Range
	for _, c := range cases {
		all, parts = append(all, bytes.Clone(c.values[me])), append(parts, bytes.Clone(c.values[me]))
		chunks = append(chunks, unevenChunks(len(c.want)/e.Size(), g.Size()))
	}
	reduce, err := g.PrepareAllReduceListOf("list", all, e, how)
	if err != nil {
		return err
	}
	scatter, err := g.PrepareReduceScatterListOf("list", chunks, parts, e, how)
	if err != nil {
		return err
	}
	for _, k := range []*comm.Collective{reduce, scatter} {
		if err := k.Run(ctx); err != nil {
			return err
		}
	}
	for i, c := range cases {
		if err := sameElements(all[i], c.want, e); err != nil {
			return fmt.Errorf("all-reduce of a list, %v: %w", c, err)
		}
		want := bytes.Clone(c.values[me])
		copy(slice(want, e, chunks[i][me]), slice(c.want, e, chunks[i][me]))
		if err := sameElements(parts[i], want, e); err != nil {
			return fmt.Errorf("reduce-scatter of a list, %v: %w", c, err)
		}
	}
	return nil
}
