//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"starling/core/train"
)

// overlapRecipe is a small GPT whose gradient leaves in many buckets.
const overlapRecipe = `
load("@std//models/gpt.star", "gpt")
steps = param("steps", 8, "optimizer steps")
zero = param("zero", 0, "what is sharded")
corpus = data.text("$GOROOT/src/fmt/*.go", tokenizer = tokenizer.bytes(), context = 64, holdout = 0.1)
model = gpt(vocab = corpus.vocab, context = 64, width = 128, layers = 6, heads = 4)
def loss(batch):
    return nn.cross_entropy(model(batch.tokens), batch.targets)
train(
    loss      = loss,
    data      = loader(corpus.train, global_batch = 32, micro_batch = 16),
    optimizer = optim.sgd(lr = 0.01),
    parallel  = parallel.mesh(data = 2, threads = 1, zero = zero, bucket_mb = 0.25, first_bucket_mb = 0.25),
    steps     = steps,
)
`

// TestCommunicationIsHidden: between two hosts whose link is so slow that a step's communication takes about as long as the
// backward pass after its first bucket, nine tenths of what can run beside the backward pass does. With zero = 1 that is not only
// the gradients' way to their owners, but the way back of the parameters that these have updated, which needs the processors while the
// backward pass does: eight tenths of it. It measures times, so it runs only with STARLING_LONG, where nothing runs beside it, as the gate
// sees to.
func TestCommunicationIsHidden(t *testing.T) {
	if os.Getenv("STARLING_LONG") == "" {
		t.Skip("set STARLING_LONG=1: it measures times, and wants a machine that has nothing else to do")
	}
	recipe := recipeFile(t, overlapRecipe)
	names := namespaces(t, 2)
	for zero, want := range []float64{0.9, 0.8} {
		t.Run(fmt.Sprint("zero=", zero), func(t *testing.T) { checkHidden(t, recipe, names, zero, want) })
	}
}

func checkHidden(t *testing.T, recipe string, names []string, zero int, want float64) {
	t.Helper()
	shape := func(bytesPerSecond float64) {
		for i, device := range []string{"v1", "eth0"} {
			args := []string{"-n", names[i], "qdisc", "replace", "dev", device, "root", "tbf", "rate", fmt.Sprintf("%.0fbit", 8*bytesPerSecond), "burst", "128kb", "latency", "100ms"}
			if out, err := exec.Command("tc", args...).CombinedOutput(); err != nil {
				t.Skipf("no links of a given speed here: tc %s: %v: %s", strings.Join(args, " "), err, out)
			}
		}
	}
	run := func() (comm, window, hidden float64, sent int64) {
		dir := filepath.Join(t.TempDir(), "run")
		var ps []*process
		for i, host := range names {
			ps = append(ps, startThrough(t, inside(host), []string{fmt.Sprint("RANK=", i), "WORLD_SIZE=2", "STARLING_SECRET=a secret for these processes alone"},
				"exec", recipe, "--run-dir", dir, "--rendezvous", "10.77.8.1:29400", "--tls", "off", "--set", fmt.Sprint("zero=", zero)))
		}
		for i, p := range ps {
			if code := p.wait(t, time.Minute); code != 0 {
				t.Fatalf("process %d: exit status %d\n%s", i, code, p.stderr.String())
			}
		}
		comm, window, hidden = commFigures(t, dir)
		return comm, window, hidden, readResult(t, dir).SentBytes
	}
	shape(10e9)
	_, window, _, sent := run()
	rate := float64(sent) / window
	var best float64
	for range 12 { // other work on this machine makes steps longer, and steps of the two ranks unlike
		shape(rate)
		comm, window, hidden, _ := run()
		t.Logf("a link of %.1f MB/s: %.0f ms of communication, a backward pass of %.0f ms after its first bucket, %.0f%% hidden", rate/1e6, 1e3*comm, 1e3*window, 100*hidden)
		if ratio := comm / window; ratio < 0.7 || ratio > 1.4 {
			rate *= ratio
			continue
		}
		if best = max(best, hidden); best >= want {
			return
		}
	}
	t.Errorf("at best %.0f%% of the communication is hidden, want %.0f%%", 100*best, 100*want)
}

// commFigures are the medians of a run's steps.
func commFigures(t *testing.T, dir string) (comm, window, hidden float64) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, train.MetricsFile))
	if err != nil {
		t.Fatal(err)
	}
	var all [3][]float64
	for line := range strings.Lines(string(b)) {
		var m struct {
			Kind   string  `json:"kind"`
			Step   int     `json:"step"`
			Comm   float64 `json:"comm_s"`
			Window float64 `json:"comm_window_s"`
			Hidden float64 `json:"comm_hidden"`
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if m.Kind == "step" && m.Step > 1 {
			for i, v := range []float64{m.Comm, m.Window, m.Hidden} {
				all[i] = append(all[i], v)
			}
		}
	}
	var out [3]float64
	for i, v := range all {
		if len(v) == 0 {
			t.Fatalf("no figures of communication in %s", b)
		}
		slices.Sort(v)
		out[i] = v[len(v)/2]
	}
	return out[0], out[1], out[2]
}
