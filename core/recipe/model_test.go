package recipe

import (
	"encoding/binary"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"starling/core/graph"
	"starling/core/tensor"
	"starling/core/train"
)

var update = flag.Bool("update", false, "rewrite the golden files of this package")

// golden compares with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", filepath.FromSlash(name))
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != got {
		t.Errorf("%s differs; if that is meant, run the test with -update and review the change. Got:\n%s", path, got)
	}
}

func TestQuickstartGraph(t *testing.T) {
	golden(t, "quickstart.graph.txt", lossGraph(t, mustLoad(t, shipped+"/quickstart.star"), true).String())
}

// inline loads a recipe given as text, in a folder of its own with the prelude.
func inline(t *testing.T, text string, set ...string) (*train.Spec, error) {
	t.Helper()
	return Load(filepath.Join(recipeFolder(t, "r.star", text), "r.star"), Options{Set: set})
}

func mustInline(t *testing.T, text string, set ...string) *train.Spec {
	t.Helper()
	spec, err := inline(t, text, set...)
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

func paramShapes(g *graph.Graph) map[string]string {
	out := map[string]string{}
	for _, n := range g.Params() {
		a := n.Attrs.(graph.ParamAttrs)
		out[a.Name] = a.Shape.String()
	}
	return out
}

// goldenParams reads the names and shapes of a golden model's initial weights.
func goldenParams(t *testing.T, name string) map[string]string {
	t.Helper()
	raw, err := os.ReadFile("../../testdata/golden/" + name + ".safetensors")
	if err != nil {
		t.Fatal(err)
	}
	var header map[string]struct{ Shape []int }
	if err := json.Unmarshal(raw[8:8+binary.LittleEndian.Uint64(raw)], &header); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for k, v := range header {
		if p, ok := strings.CutPrefix(k, "init."); ok {
			out[p] = tensor.Shape(v.Shape).String()
		}
	}
	return out
}

// The models of the library have the parameters of the golden models made in PyTorch, by name and shape.
func TestParametersMatchGoldenModels(t *testing.T) {
	for name, text := range map[string]string{
		"gpt": `load("@std//models/gpt.star", "gpt")
load("prelude.star", "run", "text")
model = gpt(vocab = 96, context = 32, width = 64, layers = 2, heads = 4)
run(lambda batch: nn.cross_entropy(model(batch.tokens), batch.targets), text.train)
`,
		"llama": `load("@std//models/gpt.star", "gpt")
load("prelude.star", "run", "text")
model = gpt(vocab = 96, context = 32, width = 64, layers = 2, heads = 4, kv_heads = 2, hidden = 128,
            norm = "rms", positions = "rotary", activation = "swiglu", tied = False, bias = False)
run(lambda batch: nn.cross_entropy(model(batch.tokens), batch.targets), text.train)
`,
		"conv": `load("prelude.star", "run", "digits")
def model(x):
    x = ops.concat([x, x, x], axis = 1)
    x = nn.max_pool(nn.relu(nn.conv2d("conv1", x, 8, padding = 1)), 2)
    x = nn.avg_pool(nn.relu(nn.conv2d("conv2", x, 16, stride = 2, padding = 1)), 3)
    return nn.linear("fc", nn.flatten(x), 10)
run(lambda batch: nn.cross_entropy(model(batch.features), batch.labels), digits.train)
`,
	} {
		t.Run(name, func(t *testing.T) {
			want := goldenParams(t, name)
			spec := mustInline(t, text)
			got := paramShapes(lossGraph(t, spec, true))
			if name == "gpt" || name == "llama" {
				if len(want) < 10 {
					t.Fatalf("the golden file has %d parameters only", len(want))
				}
			}
			for p, shape := range want {
				if got[p] != shape {
					t.Errorf("%s is %q, want %s", p, got[p], shape)
				}
			}
			for p := range got {
				if _, ok := want[p]; !ok {
					t.Errorf("%s is not in the golden model", p)
				}
			}
		})
	}
}

// A tied weight is one parameter with two uses.
func TestTiedWeights(t *testing.T) {
	g := lossGraph(t, mustLoad(t, shipped+"/quickstart.star"), true)
	uses := 0
	for _, n := range g.Nodes {
		for _, v := range n.In {
			if v.Def.Op.Name == "param" && v.Def.Attrs.(graph.ParamAttrs).Name == "wte.weight" {
				uses++
			}
		}
	}
	if uses != 2 {
		t.Errorf("wte.weight is used %d times, want 2", uses)
	}
}

const dropoutRecipe = `
load("prelude.star", "run")
EXTRA = param("extra", False)
def noisy(x):
    return nn.dropout(nn.dropout(x, 0.1), 0.2)
def loss(batch):
    x = nn.flatten(batch.features)
    if EXTRA:
        x = nn.block("first", noisy, x)
    x = nn.block("a", noisy, x)
    x = nn.dropout(x, 0.0)
    return nn.cross_entropy(nn.linear("head", nn.block("b", noisy, x), 10), batch.labels)
run(loss)
`

// Dropout is keyed by its block and its ordinal there: another block does not move it. Evaluation has none.
func TestDropoutKeys(t *testing.T) {
	keys := func(spec *train.Spec, training bool) map[string][]uint64 {
		out := map[string][]uint64{}
		for _, n := range lossGraph(t, spec, training).Nodes {
			if n.Op.Name == "dropout" {
				out[n.Block] = append(out[n.Block], n.Attrs.(graph.DropoutAttrs).Key)
			}
		}
		return out
	}
	plain, extra := keys(mustInline(t, dropoutRecipe), true), keys(mustInline(t, dropoutRecipe, "extra=true"), true)
	if len(plain["a"]) != 2 || plain["a"][0] == plain["a"][1] || plain["a"][0] == plain["b"][0] {
		t.Errorf("keys %v", plain)
	}
	for block, want := range plain {
		if got := extra[block]; len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
			t.Errorf("block %s: keys %v become %v when another block draws too", block, want, got)
		}
	}
	if got := keys(mustInline(t, dropoutRecipe), false); len(got) != 0 {
		t.Errorf("evaluation drops: %v", got)
	}
	if want := drawKey("a", 1); plain["a"][1] != want {
		t.Errorf("key %x, want %x", plain["a"][1], want)
	}
}

