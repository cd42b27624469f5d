package cpu

import (
	"math"

	"starling/core/device"
	"starling/core/graph"
	"starling/sdk/vec"
)

// Normalisation of channels over the batch. A task takes whole channels; a channel's sums are those of its pieces, added in float64 in order.
var batchNormKernels = []kernel{
	{"batch_norm", "f32 f32 f32 f32 f32", batchNorm},
	{"batch_norm_fixed", "f32 f32 f32 f32 f32", batchNormFixed},
	{"batch_norm_grad", "f32 f32 f32 f32", batchNormGrad},
	{"average", "f32 f32", average},
}

const (
	// channelPiece is how much of a channel is worked on at once, small enough for the first-level cache.
	channelPiece = 4096
	// shortPlane is the length below which the planes of a channel are gathered in one row first.
	shortPlane = 64
)

// channelsOf is the geometry of x[N,C,…].
type channelsOf struct{ n, c, plane int }

func newChannels(x []int) channelsOf { return channelsOf{x[0], x[1], prod(x[2:])} }

// elements is the number of elements of a channel.
func (g channelsOf) elements() int { return g.n * g.plane }

// gathered reports whether a channel is gathered before it is worked on.
func (g channelsOf) gathered() bool { return g.plane < shortPlane && g.n > 1 }

// floats is the scratch memory that a task needs for a number of operands of a channel.
func (g channelsOf) floats(operands int) int {
	if g.gathered() {
		return operands * g.elements()
	}
	return 0
}

// pieces calls f with the ranges of a channel's pieces in a tensor, or in a gathered row.
func (g channelsOf) pieces(c int, f func(lo, hi int)) {
	if g.gathered() {
		for lo := 0; lo < g.elements(); lo += channelPiece {
			f(lo, min(lo+channelPiece, g.elements()))
		}
		return
	}
	for n := range g.n {
		first := (n*g.c + c) * g.plane
		for lo := 0; lo < g.plane; lo += channelPiece {
			f(first+lo, first+min(lo+channelPiece, g.plane))
		}
	}
}

// row returns where a channel of x is to be read: x itself, or a gathered copy of the channel in room.
func (g channelsOf) row(x, room []float32, c int) []float32 {
	if !g.gathered() {
		return x
	}
	for n := range g.n {
		copy(room[n*g.plane:(n+1)*g.plane], x[(n*g.c+c)*g.plane:])
	}
	return room
}

// scatter puts a gathered row back; y itself needs no more.
func (g channelsOf) scatter(y, row []float32, c int) {
	if !g.gathered() {
		return
	}
	for n := range g.n {
		copy(y[(n*g.c+c)*g.plane:][:g.plane], row[n*g.plane:])
	}
}

// eachChannel makes a kernel that calls f for every channel with a thread's scratch memory: the gathered rows of operands and a piece.
func (d *Device) eachChannel(g channelsOf, operands int, f func(c int, rooms [][]float32, t []float32)) (func(), error) {
	if err := d.reserve(padded(4*channelPiece)+operands*padded(4*g.floats(1)), 0); err != nil {
		return nil, err
	}
	rooms := make([][][]float32, d.pool.threads)
	for i := range rooms {
		rooms[i] = make([][]float32, operands)
	}
	group := rowsPerTask(g.elements(), costlyBlock)
	return d.parallel(blocks(g.c, group), func(thread, task int) {
		own := d.ownScratch(thread)
		t := own.floats(channelPiece)
		for i := range operands {
			rooms[thread][i] = own.floats(g.floats(1))
		}
		lo, hi := span(task, group, g.c)
		for c := lo; c < hi; c++ {
			f(c, rooms[thread], t)
		}
	}), nil
}

