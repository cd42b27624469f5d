package recipe

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"starling/core/data"
	"starling/core/optim"
	"starling/core/train"
)

func TestQuickstartSpec(t *testing.T) {
	spec := mustLoad(t, shipped+"/quickstart.star", "steps=10", "lr=1", "ranks=3")
	values := map[string]any{}
	for _, p := range spec.Params {
		if p.Help == "" {
			t.Errorf("param %s has no help", p.Name)
		}
		values[p.Name] = p.Value
	}
	if want := map[string]any{"steps": int64(10), "width": int64(128), "lr": 1.0, "ranks": int64(3)}; !reflect.DeepEqual(values, want) {
		t.Errorf("params %v, want %v", values, want)
	}
	if got, want := spec.Optimizer.String(), "adamw(warmup_cosine(1, 10, 10, 0.1), betas 0.9 0.95, eps 1e-08, decay 0.1)"; got != want {
		t.Errorf("optimizer %s, want %s", got, want)
	}
	d := spec.Data
	if d.GlobalBatch != 16 || d.MicroBatch != 4 || d.LaneCount() != 4 || d.Workers != 4 || d.Prefetch != 2 || !d.Shuffle {
		t.Errorf("data %+v", d)
	}
	if spec.Name != "quickstart" || spec.Steps != 10 || spec.ClipNorm != 1 || spec.Precision != "fp32" || spec.Mesh.Data != 3 || spec.Seed != 1 {
		t.Errorf("spec %+v", spec)
	}
	if e := spec.Evaluate; e.Every != 300 || e.Batches != 16 || e.Best != "loss" || e.BestMode != "min" {
		t.Errorf("evaluate %+v", e)
	}
	if p := spec.Positions["mesh"]; p.File != "quickstart.star" || p.Line == 0 {
		t.Errorf("the mesh is at %v", p)
	}
}

func TestSetErrors(t *testing.T) {
	text := "steps = param(\"steps\", 1500)\nlr = param(\"lr\", 0.006)\nbig = param(\"big\", False)\n"
	for set, want := range map[string]string{
		"stepz=3":   `--set stepz=3: r.star has no param "stepz"; it has steps, lr, big; did you mean "steps"?`,
		"steps=3.5": `r.star:1:14: param: "steps": --set steps=3.5: "3.5" is no int (the default is 1500)`,
		"lr=fast":   `r.star:2:11: param: "lr": --set lr=fast: "fast" is no finite number (the default is 0.006)`,
		"lr=NaN":    `"NaN" is no finite number`,
		"big=maybe": `"maybe" is neither true nor false (the default is false)`,
		"steps":     `--set steps: write it as name=value`,
	} {
		if _, err := inline(t, text, set); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--set %s: %v, want %s", set, err, want)
		}
	}
}

// The params seen before a failure are listed, so that exec --help helps with a recipe that is broken further down.
func TestParamsOfABrokenRecipe(t *testing.T) {
	dir := recipeFolder(t, "r.star", "a = param(\"a\", True, \"first\")\nb = param(\"b\", \"x\")\nfail(\"no\")\nc = param(\"c\", 1)\n")
	params, err := Params(filepath.Join(dir, "r.star"), Options{Set: []string{"a=no"}})
	if err == nil || err.Error() != "r.star:3:5: no" {
		t.Errorf("error %v", err)
	}
	want := []train.Param{{Name: "a", Value: false, Default: true, Help: "first"}, {Name: "b", Value: "x", Default: "x"}}
	if !reflect.DeepEqual(params, want) {
		t.Errorf("params %+v", params)
	}
}

func TestRecipeWithoutTrain(t *testing.T) {
	_, err := inline(t, "x = 1\n")
	if err == nil || !strings.HasPrefix(err.Error(), "r.star: the recipe never calls train(…)") {
		t.Errorf("error %v", err)
	}
	if _, err := Load(filepath.Join(t.TempDir(), "none.star"), Options{}); err == nil || !strings.Contains(err.Error(), "there is no such file") {
		t.Errorf("error %v", err)
	}
}

