package recipe

import (
	"fmt"

	"go.starlark.net/starlark"

	"starling/core/graph"
	"starling/core/tensor"
	"starling/core/train"
)

// model traces the functions of a recipe. Its methods may be called at any time, from several goroutines: everything
// that a recipe leaves behind is frozen, and each trace has a thread of its own.
type model struct {
	session *session
	loss    starlark.Callable
	metrics []metric
}

// Loss implements train.Model.
func (m *model) Loss(batch []train.Input, training bool) (*graph.Graph, error) {
	g, err := m.session.trace(training, func(t *trace) error {
		t.classes = m.classes(training)
		b := &batchValue{trace: t, fields: batch, made: map[string]*Tensor{}}
		out, err := t.callLoss("the loss function", m.loss, b)
		if err != nil {
			return err
		}
		t.builder.Output("loss", out.sum.value)
		t.builder.Output("weight", out.weight.value)
		if training {
			return nil
		}
		t.share()
		for _, x := range m.metrics {
			out, err := t.callLoss(fmt.Sprintf("metric %q", x.name), x.fn, b)
			if err != nil {
				return err
			}
			t.builder.Output("metric."+x.name, out.sum.value)
			t.builder.Output("metric_weight."+x.name, out.weight.value)
		}
		return nil
	})
	if err == nil && training {
		err = m.session.checkGroups(m.session.spec.Optimizer, g)
	}
	if err != nil {
		return nil, err
	}
	return g, nil
}

// classes is how many classes the labels of the data have, 0 where that is not known.
func (m *model) classes(training bool) int {
	source := m.session.spec.Data.Source
	if e := m.session.spec.Evaluate; !training && e != nil {
		source = e.Source
	}
	if a, ok := source.(*arraySource); ok {
		return a.classes
	}
	return 0
}

// forward traces model(tokens) alone, for sampling.
func (s *session) forward(fn starlark.Callable) func(train.Input) (*graph.Graph, error) {
	return func(in train.Input) (*graph.Graph, error) {
		return s.trace(false, func(t *trace) error {
			tokens, err := t.input(in.Name, in.Type)
			if err != nil {
				return err
			}
			v, err := starlark.Call(t.thread, fn, starlark.Tuple{tokens}, nil)
			if err != nil {
				return err
			}
			logits, ok := v.(*Tensor)
			if !ok || len(logits.value.Shape) != 3 || logits.value.DType != tensor.F32 || logits.value.Shape[1] != in.Shape[1] {
				return s.at(fn, fmt.Sprintf("sample: the model must return logits f32[1,%d,V], one row for each token; it returned %s", in.Shape[1], describe(v)))
			}
			t.builder.Output("logits", logits.value)
			return nil
		})
	}
}

// trace runs fn in a fresh trace and returns the graph that it leaves.
func (s *session) trace(training bool, fn func(*trace) error) (*graph.Graph, error) {
	t := newTrace(s.thread(s.options.MaxSteps), training)
	defer watch(t.thread)()
	err := fn(t)
	if t.late != nil { // it came before err, and nothing has reported it
		err = &starlark.EvalError{Msg: t.late.Error(), CallStack: t.late.(*lateError).stack}
	}
	if err != nil {
		return nil, s.explain(err, t.block)
	}
	return t.builder.G, nil
}

// callLoss calls a loss or metric function.
func (t *trace) callLoss(what string, fn starlark.Callable, batch starlark.Value) (*Loss, error) {
	v, err := starlark.Call(t.thread, fn, starlark.Tuple{batch}, nil)
	if err != nil {
		return nil, err
	}
	out, ok := v.(*Loss)
	if !ok {
		s := t.thread.Local(localSession).(*session)
		return nil, s.at(fn, fmt.Sprintf("%s must return a loss, such as nn.cross_entropy(…) or nn.weighted(sum, weight), not %s", what, describe(v)))
	}
	return out, nil
}

// at is a mistake of a function as a whole.
func (s *session) at(fn starlark.Callable, msg string) error {
	e := &Error{Pos: graph.Position{File: s.name}, Msg: msg}
	if f, ok := fn.(*starlark.Function); ok {
		e.Pos = toPosition(f.Position())
	} else if s.spec != nil {
		e.Pos = s.trained
	}
	return e
}

// batchValue is the argument of the loss: the fields of the data as attributes. A field becomes an input of the graph when it
// is first used.
type batchValue struct {
	trace  *trace
	fields []train.Input
	made   map[string]*Tensor
}

var _ starlark.HasAttrs = (*batchValue)(nil)

func (b *batchValue) String() string        { return "<batch>" }
func (b *batchValue) Type() string          { return "batch" }
func (b *batchValue) Freeze()               {} // what it gains when used belongs to its trace
func (b *batchValue) Truth() starlark.Bool  { return true }
func (b *batchValue) Hash() (uint32, error) { return 0, fmt.Errorf("unhashable: batch") }

// AttrNames lists the fields of the data.
func (b *batchValue) AttrNames() []string {
	names := make([]string, len(b.fields))
	for i, f := range b.fields {
		names[i] = f.Name
	}
	return names
}

// Attr gives a field as a tensor [micro-batch, …].
func (b *batchValue) Attr(name string) (starlark.Value, error) {
	if t := b.made[name]; t != nil {
		return t, nil
	}
	for _, f := range b.fields {
		if f.Name == name {
			t, err := b.trace.input(name, f.Type)
			if err != nil {
				return nil, err
			}
			b.made[name] = t
			return t, nil
		}
	}
	names := b.AttrNames()
	if didYouMean(name, names) == "" {
		return nil, fmt.Errorf("the batch has no field %q; it has %q", name, names)
	}
	return nil, noAttribute("the batch", name, names)
}
