package plan

import (
	"starling/core/comm"
	"starling/core/device"
	"starling/core/graph"
	"starling/core/tensor"
)

// Param is a parameter with the places that belong to it.
type Param struct {
	graph.ParamAttrs
	// Whole is the type of the whole parameter.
	Whole graph.Type
	// Place is where it lies in Params as it is used, rounded under half precision: the whole of it, or where Sharded the
	// elements Held as a vector.
	Place device.Operand
	// Exact is where the part Owned lies in fp32, in its own shape if that is all of it: in Params, or under half precision in State.
	Exact device.Operand
	// Held is the range of elements that this rank keeps where Sharded, Owned among them.
	Held comm.Range
	// Unit is the number of the unit that it belongs to where state is sharded, else -1.
	Unit    int
	Sharded bool
	// Owned is the range of its elements that this rank updates, the whole where nothing is sharded, and Shares the range of
	// each rank (nil where nothing is sharded). Empty ranges are common: a small parameter has one owner.
	Owned  comm.Range
	Shares []comm.Range
	// Uses are the accumulators of its gradient, one for each use, in trace order. Empty for a parameter that is frozen or
	// does not reach the loss: it has no slots, no partials and no update either.
	Uses []device.Operand
	// Reduced is the part Owned of each use's sum over lanes; after the norm segment the whole gradient of that part is in the
	// first.
	Reduced []device.Operand
	// Slots are its optimizer state, of the part Owned.
	Slots []SlotPlace
	// Group is the parameter's row of the table of hyper-parameters.
	Group int
	// Partials, in IO, receives the norm's partial results (Settings.Norm) for the gradient's blocks, of the part Owned:
	// f64[ceil(elements / graph.SumSquaresBlock)].
	Partials device.Operand
	// Block and Pos tell where the recipe made it.
	Block string
	Pos   graph.Position

	update Update
}

// Trained reports whether the parameter gets gradients and updates, or is a buffer that averages what the steps see.
func (p *Param) Trained() bool { return len(p.Uses) > 0 }

// Optimised reports whether the optimizer renews the parameter, and the gradient's norm counts it.
func (p *Param) Optimised() bool { return p.Trained() && !p.Buffer }

// updated reports whether this rank updates some of it.
func (p *Param) updated() bool { return p.Trained() && p.Owned.Len() > 0 }

// ownedType is the type of the part that this rank updates: a vector, or the whole parameter in its own shape.
func (p *Param) ownedType() graph.Type { return p.partType(p.Owned.Len()) }

func (p *Param) partType(n int) graph.Type {
	if n == p.Whole.Shape.Numel() {
		return p.Whole
	}
	return graph.Type{DType: p.Whole.DType, Shape: tensor.Shape{n}}
}

// OwnedPlace is where the part Owned lies in Params, as it is used.
func (p *Param) OwnedPlace() device.Operand {
	o := p.Place
	o.Shape = p.ownedType().Shape
	if p.Owned.Len() > 0 {
		o.Offset += int64(p.Owned.Lo-p.Held.Lo) * int64(o.DType.Size())
	}
	return o
}

// External reports whether the parameter's update is made outside the program.
func (p *Param) External() bool { return p.Trained() && p.update.External }

// SlotPlace is a piece of optimizer state with its place in State.
type SlotPlace struct {
	Slot
	// Key is the name under which it is stored, <parameter>/<slot>.
	Key   string
	Place device.Operand
}
