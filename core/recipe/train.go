package recipe

import (
	"errors"
	"math"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.starlark.net/starlark"

	"starling/core/comm"
	"starling/core/compress"
	"starling/core/data"
	"starling/core/graph"
	"starling/core/optim"
	"starling/core/plan"
	"starling/core/train"
)

// reservedMetrics are the names of figures that every run has, in the log and in what hooks see.
var reservedMetrics = []string{"comm_hidden", "comm_s", "comm_window_s", "epoch", "epoch_loss", "eval_loss", "grad_norm", "kind", "loss", "loss_scale", "lr", "sent_bytes", "sent_host_bytes", "sent_memory_bytes", "sent_network_bytes", "skipped", "step", "tokens", "tokens_per_s"}

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

// precision is a number format of weights and activations, and the loss scale that goes with it.
type precision struct {
	name   string
	scale  optim.LossScale
	reduce string // the type of sums of gradients, "" for fp32
}

func precisionDeclarations() []declaration {
	const reduce = "; reduce_dtype (\"fp32\", \"bf16\" or \"fp16\") is the type in which gradients are added and travel"
	return []declaration{
		{"fp32(reduce_dtype = None)", "32-bit floating point throughout" + reduce, func(c *call) (starlark.Value, error) {
			p := precision{name: "fp32"}
			if err := c.unpack(&p.reduce); err != nil {
				return nil, err
			}
			return c.newPrecision(p)
		}},
		{"bf16(reduce_dtype = None)", "weights in use, products and activations in bfloat16; the optimizer's weights, sums of gradients, norms, softmax and loss in 32 bits" + reduce, func(c *call) (starlark.Value, error) {
			p := precision{name: "bf16"}
			if err := c.unpack(&p.reduce); err != nil {
				return nil, err
			}
			return c.newPrecision(p)
		}},
		{"fp16(loss_scale = None, reduce_dtype = None)", "as bf16, in IEEE half precision, whose range is small: the loss is scaled, by default by loss_scale.dynamic()" + reduce, func(c *call) (starlark.Value, error) {
			var scale *setting
			p := precision{name: "fp16", scale: optim.DefaultLossScale}
			if err := c.unpack(kindOf{"loss scale", "loss_scale.dynamic(…) or loss_scale.static(…)", &scale}, &p.reduce); err != nil {
				return nil, err
			}
			if scale != nil {
				p.scale = payload[optim.LossScale](scale)
			}
			return c.newPrecision(p)
		}},
	}
}

func (c *call) newPrecision(p precision) (starlark.Value, error) {
	switch p.reduce {
	case "fp32":
		p.reduce = ""
	case "", "bf16", "fp16":
	default:
		return nil, c.bad("reduce_dtype", "reduce_dtype = %q must be \"fp32\", \"bf16\" or \"fp16\"", p.reduce)
	}
	return c.newSetting("precision", p), nil
}

func lossScaleDeclarations() []declaration {
	return []declaration{
		{`dynamic(init = 32768.0, factor = 2.0, window = 2000, hysteresis = 1, floor = 1.0, backoff = "at_once")`,
			"grows by factor after window clean steps; a step that overflows is skipped, and the hysteresis-th such step since it grew divides the scale by factor, at_once or at the window_end; " +
				"an overflow at the floor ends the run", makeDynamicScale},
		{"static(scale)", "always the same; a step that overflows is skipped, a hundred in a row end the run", func(c *call) (starlark.Value, error) {
			var l optim.LossScale
			if err := c.unpack(&l.Init); err != nil {
				return nil, err
			}
			if !(l.Init > 0) {
				return nil, c.bad("scale", "scale = %v must be above 0", l.Init)
			}
			return c.newLossScale(l)
		}},
	}
}

func makeDynamicScale(c *call) (starlark.Value, error) {
	l := optim.LossScale{Dynamic: true}
	var backoff string
	if err := c.unpack(&l.Init, &l.Factor, &l.Window, &l.Hysteresis, &l.Floor, &backoff); err != nil {
		return nil, err
	}
	switch backoff {
	case "at_once":
	case "window_end":
		l.WindowEnd = true
	default:
		return nil, c.bad("backoff", "backoff = %q must be \"at_once\" (shrink with the overflow) or \"window_end\" (decide at every window-th step)", backoff)
	}
	if !(l.Init > 0) {
		return nil, c.bad("init", "init = %v must be above 0", l.Init)
	}
	return c.newLossScale(l)
}

