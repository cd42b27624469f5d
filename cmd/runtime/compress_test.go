package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"starling/core/train"
)

// compressing is the recipe of the invariance table with compressed gradients.
func compressing(t *testing.T, method string) string {
	text, err := os.ReadFile(invarianceRecipe())
	if err != nil {
		t.Fatal(err)
	}
	const mesh = "parallel.mesh("
	if strings.Count(string(text), mesh) != 1 {
		t.Fatalf("%s has not one %s", invarianceRecipe(), mesh)
	}
	return recipeFile(t, strings.Replace(string(text), mesh, mesh+"compress = "+method+", ", 1))
}

// Compressed gradients give the same weights each time where the ranks are the same: whatever moves the bytes, with any number of
// threads, on any instruction set.
func TestCompressedRunsRepeatThemselves(t *testing.T) {
	dense := runtimeResult(t, filepath.Join(t.TempDir(), "run"), "exec", invarianceRecipe(), "--set", "ranks=3", "--threads", "1")
	for _, method := range []string{"compress.int8(block = 64)", "compress.topk(ratio = 0.05, warmup = 10)", "compress.powersgd(rank = 2, warmup = 5)"} {
		recipe := compressing(t, method)
		run := func(args ...string) *train.Result {
			return runtimeResult(t, filepath.Join(t.TempDir(), "run"), append([]string{"exec", recipe}, args...)...)
		}
		base := run("--set", "ranks=3", "--threads", "1")
		if base.WeightsSHA256 == dense.WeightsSHA256 {
			t.Errorf("%s: the weights are those without compression", method)
		}
		if base.SentBytes*3 > dense.SentBytes*2 {
			t.Errorf("%s: %d bytes sent in the last step, %d without compression", method, base.SentBytes, dense.SentBytes)
		}
		ways := map[string][]string{"over TCP": {"--listen", "tcp:127.0.0.1:0"}}
		if strings.Contains(method, "int8") { // the others differ in nothing that these look at
			ways["over Unix sockets"], ways["in process, 2 threads"] = []string{"--transport", "unix"}, []string{"--in-process", "--threads", "2"}
		}
		for name, args := range ways {
			if r := run(append([]string{"--set", "ranks=3"}, args...)...); r.WeightsSHA256 != base.WeightsSHA256 {
				t.Errorf("%s, %s: weights %.16s, want %.16s", method, name, r.WeightsSHA256, base.WeightsSHA256)
			}
		}
		if available(t, "avx2") {
			t.Setenv("STARLING_KERNELS", "avx2")
			if r := run("--set", "ranks=3"); r.WeightsSHA256 != base.WeightsSHA256 {
				t.Errorf("%s, AVX2 kernels: weights %.16s, want %.16s", method, r.WeightsSHA256, base.WeightsSHA256)
			}
			os.Unsetenv("STARLING_KERNELS")
		}
		for _, zero := range []string{"zero=0", "zero=1", "zero=3"} {
			if zero == "zero=3" && !strings.Contains(method, "int8") {
				continue
			}
			hosts := []string{"--set", "ranks=4", "--hosts", "a,a,b,b", "--set", zero, "--set", "steps=8"}
			a, b := run(append(hosts, "--listen", "tcp:127.0.0.1:0")...), run(append(hosts, "--in-process")...)
			if a.WeightsSHA256 != b.WeightsSHA256 {
				t.Errorf("%s, %s on 2 hosts: weights %.16s over TCP, %.16s in process", method, zero, a.WeightsSHA256, b.WeightsSHA256)
			}
			if !strings.Contains(method, "int8") {
				continue
			}
			if c := run(append(hosts, "--set", "reduction=direct")...); c.WeightsSHA256 == a.WeightsSHA256 {
				t.Errorf("%s, %s: a direct sum, which compresses between ranks, has the weights of one that compresses between hosts", method, zero)
			}
		}
	}
}

// What methods cost and send at the quickstart's full length: minutes, so only where STARLING_LONG is set.
func TestCompressionAtFullLength(t *testing.T) {
	if os.Getenv("STARLING_LONG") == "" {
		t.Skip("set STARLING_LONG=1: this trains the quickstart's model seven times")
	}
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	text, err := os.ReadFile(filepath.Join("testdata", "compress.star"))
	if err != nil {
		t.Fatal(err)
	}
	recipe := recipeFile(t, string(text))
	buildFourbit(t, recipe)
	run := func(args ...string) (loss, sent float64) {
		set := []string{"exec", recipe}
		for _, a := range args {
			set = append(set, "--set", a)
		}
		r := runtimeResult(t, filepath.Join(t.TempDir(), "run"), set...)
		t.Logf("%v: held-out loss %.4f, %d bytes sent in the last step", args, float64(*r.EvalLoss), r.SentBytes)
		return float64(*r.EvalLoss), float64(r.SentBytes)
	}
	adam, dense := run("method=none")
	sgd, _ := run("method=none", "opt=sgd", "lr=0.1")
	for _, c := range []struct {
		args       []string
		base       float64
		loss, sent float64 // at most, of base and of dense
	}{
		{[]string{"method=int8"}, adam, 1.02, 0.27},
		{[]string{"method=fourbit"}, adam, 1.02, 0.15},
		{[]string{"method=dgc", "opt=sgd", "lr=0.2"}, sgd, 1.05, 0.025},
		{[]string{"method=powersgd", "warmup=900"}, adam, 1.03, 0.05},
		{[]string{"method=dgc", "opt=sgd", "lr=0.2", "ratio=0.001"}, sgd, 2, 0.01},
	} {
		loss, sent := run(c.args...)
		if loss > c.loss*c.base || sent > c.sent*dense {
			t.Errorf("%v: loss %.4f of %.4f without compression, %.4f of the bytes; want at most %v and %v", c.args, loss, c.base, sent/dense, c.loss, c.sent)
		}
	}
}