func batchNorm(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.NormAttrs](c)
	if err != nil {
		return nil, err
	}
	g := newChannels(c.In[0].Shape)
	x, w, b := f32(c.In[0]), f32(c.In[1]), f32(c.In[2])
	y, stats, means, variances := f32(c.Out[0]), f32(c.Out[1]), f32(c.Out[2]), f32(c.Out[3])
	m := float64(g.elements())
	return d.eachChannel(g, 2, func(c int, rooms [][]float32, t []float32) {
		from, to := g.row(x, rooms[0], c), y
		if g.gathered() {
			to = rooms[1]
		}
		sum := 0.0
		g.pieces(c, func(lo, hi int) { sum += float64(vec.Sum(from[lo:hi])) })
		// Around a first mean the second is exact, and the squares lose nothing to it.
		mean, first, squares := float32(sum/m), 0.0, 0.0
		g.pieces(c, func(lo, hi int) {
			t := t[:hi-lo]
			vec.AddScalar(t, from[lo:hi], -mean)
			first += float64(vec.Sum(t))
			squares += vec.SumSq64(t)
		})
		squares -= float64(first * first / m)
		mean = float32(float64(mean) + first/m)
		rstd := float32(1 / math.Sqrt(squares/m+a.Eps))
		stats[2*c], stats[2*c+1] = mean, rstd
		means[c], variances[c] = mean, float32(squares/(m-1))
		g.pieces(c, func(lo, hi int) { vec.ChannelNorm(to[lo:hi], from[lo:hi], mean, float32(rstd*w[c]), b[c]) })
		g.scatter(y, to, c)
	})
}

func batchNormFixed(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.NormAttrs](c)
	if err != nil {
		return nil, err
	}
	g := newChannels(c.In[0].Shape)
	x, w, b, mean, variance, y := f32(c.In[0]), f32(c.In[1]), f32(c.In[2]), f32(c.In[3]), f32(c.In[4]), f32(c.Out[0])
	return d.eachRowOf(g.n*g.c, g.plane, costlyBlock, func(r int) {
		c := r % g.c
		rstd := float32(1 / math.Sqrt(float64(variance[c])+a.Eps))
		lo, hi := r*g.plane, (r+1)*g.plane
		vec.ChannelNorm(y[lo:hi], x[lo:hi], mean[c], float32(rstd*w[c]), b[c])
	}), nil
}

func batchNormGrad(d *Device, c device.Call) (func(), error) {
	g := newChannels(c.In[0].Shape)
	dy, x, w, stats := f32(c.In[0]), f32(c.In[1]), f32(c.In[2]), f32(c.In[3])
	dx, dw, db := f32(c.Out[0]), f32(c.Out[1]), f32(c.Out[2])
	m := float64(g.elements())
	return d.eachChannel(g, 2, func(c int, rooms [][]float32, t []float32) {
		up, from, to := g.row(dy, rooms[0], c), g.row(x, rooms[1], c), dx
		if g.gathered() {
			to = rooms[0]
		}
		mean, rstd := stats[2*c], stats[2*c+1]
		sum, products := 0.0, 0.0
		g.pieces(c, func(lo, hi int) {
			t := t[:hi-lo]
			vec.AddScalar(t, from[lo:hi], -mean)
			sum += float64(vec.Sum(up[lo:hi]))
			products += float64(vec.Dot(up[lo:hi], t))
		})
		products = float64(products * float64(rstd))
		dw[c], db[c] = float32(products), float32(sum)
		shift, slope := float32(sum/m), float32(products/m*float64(rstd))
		scale := float32(w[c] * rstd)
		g.pieces(c, func(lo, hi int) { vec.ChannelNormGrad(to[lo:hi], up[lo:hi], from[lo:hi], mean, shift, slope, scale) })
		g.scatter(dx, to, c)
	})
}

// average is small work: a buffer has an element for each channel.
func average(d *Device, c device.Call) (func(), error) {
	a, err := attrs[graph.AverageAttrs](c)
	if err != nil {
		return nil, err
	}
	out, prepare := d.renewed(c, 0)
	y, sum, weight, rate := out[0], f32(c.In[1]), float32(a.Weight), float32(a.Rate)
	return sequence(prepare, func() {
		for i, v := range y {
			step := float32(sum[i]*weight) - v
			y[i] = v + float32(rate*step)
		}
	}), nil
}
