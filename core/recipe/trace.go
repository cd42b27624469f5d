package recipe

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"go.starlark.net/starlark"

	"starling/core/graph"
	"starling/core/tensor"
	"starling/core/train"
)

// Keys of thread-local values.
const (
	localSession = "session"
	localTrace   = "trace"
)

// trace is one run of a recipe's function over symbolic tensors, which leaves a graph. It belongs to one thread.
type trace struct {
	thread   *starlark.Thread
	builder  *graph.Builder
	training bool

	classes int // of the labels, 0 where that is not known

	path   []string           // the blocks that are open
	params map[string]*Tensor // by full name
	draws  map[string]int     // random draws so far in each block
	rng    *Tensor

	// shared, where not nil, lets operations that are in the graph already stand for new ones that equal
	// them. Metrics are traced so: calling the model again costs nothing and makes no second set of parameters.
	shared map[nodeKey]*graph.Node

	// block is the innermost block that was open when the first error passed, for the message.
	block string
	// late is a mistake found where Starlark takes no error, such as in x[::2]; the next operation reports it.
	late error
}

type nodeKey struct {
	op    *graph.Op
	attrs any
	in    string
}

func newTrace(thread *starlark.Thread, training bool) *trace {
	t := &trace{thread: thread, builder: graph.NewBuilder(), training: training, params: map[string]*Tensor{}, draws: map[string]int{}}
	thread.SetLocal(localTrace, t)
	return t
}

// tracing returns the trace that a builtin is called in.
func (c *call) tracing() (*trace, error) {
	if t, ok := c.thread.Local(localTrace).(*trace); ok {
		return t, nil
	}
	return nil, c.errorf("tensors exist only while a model is traced; call this inside the function given to train(loss = …), or a function that it calls")
}

// layerError is a mistake in a model: it knows what failed, and the converter of errors adds where.
type layerError struct{ msg string }

func (e *layerError) Error() string { return e.msg }

// apply appends an operation. what names it for people where no layer of nn is running, such as "ops.matmul".
func (t *trace) apply(what, op string, attrs any, in ...*Tensor) ([]*Tensor, error) {
	if err := t.late; err != nil {
		t.late = nil
		return nil, err
	}
	entry, err := graph.Lookup(op)
	if err != nil {
		return nil, err
	}
	values := make([]*graph.Value, len(in))
	for i, x := range in {
		if x.trace != t {
			return nil, fmt.Errorf("%s: a tensor of another trace is used; tensors live only as long as the call of the function that made them", what)
		}
		values[i] = x.value
	}
	key := nodeKey{entry, attrs, idList(values)}
	if n := t.shared[key]; n != nil {
		return t.wrap(n.Out), nil
	}
	t.builder.Pos, t.builder.Block = position(t.thread), t.blockPath()
	out, err := t.builder.Apply(entry, attrs, values...)
	if err != nil {
		if l := layer(t.thread); l != "" {
			what = l
		}
		msg := err.Error()
		var e *graph.Error
		if errors.As(err, &e) {
			msg = e.Msg
		}
		return nil, &layerError{what + ": " + msg}
	}
	if t.shared != nil {
		t.shared[key] = out[0].Def
	}
	return t.wrap(out), nil
}

// apply1 is apply for operations whose first result is the one that recipes see.
func (t *trace) apply1(what, op string, attrs any, in ...*Tensor) (starlark.Value, error) {
	out, err := t.apply(what, op, attrs, in...)
	if err != nil {
		return nil, err
	}
	return out[0], nil
}

func (t *trace) wrap(values []*graph.Value) []*Tensor {
	out := make([]*Tensor, len(values))
	for i, v := range values {
		out[i] = &Tensor{t, v}
	}
	return out
}

func idList(values []*graph.Value) string {
	var b strings.Builder
	for _, v := range values {
		b.WriteString(v.String())
	}
	return b.String()
}

// share starts sharing: see trace.shared.
func (t *trace) share() {
	t.shared = map[nodeKey]*graph.Node{}
	for _, n := range t.builder.G.Nodes {
		t.shared[nodeKey{n.Op, n.Attrs, idList(n.In)}] = n
	}
}

// input makes an input of the graph.
func (t *trace) input(name string, typ graph.Type) (*Tensor, error) {
	out, err := t.apply("batch."+name, "input", graph.InputAttrs{Name: name, DType: typ.DType, Shape: graph.MakeDims(typ.Shape)})
	if err != nil {
		return nil, err
	}
	return out[0], nil
}

func (t *trace) blockPath() string { return strings.Join(t.path, ".") }

// fullName puts the open blocks before a name.
func (t *trace) fullName(name string) string {
	if len(t.path) == 0 {
		return name
	}
	return t.blockPath() + "." + name
}

// checkName refuses names that could not stand in a parameter's path.
func checkName(c *call, name string) error {
	if name == "" {
		return c.bad("name", "the name is empty")
	}
	for _, part := range strings.Split(name, ".") {
		if part == "" || strings.Trim(part, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") != "" {
			return c.bad("name", "name %q: use letters, digits, _ and -, with single dots between parts", name)
		}
	}
	return nil
}

// param makes a parameter or buffer; the open blocks go before its name.
func (t *trace) param(c *call, attrs graph.ParamAttrs) (*Tensor, error) {
	full := t.fullName(attrs.Name)
	attrs.Name = full
	if old := t.params[full]; old != nil {
		if t.shared != nil && old.value.Def.Attrs == attrs {
			return old, nil
		}
		return nil, &layerError{fmt.Sprintf("%s: parameter %q is already made at %v; give one of them another name or wrap it in nn.block, or, to share the weights, "+
			"make the parameter once with nn.param or nn.table and pass it to both", c.name, full, old.value.Def.Pos)}
	}
	out, err := t.apply(c.name, "param", attrs)
	if err != nil {
		return nil, err
	}
	t.params[full] = out[0]
	return out[0], nil
}

// dropout draws a mask, keyed by the block's path and the draw's ordinal in the block, so that neither the order of
// other blocks nor placement changes it. Outside training it returns x.
func (t *trace) dropout(what string, x *Tensor, p float64) (starlark.Value, error) {
	if !(p >= 0 && p < 1) {
		return nil, &layerError{fmt.Sprintf("%s: the probability p = %v must be at least 0 and less than 1", what, p)}
	}
	if p == 0 || !t.training {
		return x, nil
	}
	if t.rng == nil {
		rng, err := t.input(train.InputRNG, graph.Type{DType: tensor.U32, Shape: tensor.Shape{4}})
		if err != nil {
			return nil, err
		}
		t.rng = rng
	}
	block := t.blockPath()
	key := drawKey(block, t.draws[block])
	t.draws[block]++
	return t.apply1(what, "dropout", graph.DropoutAttrs{P: p, Key: key}, x, t.rng)
}

// drawKey is the first eight bytes, little-endian, of the SHA-256 of the block's path, a zero byte and the ordinal (8 bytes,
// little-endian).
func drawKey(block string, ordinal int) uint64 {
	buf := append([]byte(block), 0)
	buf = binary.LittleEndian.AppendUint64(buf, uint64(ordinal))
	sum := sha256.Sum256(buf)
	return binary.LittleEndian.Uint64(sum[:8])
}

// scoped runs fn inside a block.
func (t *trace) scoped(name string, fn func() (starlark.Value, error)) (starlark.Value, error) {
	t.path = append(t.path, name)
	v, err := fn()
	if err != nil && t.block == "" {
		t.block = t.blockPath()
	}
	t.path = t.path[:len(t.path)-1]
	return v, err
}