func (c *call) newLossScale(l optim.LossScale) (starlark.Value, error) {
	if err := l.Validate(); err != nil {
		return nil, c.errorf("%s", strings.TrimPrefix(err.Error(), "loss_scale: "))
	}
	return c.newSetting("loss scale", l), nil
}

func parallelDeclarations() []declaration {
	return []declaration{{"mesh(data = 1, bucket_mb = 25.0, first_bucket_mb = 1.0, threads = 0, timeout = 60.0, zero = 0, overlap = True, keep_gathered = False, keep_whole_kb = 0.0, memory = None, offload = None, reduction = \"canonical\", compress = None, shard = 0, offload_activations = False, host_memory = None, hosts = None)",
		"placement, which changes no result but for reduction and compress: data-parallel ranks, the size of gradient buckets, CPU threads a rank (0: the cores shared out), seconds until a collective gives up; " +
			"zero shards over the ranks 0 nothing, 1 the optimizer's state, 2 gradients too, 3 parameters too; overlap lets communication run beside computation; with zero = 3 keep_gathered " +
			"keeps a block's parameters from its forward to its backward pass, and groups of parameters below keep_whole_kb stay whole, and shard neighbouring ranks, such as those of a host, keep one copy of the parameters among them (0: all ranks do); a run that needs more than memory on a rank, such as \"2GB\", is refused; " +
			"reduction = \"fast\" sums gradients in whatever order is quickest (\"ring\" and \"doubling\" force one), so that weights depend on the ranks, where \"direct\" and \"hierarchical\" force an algorithm of the canonical order; offload = \"disk\" keeps the optimizer's state, and sharded parameters, in files of the run's folder, \"host\" in the host's memory, which memory then does not count and host_memory bounds; offload_activations = True keeps activations there too between the passes; compress is how gradients are compressed between ranks, such as compress.int8(); " +
			"hosts names the host of each rank, such as [\"a\"] * 4 + [\"b\"] * 4, where several are declared on one machine: ranks of one name share memory, and sums are added inside a host first", makeMesh}}
}

func recomputeDeclarations() []declaration {
	return []declaration{
		{"all()", "compute every block's activations again for the backward pass, and keep only what passes from block to block", func(c *call) (starlark.Value, error) {
			if err := c.unpack(); err != nil {
				return nil, err
			}
			return c.newSetting("recompute", plan.Recompute{All: true}), nil
		}},
		{"every(k)", "every k-th block, from the first on", func(c *call) (starlark.Value, error) {
			var r plan.Recompute
			if err := c.unpack(&r.Every); err != nil {
				return nil, err
			}
			if r.Every < 1 {
				return nil, c.bad("k", "k = %d must be at least 1", r.Every)
			}
			return c.newSetting("recompute", r), nil
		}},
		{"blocks(pattern)", `the blocks whose name matches, such as "h.*" or "h.3"`, func(c *call) (starlark.Value, error) {
			var pattern string
			if err := c.unpack(&pattern); err != nil {
				return nil, err
			}
			if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
				return nil, c.bad("pattern", "pattern = %q is no pattern; use names of blocks with * and ?", pattern)
			}
			return c.newSetting("recompute", plan.Recompute{Blocks: []string{pattern}}), nil
		}},
		{"budget(bytes)", `as few blocks as it takes for activations to fit, such as budget("2GB")`, func(c *call) (starlark.Value, error) {
			var size string
			if err := c.unpack(&size); err != nil {
				return nil, err
			}
			n, err := parseBytes(size)
			if err != nil {
				return nil, c.bad("bytes", "bytes = %q: %v", size, err)
			}
			return c.newSetting("recompute", plan.Recompute{Budget: n}), nil
		}},
	}
}

// parseBytes reads a size such as 2GB, 512MB or 100KB; units are powers of 1024.
func parseBytes(s string) (int64, error) {
	unit := int64(0)
	number := s
	for name, u := range map[string]int64{"KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40} {
		if rest, ok := strings.CutSuffix(s, name); ok {
			number, unit = rest, u
		}
	}
	f, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if err != nil || unit == 0 || !(f > 0) || f*float64(unit) >= math.MaxInt64 {
		return 0, errors.New(`write a number and KB, MB, GB or TB, such as "2GB"`)
	}
	return int64(f * float64(unit)), nil
}

