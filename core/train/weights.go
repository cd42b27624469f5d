package train

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"starling/core/checkpoint"
	"starling/core/device"
	"starling/core/graph"
	"starling/core/plan"
	"starling/core/plugin"
	"starling/core/tensor"
	"starling/sdk/vec"
)

// fillPiece is how many elements of a parameter are in hand at once while its rounded form is made: a multiple of a norm block.
const fillPiece = 1 << 16

// fill sets what this rank holds of a parameter: the exact form of what it owns, and under half precision the rounded form of what it
// uses. get gives elements first, first+1, … of the exact form.
func (e *engine) fill(q *plan.Param, get func(first int, dst []float32) error) error {
	first, held := 0, q.Whole.Shape.Numel()
	if q.Sharded {
		first, held = q.Held.Lo, q.Held.Len()
	}
	if held > 0 && q.Place.DType == tensor.F32 {
		return get(first, device.View[float32](e.mem, q.Place))
	}
	var own []float32 // the exact form, where this rank has it
	if q.Owned.Len() > 0 && e.mem.Arenas[device.State] != nil {
		own = device.View[float32](e.mem, q.Exact)
		if err := get(q.Owned.Lo, own); err != nil {
			return err
		}
	}
	if held == 0 {
		return nil
	}
	rounded := device.View[uint16](e.mem, q.Place)
	var room []float32
	for at := 0; at < held; at += fillPiece {
		n := min(fillPiece, held-at)
		var exact []float32
		if lo := first + at - q.Owned.Lo; own != nil && lo >= 0 && lo+n <= len(own) {
			exact = own[lo : lo+n]
		} else {
			if room == nil {
				room = make([]float32, min(held, fillPiece))
			}
			exact = room[:n]
			if err := get(first+at, exact); err != nil {
				return err
			}
		}
		if q.Place.DType == tensor.BF16 {
			vec.F32ToBF16(rounded[at:at+n], exact)
		} else {
			vec.F32ToF16(rounded[at:at+n], exact)
		}
	}
	return nil
}

// initialise draws the parameters' initial values and the slots'.
func (e *engine) initialise(seed uint64) error {
	for i := range e.plan.Params {
		q := &e.plan.Params[i]
		err := e.fill(q, func(first int, dst []float32) error {
			graph.InitValues(q.ParamAttrs, seed, first, dst)
			return nil
		})
		if err != nil {
			return err
		}
		for _, s := range q.Slots {
			if s.Init == 0 {
				continue // as every arena begins; to write it would only bring the pages in earlier
			}
			v := device.View[float32](e.mem, s.Place)
			for i := range v {
				v[i] = float32(s.Init)
			}
		}
	}
	return nil
}

// loadWeights fills the parameters from a checkpoint, whatever number of ranks wrote it.
func (e *engine) loadWeights(c *checkpoint.Checkpoint) error {
	for i := range e.plan.Params {
		q := &e.plan.Params[i]
		if err := fits(c, q.Name, checkpoint.F32, q.Whole.Shape); err != nil {
			return err
		}
		err := e.fill(q, func(first int, dst []float32) error { return c.ReadRange(q.Name, int64(first), tensor.Bytes(dst)) })
		if err != nil {
			return err
		}
	}
	return nil
}

// loadState fills this rank's part of the optimizer state from a checkpoint, but that of plugins which are upgraded.
func (e *engine) loadState(c *checkpoint.Checkpoint, upgraded plugin.Versions) error {
	for i := range e.plan.Params {
		if _, ok := e.pluginOf(&e.plan.Params[i], upgraded); ok {
			continue
		}
		for _, t := range e.slots(&e.plan.Params[i]) {
			if err := fits(c, t.Name, t.DType, t.Shape); err != nil {
				return err
			}
			if err := c.ReadRange(t.Name, t.Offset, t.Data); err != nil {
				return err
			}
		}
	}
	return nil
}

// fits checks that a checkpoint holds a tensor of the wanted type.
func fits(c *checkpoint.Checkpoint, name string, dtype checkpoint.DType, shape []int) error {
	info, ok := c.Lookup(name)
	if !ok {
		return fmt.Errorf("it holds no tensor %q", name)
	}
	if info.DType != dtype || !slices.Equal(info.Shape, shape) {
		return fmt.Errorf("%s is %s%v there and %s%v in the recipe", name, info.DType, info.Shape, dtype, shape)
	}
	return nil
}

// tensors lists this rank's part of parameters, in their exact form, and of optimizer state for a checkpoint, as views of the
// arenas.
func (e *engine) tensors() ([]checkpoint.Tensor, error) {
	var out []checkpoint.Tensor
	for i := range e.plan.Params {
		q := &e.plan.Params[i]
		if q.Owned.Len() > 0 && (e.env.Rank == 0 || len(e.plan.Units) > 0) {
			out = append(out, e.piece(q.Name, q, q.Exact))
			out = append(out, e.slots(q)...)
		}
	}
	out = append(out, e.lossy.tensors()...)
	for _, t := range out {
		if err := t.Validate(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// slots lists this rank's part of a parameter's optimizer state.
func (e *engine) slots(q *plan.Param) []checkpoint.Tensor {
	var out []checkpoint.Tensor
	if q.Owned.Len() == 0 {
		return nil
	}
	for _, s := range q.Slots {
		t := e.piece(s.Key, q, s.Place)
		if s.Block > 0 {
			n := q.Whole.Shape.Numel()
			t.Shape, t.Offset = []int{(n + s.Block - 1) / s.Block}, int64(q.Owned.Lo/s.Block)
		}
		if s.Own {
			t.Shape, t.Offset = s.Place.Shape, 0
		}
		out = append(out, t)
	}
	return out
}

// piece is the part Owned of a parameter, or of state like it, at a place.
func (e *engine) piece(name string, q *plan.Param, o device.Operand) checkpoint.Tensor {
	return checkpoint.Tensor{Name: name, DType: checkpoint.DType(o.DType.Safetensors()), Shape: q.Whole.Shape, Offset: int64(q.Owned.Lo),
		Data: device.View[byte](e.mem, o)}
}

// hash is the SHA-256 of all weights in their exact form (see checkpoint.WeightsHash). Where no rank has all of them their
// pieces pass by every rank, one at a time.
func (e *engine) hash(ctx context.Context) (string, error) {
	h := sha256.New()
	var room []byte
	for i := range e.plan.Params {
		q := &e.plan.Params[i]
		if q.Shares == nil {
			h.Write(device.View[byte](e.mem, q.Exact))
			continue
		}
		if !q.Sharded && q.Place.DType == tensor.F32 {
			h.Write(device.View[byte](e.mem, q.Place))
			continue
		}
		for _, r := range e.plan.ShareOrder(q) {
			share := q.Shares[r]
			if share.Len() == 0 {
				continue
			}
			room = slices.Grow(room[:0], 4*share.Len())[:4*share.Len()]
			if r == e.env.Rank {
				copy(room, device.View[byte](e.mem, q.Exact))
			}
			if err := e.env.Group.Broadcast(ctx, "hash of "+q.Name, r, room); err != nil {
				return "", err
			}
			h.Write(room)
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