// The keys are part of what a run stores: they must never change.
func TestDropoutKeyIsFixed(t *testing.T) {
	if got := drawKey("h.0.mlp", 1); got != 0x54087d534dc09cb0 {
		t.Errorf("drawKey = %#x", got)
	}
}

func TestOperatorsMixTensorsAndNumbers(t *testing.T) {
	spec := mustInline(t, `
load("prelude.star", "run")
def loss(batch):
    x = nn.flatten(batch.features)
    y = 1 + x * 2 - 3.5
    y = 2 - y
    y = 3 / (y / 4)
    y = -y + x[1:3][0] + ops.maximum(x, 0)
    total = nn.mse(y, x, None) * 0.5 + 2 * nn.weighted(ops.sum(x), ops.full((), 3))
    return total / 2
run(loss)
`)
	var got []string
	for _, n := range lossGraph(t, spec, true).Nodes {
		got = append(got, strings.Join(strings.Fields(regexp.MustCompile(`%\d+(, )?`).ReplaceAllString(n.String(), "")), " "))
	}
	want := `= input features
= reshape shape=[4,144]
= scale value=2
= add_scalar value=1
= add_scalar value=-3.5
= scale value=-1
= add_scalar value=2
= scale value=0.25
= pow_scalar value=-1
= scale value=3
= neg
= slice axis=0 start=1 end=3 size=4
= slice axis=0 start=0 end=1 size=2
= reshape shape=[144]
= add
= const value=0 shape=[]
= maximum
= add
= sub
= square
= sum axes=[0,1]
= const value=576 shape=[]
= scale value=0.5
= sum axes=[0,1]
= const value=3 shape=[]
= scale value=2
= add
= add
= scale value=0.5`
	if s := strings.Join(got, "\n"); s != want {
		t.Errorf("got\n%s", s)
	}
}

// A metric that calls the model again shares everything with the loss.
func TestMetricsAddNoSecondModel(t *testing.T) {
	spec := mustLoad(t, shipped+"/mlp_digits.star")
	train, eval := lossGraph(t, spec, true), lossGraph(t, spec, false)
	if a, b := len(train.Nodes), len(eval.Nodes); b != a+3 { // argmax, equal, sum
		t.Errorf("training has %d nodes, evaluation %d", a, b)
	}
	if eval.Output("metric.accuracy") == nil || eval.Output("metric_weight.accuracy") != eval.Output("weight") {
		t.Error("outputs of the metric are missing")
	}
}

func TestSampleForward(t *testing.T) {
	spec := mustLoad(t, shipped+"/quickstart.star")
	s := spec.Samples[0]
	if s.Context != 128 || s.Tokenizer.Vocab() != 256 || s.Prompt != "func " {
		t.Fatalf("sample %+v", s)
	}
	g, err := s.Forward(train.Input{Name: "tokens", Type: graph.Type{DType: tensor.I32, Shape: tensor.Shape{1, 128}}})
	if err != nil {
		t.Fatal(err)
	}
	if got := g.Output("logits").Type.String(); got != "f32[1,128,256]" {
		t.Errorf("logits are %s", got)
	}
}

func TestPlacementParamsStayOutOfTheDigest(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "r.star")
	text := `
ranks = param("ranks", 1, placement = True)
scale = param("scale", 1.0)
digits = data.digits(samples = 100)
def on_step(m):
    return action.scale_lr(scale)
train(loss = lambda b: nn.cross_entropy(nn.linear("head", nn.flatten(b.features), 10), b.labels), data = loader(digits.train, global_batch = 8, micro_batch = 2),
    optimizer = optim.sgd(lr = 0.1), steps = 1, on_step = on_step, parallel = parallel.mesh(data = ranks))
`
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	digest := func(set ...string) string {
		spec, err := Load(path, Options{Set: set})
		if err != nil {
			t.Fatal(err)
		}
		d, err := Digest(spec)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	if digest() != digest("ranks=4") {
		t.Error("a placement param changes the digest")
	}
	if digest() == digest("scale=0.5") {
		t.Error("a param that a hook reads does not change the digest")
	}
}

func TestResnetRefusesSizesThatAreNone(t *testing.T) {
	for args, want := range map[string]string{
		"width = 0":          "resnet: width = 0 must be an int of at least 1",
		"layers = [2, 0]":    "resnet: layers[1] = 0 must be an int of at least 1",
		"stem = 3.5":         "resnet: stem = 3.5 must be an int of at least 1",
		"layers = [\"two\"]": "resnet: layers[0] = \"two\" must be an int of at least 1",
	} {
		_, err := Load(filepath.Join(recipeFolder(t, "sizes.star", "load(\"@std//models/resnet.star\", \"resnet\")\nresnet(classes = 10, "+args+")\n"), "sizes.star"), Options{})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), ".star:2") {
			t.Errorf("%s: %v", args, err)
		}
	}
}