func makeMesh(c *call) (starlark.Value, error) {
	var m train.Mesh
	var overlap bool
	var memory, hostMemory string
	var comp *setting
	if err := c.unpack(&m.Data, &m.BucketMB, &m.FirstBucket, &m.Threads, &m.TimeoutSec, &m.Zero, &overlap, &m.KeepGathered, &m.KeepWholeKB, &memory, &m.Offload, &m.Reduction,
		kindOf{"compression", "a compression such as compress.int8()", &comp}, &m.Shard, &m.OffloadWork, &hostMemory, &m.Hosts); err != nil {
		return nil, err
	}
	if m.Offload != "" && m.Offload != train.OffloadHost && m.Offload != train.OffloadDisk {
		return nil, c.bad("offload", "offload = %q must be \"host\" or \"disk\"", m.Offload)
	}
	for _, limit := range []struct {
		name, text string
		bytes      *int64
	}{{"memory", memory, &m.MemoryBytes}, {"host_memory", hostMemory, &m.HostBytes}} {
		if limit.text == "" {
			continue
		}
		n, err := parseBytes(limit.text)
		if err != nil {
			return nil, c.bad(limit.name, "%s = %q: %v", limit.name, limit.text, err)
		}
		*limit.bytes = n
	}
	if m.OffloadWork && m.Offload == "" {
		return nil, c.bad("offload_activations", "offload_activations = True needs offload = \"host\" or \"disk\", where they go")
	}
	if m.HostBytes > 0 && m.Offload != train.OffloadHost {
		return nil, c.bad("host_memory", "host_memory bounds what offload = \"host\" keeps in the host's memory: without it all counts to memory")
	}
	m.NoOverlap = !overlap
	if comp != nil {
		m.Compress = payload[compress.Config](comp)
	}
	if m.Zero < 0 || m.Zero > 3 {
		return nil, c.bad("zero", "zero = %d must be 0 (nothing is sharded), 1 (the optimizer's state), 2 (gradients too) or 3 (parameters too)", m.Zero)
	}
	if (m.KeepGathered || m.KeepWholeKB != 0) && m.Zero != 3 {
		return nil, c.bad("zero", "keep_gathered and keep_whole_kb are about sharded parameters: they need zero = 3, not %d", m.Zero)
	}
	if m.Shard < 0 {
		return nil, c.bad("shard", "shard = %d must be at least 0 (all ranks keep one copy of the parameters among them)", m.Shard)
	}
	if !(m.KeepWholeKB >= 0) || math.IsInf(m.KeepWholeKB, 0) {
		return nil, c.bad("keep_whole_kb", "keep_whole_kb = %v must be a finite number of at least 0", m.KeepWholeKB)
	}
	for _, n := range []struct {
		name  string
		value float64
	}{{"bucket_mb", m.BucketMB}, {"first_bucket_mb", m.FirstBucket}, {"timeout", m.TimeoutSec}} {
		if !(n.value > 0) || math.IsInf(n.value, 0) {
			return nil, c.bad(n.name, "%s = %v must be a finite number above 0", n.name, n.value)
		}
	}
	if m.Threads < 0 {
		return nil, c.bad("threads", "threads = %d must be at least 0", m.Threads)
	}
	if m.Data < 1 {
		return nil, c.bad("data", "data = %d must be at least 1", m.Data)
	}
	if m.Hosts != nil && len(m.Hosts) != m.Data {
		return nil, c.bad("hosts", "hosts names %d hosts for data = %d ranks; name the host of each rank, such as [\"a\"] * %d", len(m.Hosts), m.Data, m.Data)
	}
	for _, h := range m.Hosts {
		if err := comm.CheckHostName(h); err != nil {
			return nil, c.bad("hosts", "hosts: %v", err)
		}
	}
	return c.newSetting("parallel", m), nil
}

// evaluation is what evaluate() says, before train() puts it together.
type evaluation struct {
	train.Evaluate
	metrics []metric
}

type metric struct {
	name string
	fn   starlark.Callable
}