func TestPrintAndLoadedFilesShareOneBudget(t *testing.T) {
	dir := recipeFolder(t, "r.star", "load(\"lib.star\", \"x\")\nprint(\"x is\", x)\nfor i in range(3000): y = i\n")
	if err := os.WriteFile(filepath.Join(dir, "lib.star"), []byte("x = 1\nfor i in range(3000): y = i\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var lines []string
	load := func(steps uint64) error {
		_, err := Params(filepath.Join(dir, "r.star"), Options{MaxSteps: steps, Print: func(s string) { lines = append(lines, s) }})
		return err
	}
	if err := load(60_000); err != nil {
		t.Fatal(err)
	}
	if len(lines) != 1 || lines[0] != "x is 1" {
		t.Errorf("printed %q", lines)
	}
	// Enough for either file, not for both.
	if err := load(36_000); err == nil || !strings.HasPrefix(err.Error(), "r.star:3:") || !strings.Contains(err.Error(), "stopped after 36000 steps") {
		t.Errorf("error %v", err)
	}
}

func TestScaleByBatch(t *testing.T) {
	text := `
load("prelude.star", "digits")
lr = {
    "number": schedule.scale_by_batch(0.1, base_batch = 2, rule = param("rule", "linear")),
    "peak": schedule.warmup_cosine(schedule.scale_by_batch(0.1, 2), warmup = 1, total = 2),
}[param("where", "number")]
train(
    loss = len,
    data = loader(digits.train, global_batch = 8, micro_batch = 4),
    optimizer = optim.adamw(lr = lr),
    steps = 1,
)
`
	for set, want := range map[string]float64{"rule=linear": 0.4, "rule=sqrt": 0.2, "where=peak": 0.4} {
		if got := mustInline(t, text, set).Optimizer.Rate(0); math.Abs(got-want) > 1e-15 {
			t.Errorf("%s: rate %v, want %v", set, got, want)
		}
	}
}

func TestGroups(t *testing.T) {
	spec := mustInline(t, `
load("prelude.star", "digits")
train(
    loss = len,
    data = loader(digits.train, 8, 4),
    optimizer = optim.sgd(lr = 1, momentum = 0.5, groups = [optim.group("*.bias", lr_scale = 2), optim.group("a.*", weight_decay = 0)]),
    epochs = 2,
)
`)
	o := spec.Optimizer.(optim.SGD)
	if len(o.ParamGroups) != 2 || o.ParamGroups[0].RateScale != 2 || o.ParamGroups[0].WeightDecay != nil || *o.ParamGroups[1].WeightDecay != 0 {
		t.Errorf("groups %+v", o.ParamGroups)
	}
	if spec.Epochs != 2 || spec.Steps != 0 {
		t.Errorf("steps %d, epochs %d", spec.Steps, spec.Epochs)
	}
}

func TestHooks(t *testing.T) {
	spec := mustInline(t, `
load("prelude.star", "run")
def on_step(m):
    if type(m.step) != "int" or type(m.loss) != "float":
        fail("types")
    if m.step == 1:
        return action.stop()
    if m.step == 2:
        return [action.save(), action.set_lr(0.5)]
    if m.step == 3:
        return action.scale_lr(2)
run(lambda batch: None, on_step = on_step)
`)
	half, two := 0.5, 2.0
	for step, want := range []train.Action{{}, {Stop: true}, {Save: true, LR: &half}, {LRScale: &two}} {
		got, err := spec.OnStep(train.Metrics{"step": float64(step), "loss": 1})
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("step %d: %+v, want %+v", step, got, want)
		}
	}
	if spec.OnEval != nil {
		t.Error("there is a hook that nobody gave")
	}
}

func TestDigest(t *testing.T) {
	digest := func(set ...string) string {
		t.Helper()
		d, err := Digest(mustLoad(t, shipped+"/invariance.star", set...))
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	base := digest()
	for _, placement := range []string{"ranks=3", "threads=2", "bucket_mb=8", "checkpoint=1"} {
		if digest(placement) != base {
			t.Errorf("%s changes the digest", placement)
		}
	}
	for _, arithmetic := range []string{"steps=21", "files=$GOROOT/src/os/*.go"} {
		if digest(arithmetic) == base {
			t.Errorf("%s does not change the digest", arithmetic)
		}
	}
	text := func(s string) string {
		t.Helper()
		d, err := Digest(mustInline(t, s))
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	const recipe = "load(\"prelude.star\", \"run\")\ndef loss(batch):\n    return nn.mse(nn.linear(\"a\", nn.flatten(batch.features), 144), nn.flatten(batch.features), batch.weight)\nrun(loss)\n"
	moved := "# A comment moves everything by a line.\n" + recipe
	if text(recipe) != text(moved) {
		t.Error("positions change the digest")
	}
	for old, new := range map[string]string{`"a"`: `"b"`, "144)": "144, bias = False)", "run(loss)": "run(loss, seed = 2)", "(loss)": "(loss, clip_norm = 1)", "run(loss": "run(loss, on_step = lambda m: None"} {
		if text(recipe) == text(strings.Replace(recipe, old, new, 1)) {
			t.Errorf("%s in place of %s does not change the digest", new, old)
		}
	}
	for _, change := range []string{"clip_norm = 1, clip_norm_type = 1", `clip_norm = 1, clip_norm_type = "inf"`, "clip_norm = 1, clip_value = 1", `clip_norm = 1, precision = precision.fp32(reduce_dtype = "bf16")`} {
		if text(strings.Replace(recipe, "(loss)\n", "(loss, clip_norm = 1)\n", 1)) == text(strings.Replace(recipe, "(loss)\n", "(loss, "+change+")\n", 1)) {
			t.Errorf("%s does not change the digest", change)
		}
	}
}

// Both parts of a corpus come from one reading.
func TestSources(t *testing.T) {
	ctx := context.Background()
	for name, part := range map[string]string{"text": "tokens", "digits": "features"} {
		spec := mustInline(t, "load(\"prelude.star\", c = \""+name+"\")\n"+
			"train(loss = len, data = loader(c.train, 8, 4), optimizer = optim.sgd(1), steps = 1, evaluate = evaluate(c.holdout))\n")
		for _, s := range []train.Source{spec.Data.Source, spec.Evaluate.Source} {
			if _, err := s.Len(); err == nil {
				t.Errorf("%s: has a length before Scan", name)
			}
			if _, err := s.Dataset(); err == nil {
				t.Errorf("%s: has samples before Load", name)
			}
		}
		c := spec.Data.Source.Corpus()
		if c != spec.Evaluate.Source.Corpus() {
			t.Errorf("%s: two corpora", name)
		}
		for range 2 {
			if err := c.Scan(ctx); err != nil {
				t.Fatal(err)
			}
			if err := c.Load(ctx, nil); err != nil {
				t.Fatal(err)
			}
		}
		if c.Bytes() == 0 || len(c.Fingerprint()) != 64 {
			t.Errorf("%s: %d bytes, fingerprint %q", name, c.Bytes(), c.Fingerprint())
		}
		for _, s := range []train.Source{spec.Data.Source, spec.Evaluate.Source} {
			n, err := s.Len()
			if err != nil {
				t.Fatal(err)
			}
			set, err := s.Dataset()
			if err != nil {
				t.Fatal(err)
			}
			if set.Len() != n || !reflect.DeepEqual(set.Fields(), s.Fields()) || s.Fields()[0].Name != part {
				t.Errorf("%s: %d samples of %+v, declared %d of %+v", name, set.Len(), set.Fields(), n, s.Fields())
			}
			b := data.NewBatch(set.Fields(), 1)
			sampler, err := data.NewSampler(data.SamplerConfig{Samples: n, GlobalBatch: 1, MicroBatch: 1})
			if err != nil {
				t.Fatal(err)
			}
			if err := b.Fill(set, sampler, 0, 0); err != nil {
				t.Error(err)
			}
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestCSV(t *testing.T) {
	dir := recipeFolder(t, "r.star", `
load("prelude.star", "run")
table = data.csv("table.csv", classes = 3, label = "y", holdout = 0.5, scale = 0.5)
run(lambda batch: nn.cross_entropy(nn.linear("a", batch.features, table.classes), batch.labels), table.train)
`)
	if err := os.WriteFile(filepath.Join(dir, "table.csv"), []byte("a,y,b\n1,0,2\n3,1,4\n5,2,6\n7,0,8\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	spec := mustLoad(t, filepath.Join(dir, "r.star"))
	if got := paramShapes(lossGraph(t, spec, true))["a.weight"]; got != "[3,2]" {
		t.Errorf("a.weight is %s", got)
	}
	c := spec.Data.Source.Corpus()
	if err := c.Scan(context.Background()); err != nil {
		t.Fatal(err)
	}
	if n, err := spec.Data.Source.Len(); err != nil || n < 1 || n > 3 {
		t.Errorf("%d samples, %v", n, err)
	}
}

func TestGlobThatMatchesNothing(t *testing.T) {
	spec := mustInline(t, `
c = data.text("*.none", context = 8)
train(loss = len, data = loader(c.train, 8, 4), optimizer = optim.sgd(1), steps = 1)
`)
	if err := spec.Data.Source.Corpus().Scan(context.Background()); err == nil || !strings.Contains(err.Error(), "no file matches") {
		t.Errorf("error %v", err)
	}
}

// A file that is no data of its kind is named, at the place of the call that names it and not of the loader.
func TestBadFilesAreNamedWhereTheyAreGiven(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "batch.bin")
	if err := os.WriteFile(bad, bytes.Repeat([]byte{77}, 4000), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ call, want string }{
		{"data.cifar10(" + strconv.Quote(bad) + ")", bad + ": record 0 has label 77"},
		{"data.cifar10(" + strconv.Quote(bad+".none") + ")", "matches no file"},
		{"data.csv(" + strconv.Quote(bad) + ", classes = 2)", bad},
		{"data.text(" + strconv.Quote(bad+".none") + ", context = 8)", "no file matches"},
	} {
		spec := mustInline(t, "\nc = "+c.call+"\n\ntrain(loss = len, data = loader(c.train, 8, 4), optimizer = optim.sgd(1), steps = 1)\n")
		err := spec.Scan(t.Context())
		var at *train.Error
		if !errors.As(err, &at) || at.Pos.Line != 2 || !strings.Contains(at.Msg, c.want) {
			t.Errorf("%s: %v, want %q at line 2", c.call, err, c.want)
		}
	}
}

// What a part of a corpus is too small for is known before anything is read.
func TestPartsWithoutSamples(t *testing.T) {
	for _, c := range []struct{ context, holdout, at, want string }{
		{"100000", "0.5", "data", "data.text: the train part of *.star has "},
		{"200", "0.0001", "evaluate", "data.text: the holdout part of *.star has "},
	} {
		spec := mustInline(t, `
c = data.text("*.star", context = `+c.context+`, holdout = `+c.holdout+`)
train(
    loss = len,
    data = loader(c.train, 8, 4),
    evaluate = evaluate(c.holdout),
    optimizer = optim.sgd(1),
    steps = 1,
)
`)
		err := spec.Scan(context.Background())
		var at *train.Error
		if !errors.As(err, &at) || at.Pos.Line != spec.Positions[c.at].Line || !strings.Contains(at.Msg, c.want) || !strings.Contains(at.Msg, "too few for one sample of context = "+c.context) {
			t.Errorf("context %s, holdout %s: %v, want %q at the place of %s", c.context, c.holdout, err, c.want, c.at)
		}
	}
}
