package train

import (
	"context"
	"fmt"
	"math"
	"strings"

	"starling/core/data"
	"starling/core/device"
)

// evaluator runs the evaluation segment over this rank's share of the held-out micro-batches. Figures are
// gathered per micro-batch and summed in their order, so the result is the same bits at any world size.
type evaluator struct {
	env     *Env
	engine  *engine
	set     data.Dataset
	sampler *data.Sampler
	batch   *data.Batch
	share   []int
	most    int // micro-batches of the busiest rank
	bound   *device.Bound
	inputs  []ioField
	rows    []float32 // their weights; nil where the model does not ask for them
	names   []string  // "eval_loss" and the metrics
	sums    [][]float32
	weights [][]float32
	figures []float64
	label   string // of the exchange of figures
}

func newEvaluator(s *Spec, env *Env, e *engine) (*evaluator, error) {
	set, err := s.Evaluate.Source.Dataset()
	if err != nil {
		return nil, &Error{s.Positions["evaluate"], err.Error()}
	}
	micro := s.Evaluate.microBatch(s)
	v := &evaluator{env: env, engine: e, set: set, batch: data.NewBatch(set.Fields(), micro), label: s.label("evaluation", "evaluate")}
	if v.sampler, err = data.NewEvalSampler(set.Len(), max(s.Data.GlobalBatch, micro), micro, s.Evaluate.Batches); err != nil {
		return nil, &Error{s.Positions["evaluate"], err.Error()}
	}
	v.share = data.Share(v.sampler.MicroBatches(), env.World, env.Rank)
	for r := range env.World {
		v.most = max(v.most, len(data.Share(v.sampler.MicroBatches(), env.World, r)))
	}
	seg := e.plan.Segments["evaluate"]
	mem := e.memory(0)
	if v.bound, err = device.Bind(e.dev, seg, mem); err != nil {
		return nil, err
	}
	for _, f := range set.Fields() {
		if o, ok := seg.Inputs[f.Name]; ok {
			v.inputs = append(v.inputs, ioField{f.Name, device.View[byte](mem, o)})
		}
	}
	if o, ok := seg.Inputs[InputWeight]; ok {
		v.rows = device.View[float32](mem, o)
	}
	add := func(name, sum, weight string) {
		v.names = append(v.names, name)
		v.sums = append(v.sums, device.View[float32](mem, seg.Outputs[sum]))
		v.weights = append(v.weights, device.View[float32](mem, seg.Outputs[weight]))
	}
	add("eval_loss", "loss", "weight")
	for _, name := range sortedKeys(seg.Outputs) {
		if m, ok := strings.CutPrefix(name, "metric."); ok {
			add(m, name, "metric_weight."+m)
		}
	}
	v.figures = make([]float64, 2*len(v.names)*len(v.share))
	return v, nil
}

// microBatch is the evaluation's micro-batch with its default, the training one.
func (e *Evaluate) microBatch(s *Spec) int {
	if e.MicroBatch > 0 {
		return e.MicroBatch
	}
	return s.Data.MicroBatch
}

// run evaluates once.
func (v *evaluator) run(ctx context.Context) (Metrics, error) {
	n := 2 * len(v.names)
	for i, index := range v.share {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := v.batch.Fill(v.set, v.sampler, 0, index); err != nil {
			return nil, err
		}
		for _, in := range v.inputs {
			copy(in.dst, v.batch.Column(in.name).Bytes())
		}
		weighRows(v.rows, v.batch)
		if err := v.engine.forward(ctx, v.bound, false); err != nil {
			return nil, err
		}
		for k := range v.names {
			v.figures[i*n+2*k] = float64(v.sums[k][0])
			v.figures[i*n+2*k+1] = float64(v.weights[k][0])
		}
	}
	for i := len(v.share); i < v.most && v.engine.together(); i++ {
		if err := v.engine.forward(ctx, v.bound, true); err != nil {
			return nil, err
		}
	}
	all := [][]float64{v.figures}
	if v.env.World > 1 {
		var err error
		if all, err = v.env.Group.AllGatherFloat64(ctx, v.label, v.figures); err != nil {
			return nil, err
		}
	}
	totals := make([]float64, n)
	for _, f := range all {
		for i := 0; i < len(f); i += n {
			for k := range totals {
				totals[k] += f[i+k]
			}
		}
	}
	m := Metrics{}
	for k, name := range v.names {
		m[name] = ratio(totals[2*k], totals[2*k+1])
	}
	return m, nil
}

// evaluate runs the evaluation, keeps the score and calls the hook.
func (l *loop) evaluate(ctx context.Context, step Metrics) (best, save bool, err error) {
	st := &l.state
	l.env.Status(fmt.Sprintf("evaluation after step %d", st.Step))
	m, err := l.eval.run(ctx)
	if err != nil {
		return false, false, err
	}
	st.Eval, st.EvalStep = m, st.Step
	if err := l.log.write("eval", st.Step, m); err != nil {
		l.env.Observe(Event{Kind: EventWarning, Text: err.Error()})
	}
	if l.env.Rank == 0 {
		l.env.Observe(Event{Kind: EventEval, Step: st.Step, Total: l.total, Vals: m})
	}
	if key, sign := l.spec.Evaluate.best(); key != "" {
		v := m[key]
		if !math.IsNaN(v) && !math.IsInf(v, 0) && (st.BestStep == 0 || sign*v < sign*st.Best) {
			st.Best, st.BestStep, best = v, st.Step, true
		}
	}
	if h := l.spec.OnEval; h != nil {
		seen := Metrics{}
		for k, v := range step {
			seen[k] = v
		}
		for k, v := range m {
			seen[k] = v
		}
		a, err := h(seen)
		if err != nil {
			return false, false, err
		}
		st.apply(a)
		save = a.Save
	}
	return best, save, nil
}

// best returns the metric that decides which checkpoint is best, and 1 or -1 to make smaller better.
func (e *Evaluate) best() (key string, sign float64) {
	sign = 1
	if e.BestMode == "max" {
		sign = -1
	}
	if e.Best == "loss" {
		return "eval_loss", sign
	}
	return e.Best, sign
}

func ratio(sum, weight float64) float64 {
	if weight == 0 {
		return 0
	}
	return sum / weight
}
