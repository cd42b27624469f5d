package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"starling/core/device"
	"starling/core/device/cpu"
	"starling/core/recipe"
)

// tinyRecipe is a model small enough to benchmark within a test.
const tinyRecipe = `
load("@std//models/gpt.star", "gpt")
corpus = data.text("*.txt", tokenizer = tokenizer.bytes(), context = 8)
model = gpt(vocab = corpus.vocab, context = 8, width = 16, layers = 1, heads = 2)
def loss(batch):
    return nn.cross_entropy(model(batch.tokens), batch.targets)
train(loss = loss, steps = 1000, data = loader(corpus.train, global_batch = 4, micro_batch = 2), optimizer = optim.adamw(lr = 1e-3),
      checkpoint = checkpoint(every = 1), sample = sample(model, tokens = 4, every = 1), parallel = parallel.mesh(data = param("ranks", 1)))
`

func writeTiny(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	text := make([]byte, 0, 4000)
	for i := range 4000 {
		text = append(text, "starling "[i%9])
	}
	for name, content := range map[string][]byte{"tiny.star": []byte(tinyRecipe), "a.txt": text} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "tiny.star")
}

func TestBenchStepTimesTheStepsOfARun(t *testing.T) {
	path := writeTiny(t)
	var sums []string
	for _, ranks := range []string{"1", "2"} {
		out := output(t, "bench", "step", path, "--set", "ranks="+ranks, "--steps", "4", "--json")
		var r stepResult
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatal(err)
		}
		if r.Steps != 4 || r.Targets != 32 || r.MedianMS <= 0 || r.PerSecond <= 0 || r.BestMS > r.MedianMS {
			t.Errorf("ranks=%s: %+v", ranks, r)
		}
		sums = append(sums, r.WeightSHA256)
	}
	if sums[0] != sums[1] {
		t.Errorf("the steps of two ranks ended in other weights than those of one: %v", sums)
	}
}

func TestBenchOpsTimesEveryKernelOfARecipe(t *testing.T) {
	out := output(t, "bench", "ops", writeTiny(t), "--rounds", "1", "--json")
	var r opsResult
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	share, seen := 0.0, map[string]bool{}
	for _, o := range r.Ops {
		share += o.Share
		seen[o.Op] = true
	}
	if share < 0.98 || share > 1.02 {
		t.Errorf("the shares add up to %v", share)
	}
	for _, op := range []string{"linear", "linear_grad_w", "attention_joint_grad", "adamw", "sum_squares"} {
		if !seen[op] {
			t.Errorf("%s is missing", op)
		}
	}
	if r.Limits.Peak <= 0 || r.Limits.Copy <= 0 {
		t.Errorf("limits %+v", r.Limits)
	}
}

// A step's programs allocate nothing, whatever the model: the whole of forward, backward, norm and update.
func TestAStepAllocatesNothing(t *testing.T) {
	for _, c := range []struct {
		recipe string
		set    []string
	}{
		{"quickstart.star", nil},
		{"small_gpt.star", []string{"micro_batch=1"}},
		{"small_gpt.star", []string{"micro_batch=1", "precision=bf16"}},
		{"convnet_digits.star", nil},
	} {
		t.Run(c.recipe+strings.Join(c.set, " "), func(t *testing.T) {
			dev, err := cpu.Open(cpu.Config{Threads: 2})
			if err != nil {
				t.Fatal(err)
			}
			defer dev.Close()
			b, err := bindRecipe(t.Context(), dev, filepath.Join("..", "..", "recipes", c.recipe), c.set)
			if err != nil {
				t.Fatal(err)
			}
			defer b.close()
			env := &device.Env{FirstInLane: true, LastInLane: true, LastOnRank: true}
			n := testing.AllocsPerRun(2, func() {
				for _, p := range b.programs {
					if err := p.Run(env); err != nil {
						t.Fatal(err)
					}
				}
			})
			if n > 0 {
				t.Errorf("a step allocates %v times", n)
			}
		})
	}
}

// Every duel has its recipe and its script, and its recipe takes what it is given.
func TestDuelsHaveTheirFiles(t *testing.T) {
	root := filepath.Join("..", "..")
	for _, d := range duels() {
		if _, err := os.Stat(filepath.Join(root, "testdata", "peers", d.script)); err != nil {
			t.Errorf("%s: %v", d.Name, err)
		}
		if _, err := recipe.Params(filepath.Join(root, "recipes", d.recipe), recipe.Options{Set: d.set}); err != nil {
			t.Errorf("%s: %v", d.Name, err)
		}
	}
}

// A step of images counts images as its targets.
func TestBenchStepCountsImages(t *testing.T) {
	out := output(t, "bench", "step", filepath.Join("..", "..", "recipes", "cifar_resnet18.star"), "--set", "width=4", "--set", "global_batch=6",
		"--set", "micro_batch=3", "--steps", "2", "--json")
	var r stepResult
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	if r.Steps != 2 || r.Targets != 6 || r.PerSecond <= 0 {
		t.Errorf("%+v", r)
	}
}

func TestBenchPeersSaysWhatIsMissing(t *testing.T) {
	p := start(t, "bench", "peers", "--python", "no-such-python")
	if code := p.wait(t, time.Minute); code != 1 {
		t.Errorf("exit status %d", code)
	}
	contains(t, p.stderr.String(), "no-such-python", "--python")
}

// output runs the command line to its end and returns what it printed.
func output(t *testing.T, args ...string) string {
	t.Helper()
	p := start(t, args...)
	if code := p.wait(t, time.Minute); code != 0 {
		t.Fatalf("runtime %v: exit status %d\n%s", args, code, p.stderr.String())
	}
	return p.stdout.String()
}

// The placements that take turns are ones that bench step and the peer's script understand; what they cannot run without is named.
func TestBenchMemory(t *testing.T) {
	root := filepath.Join("..", "..")
	if _, err := os.Stat(filepath.Join(root, "testdata", "peers", "fsdp_step.py")); err != nil {
		t.Error(err)
	}
	for _, c := range contests() {
		for _, e := range c.entries {
			if e.script {
				continue
			}
			var set []string
			for i, a := range e.args {
				if a == "--set" {
					set = append(set, e.args[i+1])
				}
			}
			if _, err := recipe.Load(filepath.Join(root, "recipes", "small_gpt.star"), recipe.Options{Set: set}); err != nil {
				t.Errorf("%s, %s: %v", c.Name, e.Name, err)
			}
		}
	}
	for _, args := range [][]string{{"--only", "nothing"}, {"--rounds", "0"}, {"--steps", "0"}} {
		if p := start(t, append([]string{"bench", "memory"}, args...)...); p.wait(t, 20*time.Second) != 2 {
			t.Errorf("bench memory %v: want exit status 2, got %s", args, p.stderr.String())
		}
	}
}
