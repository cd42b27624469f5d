package cpu

import (
	"math"

	"starling/core/device"
	"starling/core/graph"
	"starling/core/tensor"
	"starling/sdk/vec"
)

// Cross-entropy of a linear layer, a chunk of rows at a time. The parts are the kernels of the operations that they stand for,
// so the bits are theirs: products of rows do not know of other rows, and a weight gradient's chain over rows goes on from
// chunk to chunk in its result.
var linearLossKernels = []kernel{
	{"linear_cross_entropy", "f32 f32 i32", linearCrossEntropy},
	{"linear_cross_entropy", "bf16 bf16 i32", linearCrossEntropy},
	{"linear_cross_entropy_grads", "f32 f32 f32 i32", linearCrossEntropyGrads},
	{"linear_cross_entropy_grads", "f32 bf16 bf16 i32", linearCrossEntropyGrads},
}

// rowsOf is rows lo to hi of a tensor.
func rowsOf(t device.Tensor, lo, hi int) device.Tensor {
	width := lastOf(t)
	t.Offset += int64(lo*width) * int64(t.DType.Size())
	t.Shape = tensor.Shape{hi - lo, width}
	return t
}

func linearCrossEntropy(d *Device, c device.Call) (func(), error) {
	l, err := newLinearLoss(d, c, c.In[0], c.In[2], c.Out[0], c.Out[1])
	if err != nil {
		return nil, err
	}
	return l.chunks(func(lo, hi int) ([]func(), error) {
		room := rowsOf(c.Out[2], 0, hi-lo)
		logits, err := l.linear(d, device.Call{In: []device.Tensor{rowsOf(c.In[0], lo, hi), c.In[1]}, Out: []device.Tensor{room}})
		return []func(){logits, l.eachRow(room, lo, nil)}, err
	})
}

func linearCrossEntropyGrads(d *Device, c device.Call) (func(), error) {
	x, w, dw, dx := c.In[1], c.In[2], c.Out[0], c.Out[1]
	l, err := newLinearLoss(d, c, x, c.In[3], c.Out[2], c.Out[3])
	if err != nil {
		return nil, err
	}
	return l.chunks(func(lo, hi int) ([]func(), error) {
		part, room := rowsOf(x, lo, hi), rowsOf(c.Out[4], 0, hi-lo)
		logits, err := l.linear(d, device.Call{In: []device.Tensor{part, w}, Out: []device.Tensor{room}})
		if err != nil {
			return nil, err
		}
		gradX, err := l.gradX(d, device.Call{In: []device.Tensor{room, w}, Out: []device.Tensor{rowsOf(dx, lo, hi)}})
		if err != nil {
			return nil, err
		}
		gradW, err := l.gradW(d, device.Call{In: []device.Tensor{room, part}, Out: []device.Tensor{dw}, Accum: c.Accum || lo > 0})
		return []func(){logits, l.eachRow(room, lo, f32(c.In[0])), gradX, gradW}, err
	})
}

// linearLoss is what the chunks of one call share.
type linearLoss struct {
	d            *Device
	attrs        graph.LinearLossAttrs
	half         bool
	targets      []int32
	terms        []float64 // of each row that counts
	loss, weight []float32

	linear, gradX, gradW maker
}

func newLinearLoss(d *Device, c device.Call, x, targets, loss, weight device.Tensor) (*linearLoss, error) {
	a, err := attrs[graph.LinearLossAttrs](c)
	l := &linearLoss{d: d, attrs: a, targets: i32(targets), loss: f32(loss), weight: f32(weight), linear: linear, gradX: linearGradX, gradW: linearGradW}
	l.terms = make([]float64, len(l.targets))
	if x.DType == tensor.BF16 {
		l.half, l.linear, l.gradX, l.gradW = true, halfLinear, halfLinearGradX, halfLinearGradW
		if err == nil { // one row in fp32 for each thread
			err = d.reserve(padded(4*lastOf(c.Out[len(c.Out)-1])), 0)
		}
	}
	return l, err
}

// chunks makes the kernel of what one makes of rows lo to hi. The rows' losses are then summed in float64, in order.
func (l *linearLoss) chunks(one func(lo, hi int) ([]func(), error)) (func(), error) {
	var steps []func()
	for i := range blocks(len(l.targets), l.attrs.Rows) {
		part, err := one(span(i, l.attrs.Rows, len(l.targets)))
		if err != nil {
			return nil, err
		}
		steps = append(steps, part...)
	}
	return sequence(append(steps, func() {
		var sum float64
		count := 0
		for r, t := range l.targets {
			if masked(l.attrs.CrossEntropyAttrs, t) {
				continue
			}
			sum += l.terms[r]
			count++
		}
		l.loss[0], l.weight[0] = float32(sum), float32(count)
	})...), nil
}

// eachRow makes the kernel that takes the losses of a room's rows, the first of which is row lo of all. With the gradient of the loss it leaves the
// gradient of the logits in the room.
func (l *linearLoss) eachRow(room device.Tensor, lo int, dloss []float32) func() {
	rows, n := room.Shape[0], room.Shape[1]
	if !l.half {
		logits := f32(room)
		return l.d.eachRowOf(rows, n, costlyBlock, func(r int) { l.row(logits[r*n:(r+1)*n], lo+r, dloss) })
	}
	logits := bf16(room)
	group := rowsPerTask(n, costlyBlock)
	return l.d.parallel(blocks(rows, group), func(thread, task int) {
		own := l.d.ownScratch(thread)
		wide := own.floats(n)
		for r, end := span(task, group, rows); r < end; r++ {
			row := logits[r*n : (r+1)*n]
			vec.BF16ToF32(wide, row)
			l.row(wide, lo+r, dloss)
			if dloss != nil {
				vec.F32ToBF16(row, wide)
			}
		}
	})
}

// row takes the loss of row r from its logits, and makes them their gradient if there is one of the loss.
func (l *linearLoss) row(x []float32, r int, dloss []float32) {
	t := l.targets[r]
	switch {
	case masked(l.attrs.CrossEntropyAttrs, t):
		if dloss != nil {
			clear(x)
		}
	case int(t) >= len(x):
		l.terms[r] = math.NaN()
		if dloss != nil {
			vec.Fill(x, float32(math.NaN()))
		}
	default:
		lse := vec.LogSumExp(x)
		l.terms[r] = float64(lse) - float64(x[t])
		if dloss != nil {
			vec.CrossEntropyGrad(x, x, lse, int(t), dloss[0])
		}
	}
}
