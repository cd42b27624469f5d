package recipe

import (
	"math"
	"path/filepath"
	"strings"

	"go.starlark.net/starlark"

	"starling/core/graph"
	"starling/core/plan"
	"starling/core/train"
)

// frameDeclarations are the predeclared functions that stand in no namespace.
func frameDeclarations() []declaration {
	return []declaration{
		{`param(name, default, help = "", placement = False)`, "a value that --set name=value changes; its type is the default's. placement = True says that it only moves work (ranks, threads, intervals), which matters in a recipe with hooks: the run can then be resumed with another value", declareParam},
		{"loader(source, global_batch, micro_batch, lanes = None, workers = 4, prefetch = 2, shuffle = True)", "how samples become steps: global_batch samples an optimizer step, micro_batch at a time; " +
			"lanes (by default at most 16) is how many ranks can share a step. workers and prefetch change no result", makeLoader},
		{"evaluate(source, every = 0, batches = 0, best = None, best_mode = None, metrics = {})", "every so many steps and at the end: the loss and metrics on held-out data, over so many global batches (0: all); " +
			"best keeps the checkpoint that is best by \"loss\" or a metric, its best_mode \"min\" or \"max\"; a metric is a function of the batch, such as one that returns nn.accuracy(…)", makeEvaluate},
		{"checkpoint(every = 0, keep = 3)", "checkpoints every so many steps (0: only at the end), the newest keep of them", makeCheckpoint},
		{`sample(model, prompt = "", tokens = 200, every = 0, temperature = 1.0, top_k = 0, context = None, tokenizer = None)`, "text drawn from model(tokens) every so many steps and at the end; context and tokenizer are those of the training data", makeSample},
		{"train(*, loss, data, optimizer, steps = None, epochs = None, clip_norm = None, clip_norm_type = 2, clip_value = None, precision = None, parallel = None, recompute = None, evaluate = None, checkpoint = None, sample = None, seed = 1, on_step = None, on_eval = None)",
			"the run: exactly once in a recipe. loss(batch) returns a loss; steps or epochs; clip_norm bounds the gradient's global norm (clip_norm_type 2, 1 or \"inf\", which grad_norm reports), then clip_value each of its elements; sample is one or a list; on_step(m) and on_eval(m) see the metrics and may return actions", declareTrain},
	}
}

func makeCheckpoint(c *call) (starlark.Value, error) {
	var k train.Checkpoint
	if err := c.unpack(&k.Every, &k.Keep); err != nil {
		return nil, err
	}
	return c.newSetting("checkpoint", k), nil
}

// declareTrain puts the run together.
func declareTrain(c *call) (starlark.Value, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	if s.spec != nil {
		return nil, c.errorf("a recipe describes one run, and train is already called at %v", s.trained)
	}
	var loss, onStep, onEval starlark.Callable
	var load, opt, prec, par, again, eval, ckpt *setting
	var samples starlark.Value
	var seed int
	spec := &train.Spec{Name: strings.TrimSuffix(s.name, filepath.Ext(s.name)), Recipe: s.path, Precision: "fp32",
		Mesh: train.Mesh{Data: 1, BucketMB: 25, FirstBucket: 1, TimeoutSec: 60}, Positions: map[string]graph.Position{}}
	var steps, epochs, normType starlark.Value
	if err := c.unpack(&loss,
		kindOf{"loader", "a loader(…)", &load}, kindOf{"optimizer", "an optimizer such as optim.adamw(…)", &opt},
		&steps, &epochs, &spec.ClipNorm, &normType, &spec.ClipValue,
		kindOf{"precision", "a precision such as precision.fp32()", &prec}, kindOf{"parallel", "parallel.mesh(…)", &par},
		kindOf{"recompute", "a choice of blocks such as recompute.all()", &again},
		kindOf{"evaluation", "evaluate(…)", &eval}, kindOf{"checkpoint", "checkpoint(…)", &ckpt},
		&samples, &seed, &onStep, &onEval); err != nil {
		return nil, err
	}
	for _, f := range []struct {
		name     string
		fn       starlark.Callable
		argument string
	}{{"loss", loss, "the batch"}, {"on_step", onStep, "the metrics"}, {"on_eval", onEval, "the metrics"}} {
		if wrong := takesOne(f.fn, f.argument); wrong != "" {
			return nil, c.bad(f.name, "%s: %s", f.name, wrong)
		}
	}
	if spec.Steps, err = c.count("steps", steps); err != nil {
		return nil, err
	}
	if spec.Epochs, err = c.count("epochs", epochs); err != nil {
		return nil, err
	}
	if (steps == nil) == (epochs == nil) {
		return nil, c.errorf("give either steps or epochs")
	}
	if spec.NormType, err = c.normType(normType); err != nil {
		return nil, err
	}
	if seed < 0 {
		return nil, c.bad("seed", "seed = %d must be at least 0", seed)
	}
	at := func(key string, from *setting) { spec.Positions[key] = from.pos }
	spec.Seed = uint64(seed)
	spec.Positions["train"] = position(c.thread)
	spec.Data = payload[train.Data](load)
	at("data", load)
	if spec.Optimizer, err = payload[optimizerOf](opt)(spec.Data.GlobalBatch); err != nil {
		return nil, c.bad("optimizer", "optimizer: %v", err)
	}
	at("optimizer", opt)
	if prec != nil {
		p := payload[precision](prec)
		spec.Precision, spec.LossScale, spec.Reduce = p.name, p.scale, p.reduce
		at("precision", prec)
	}
	if par != nil {
		spec.Mesh = payload[train.Mesh](par)
		at("mesh", par)
	}
	if again != nil {
		spec.Mesh.Recompute = payload[plan.Recompute](again)
		at("recompute", again)
	}
	model := &model{session: s, loss: loss}
	spec.Model = model
	if eval != nil {
		e := payload[evaluation](eval)
		spec.Evaluate, model.metrics = &e.Evaluate, e.metrics
		at("evaluate", eval)
	}
	if ckpt != nil {
		k := payload[train.Checkpoint](ckpt)
		spec.Checkpoint = &k
		at("checkpoint", ckpt)
	}
	if err := s.addSamples(c, spec, samples); err != nil {
		return nil, err
	}
	spec.OnStep, spec.OnEval = s.hook("on_step", onStep), s.hook("on_eval", onEval)
	s.spec, s.trained = spec, spec.Positions["train"]
	return starlark.None, nil
}

// count reads a number of steps or epochs that may be absent.
func (c *call) count(name string, v starlark.Value) (n int, err error) {
	if v == nil {
		return 0, nil
	}
	if want, _ := store(&n, v); want != "" || n < 1 {
		return 0, c.bad(name, "%s must be an int of at least 1, not %s", name, describe(v))
	}
	return n, nil
}

// normType reads which norm of the gradient is meant: 1, 2 or infinity, as a number or as "inf".
func (c *call) normType(v starlark.Value) (plan.Norm, error) {
	n, ok := number(v)
	if s, text := starlark.AsString(v); text && s == "inf" {
		n, ok = math.Inf(1), true
	}
	switch {
	case ok && n == 2:
		return plan.L2, nil
	case ok && n == 1:
		return plan.L1, nil
	case ok && math.IsInf(n, 1):
		return plan.LInf, nil
	}
	return 0, c.bad("clip_norm_type", "clip_norm_type must be 2 (Euclidean), 1 (the sum of absolute values) or \"inf\" (the largest), not %s", describe(v))
}