func makeEvaluate(c *call) (starlark.Value, error) {
	var source *setting
	var metrics starlark.Value
	var e evaluation
	if err := c.unpack(wantSource(&source), &e.Every, &e.Batches, &e.Best, &e.BestMode, &metrics); err != nil {
		return nil, err
	}
	e.Source = payload[train.Source](source)
	m, ok := metrics.(starlark.IterableMapping)
	if !ok {
		return nil, c.bad("metrics", "metrics must be a dict from names to functions of the batch, not %s", describe(metrics))
	}
	names := []string{"loss"}
	for _, kv := range m.Items() {
		name, ok := starlark.AsString(kv[0])
		if !ok || name == "" || strings.ContainsAny(name, " .=\n") {
			return nil, c.bad("metrics", "metrics: the name %v must be a string without spaces and dots", kv[0])
		}
		if slices.Contains(reservedMetrics, name) {
			return nil, c.bad("metrics", "metrics: %q is a figure that every run has; choose another name (taken are %s)", name, strings.Join(reservedMetrics, ", "))
		}
		fn, ok := kv[1].(starlark.Callable)
		if !ok {
			return nil, c.bad("metrics", "metrics: %q must be a function of the batch, not %s", name, describe(kv[1]))
		}
		if wrong := takesOne(fn, "the batch"); wrong != "" {
			return nil, c.bad("metrics", "metrics: %q: %s", name, wrong)
		}
		e.metrics = append(e.metrics, metric{name, fn})
		names = append(names, name)
	}
	if e.Best != "" {
		known := false
		for _, n := range names {
			known = known || n == e.Best
		}
		if !known {
			return nil, c.bad("best", "best = %q is neither \"loss\" nor a metric%s", e.Best, didYouMean(e.Best, names))
		}
	}
	switch e.BestMode {
	case "":
		e.BestMode = "max"
		if e.Best == "" || e.Best == "loss" {
			e.BestMode = "min"
		}
	case "min", "max":
	default:
		return nil, c.bad("best_mode", "best_mode = %q must be \"min\" or \"max\"", e.BestMode)
	}
	return c.newSetting("evaluation", e), nil
}

func makeCheckpoint(c *call) (starlark.Value, error) {
	var k train.Checkpoint
	if err := c.unpack(&k.Every, &k.Keep); err != nil {
		return nil, err
	}
	return c.newSetting("checkpoint", k), nil
}

// sampling is what sample() says; the data gives it context and tokenizer where it does not name them.
type sampling struct {
	train.Sample
	model starlark.Callable
}

func makeSample(c *call) (starlark.Value, error) {
	var s sampling
	var context starlark.Value
	var tok *setting
	if err := c.unpack(&s.model, &s.Prompt, &s.Tokens, &s.Every, &s.Temperature, &s.TopK, &context, wantTokenizer(&tok)); err != nil {
		return nil, err
	}
	if wrong := takesOne(s.model, "the tokens"); wrong != "" {
		return nil, c.bad("model", "model: %s", wrong)
	}
	if context != nil {
		if want, _ := store(&s.Context, context); want != "" || s.Context < 1 {
			return nil, c.bad("context", "context must be an int of at least 1, not %s", describe(context))
		}
	}
	if tok != nil {
		s.Tokenizer = payload[data.Tokenizer](tok)
	}
	return c.newSetting("sample", s), nil
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

// addSamples adds one sample(…) or a list of them.
func (s *session) addSamples(c *call, spec *train.Spec, v starlark.Value) error {
	if v == nil {
		return nil
	}
	list := []starlark.Value{v}
	if seq, ok := v.(starlark.Sequence); ok {
		list = list[:0]
		for x := range starlark.Elements(seq) {
			list = append(list, x)
		}
	}
	text, _ := spec.Data.Source.(*textSource)
	for _, x := range list {
		set, ok := x.(*setting)
		if !ok || set.kind != "sample" {
			return c.bad("sample", "sample must be sample(…) or a list of them, not %s", describe(x))
		}
		p := payload[sampling](set)
		if text != nil && p.Context == 0 {
			p.Context = text.context
		}
		if text != nil && p.Tokenizer == nil {
			p.Tokenizer = text.tokenizer
		}
		if p.Tokenizer == nil || p.Context == 0 {
			return &Error{Pos: set.pos, Msg: "sample: the training data is no text; give context = … and tokenizer = …"}
		}
		p.Forward = s.forward(p.model)
		spec.Samples = append(spec.Samples, p.Sample)
		if _, ok := spec.Positions["sample"]; !ok {
			spec.Positions["sample"] = set.pos
		}
	}
	return nil
}
