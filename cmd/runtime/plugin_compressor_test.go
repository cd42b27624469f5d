package main

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"starling/sdk"
)

const signsPrefix = "signs"

func isSigns() bool {
	return os.Getenv(sdk.CookieKey) == sdk.CookieValue && strings.HasPrefix(filepath.Base(os.Args[0]), signsPrefix)
}

func serveSigns() { sdk.Serve(&signs{name: filepath.Base(os.Args[0])}) }

// signs sends one bit an element and the mean magnitude of a block, so that zeros do not stay zeros. As signs-brittle
// it breaks after 40 calls, and then always, until a file mended lies beside it.
type signs struct {
	name  string
	calls int
}

func (s *signs) Manifest() sdk.Manifest {
	return sdk.Manifest{Name: s.name, Version: "1.0.0", Hypers: []sdk.Hyper{sdk.Int("block", 64, "").AtLeast(8)}}
}

func (s *signs) Setup(h sdk.Hypers) (sdk.Layout, error) {
	if b := h.Int("block"); b != 64 {
		return sdk.Layout{}, fmt.Errorf("block = %d is none that I like", b)
	}
	return sdk.Layout{Block: 64, BlockBytes: 10}, nil
}

func (s *signs) Encode(dst []byte, x []float32) error {
	if s.calls++; s.name == "signs-brittle" && !exists("mended") && (s.calls > 40 || exists("broken")) {
		_ = os.WriteFile(filepath.Join(filepath.Dir(os.Args[0]), "broken"), nil, 0o644)
		os.Stderr.WriteString("the brittle part broke\n")
		os.Exit(3)
	}
	for len(x) > 0 {
		part := x[:min(64, len(x))]
		sum := float32(0)
		for i, v := range part {
			sum += max(v, -v)
			if v < 0 {
				dst[2+i/8] |= 1 << (i % 8)
			}
		}
		// As a bfloat16, rounded down: its upper half.
		binary.LittleEndian.PutUint16(dst, uint16(math.Float32bits(sum/float32(len(part)))>>16))
		dst, x = dst[10:], x[len(part):]
	}
	return nil
}

// exists reports whether there is a file beside this program.
func exists(name string) bool {
	_, err := os.Stat(filepath.Join(filepath.Dir(os.Args[0]), name))
	return err == nil
}

func (s *signs) Decode(dst []float32, src []byte) error {
	for i := range dst {
		b := src[i/64*10:]
		if dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(b)) << 16); b[2+i%64/8]>>(i%8)&1 != 0 {
			dst[i] = -dst[i]
		}
	}
	return nil
}

// compressorRecipe is the recipe of the invariance table, compressed by a plugin that lies beside it.
func compressorRecipe(t *testing.T, name string) string {
	t.Helper()
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	recipe := compressing(t, fmt.Sprintf("plugin.compressor(%q)", name))
	serveAs(t, filepath.Join(filepath.Dir(recipe), "plugins"), name)
	return recipe
}

// A plugin that compresses gradients gives the same weights each time, sharded or not, under a loss scale and between hosts; what it cannot send it
// keeps over a resume.
func TestPluginCompressor(t *testing.T) {
	recipe := compressorRecipe(t, "signs")
	plugins := filepath.Join(filepath.Dir(recipe), "plugins")
	run := func(args ...string) (weights string, sent int64) {
		dir := filepath.Join(t.TempDir(), "run")
		r := runtimeResult(t, dir, append([]string{"exec", recipe, "--set", "steps=8"}, args...)...)
		if left := pluginProcesses(t, plugins); len(left) != 0 {
			t.Errorf("%v: plugins %v are still there", args, left)
		}
		return r.WeightsSHA256, r.SentBytes
	}
	dense := runtimeResult(t, filepath.Join(t.TempDir(), "run"), "exec", invarianceRecipe(), "--set", "ranks=2", "--set", "steps=8")
	for _, sets := range []string{"ranks=2", "ranks=3 zero=3 precision=fp16"} {
		args := pluginSets(strings.Fields(sets)...)
		a, sent := run(append(args, "--threads", "1")...)
		if b, _ := run(args...); a != b {
			t.Errorf("%s: weights %.16s, then %.16s", sets, a, b)
		}
		if a == dense.WeightsSHA256 {
			t.Errorf("%s: the weights are those without compression", sets)
		}
		if sets == "ranks=2" && sent*15 > dense.SentBytes {
			t.Errorf("%s: %d bytes sent, %d without compression", sets, sent, dense.SentBytes)
		}
	}
	hosts := []string{"--set", "ranks=4", "--hosts", "a,a,b,b", "--listen", "tcp:127.0.0.1:0"}
	a, _ := run(hosts...)
	if b, _ := run(hosts...); a != b {
		t.Errorf("on 2 hosts: weights %.16s, then %.16s", a, b)
	}
	if one, _ := run("--set", "ranks=1"); one != dense.WeightsSHA256 {
		t.Errorf("one rank alone: weights %.16s, want %.16s", one, dense.WeightsSHA256)
	}
}

// Plugins that are killed at random moments, and a run that is killed and goes on, change nothing.
func TestPluginCompressorKilled(t *testing.T) {
	recipe := compressorRecipe(t, "signs")
	plugins := filepath.Join(filepath.Dir(recipe), "plugins")
	sets := pluginSets("ranks=2", "checkpoint=3", "steps=40")
	base := runtimeResult(t, filepath.Join(t.TempDir(), "base"), append([]string{"exec", recipe}, sets...)...)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for i, kills := 0, 0; kills < 4; i++ {
		dir := filepath.Join(t.TempDir(), strconv.Itoa(i))
		p := start(t, append([]string{"exec", recipe, "--run-dir", dir}, sets...)...)
		for done, start := false, time.Now(); !done; {
			select {
			case <-p.exited:
				done = true
			case <-time.After(time.Duration(20+random.IntN(150)) * time.Millisecond):
				if time.Since(start) > time.Minute {
					t.Fatal("the run does not end")
				}
				if pids := pluginProcesses(t, plugins); len(pids) > 0 && kills < 4 {
					if syscall.Kill(pids[random.IntN(len(pids))], syscall.SIGKILL) == nil {
						kills++
					}
				}
			}
		}
		if code := p.cmd.ProcessState.ExitCode(); code != 0 {
			t.Fatalf("exit status %d\n%s", code, p.stderr.String())
		}
		if r := readResult(t, dir); r.WeightsSHA256 != base.WeightsSHA256 {
			t.Errorf("after %d kills: weights %s, want %s\n%s", kills, r.WeightsSHA256, base.WeightsSHA256, p.stderr.String())
		}
	}
	dir := filepath.Join(t.TempDir(), "resumed")
	p := start(t, append([]string{"exec", recipe, "--run-dir", dir}, sets...)...)
	eventually(t, 20*time.Second, "no checkpoint", func() bool {
		c, _ := filepath.Glob(filepath.Join(dir, "checkpoints", "step-*", "COMMIT"))
		return len(c) > 0
	})
	_ = p.cmd.Process.Kill()
	<-p.exited
	eventually(t, 10*time.Second, "plugins outlive their ranks", func() bool { return len(pluginProcesses(t, plugins)) == 0 })
	if r := runtimeResult(t, dir, append(append([]string{"exec", recipe}, sets...), "--resume")...); r.WeightsSHA256 != base.WeightsSHA256 {
		t.Errorf("after a resume: weights %s, want %s", r.WeightsSHA256, base.WeightsSHA256)
	}
}

// A plugin that fails again and again ends the run with an error that names it and what it said last. With a mended one the run goes on
// from its checkpoint, to the bits of a run that nothing happened to.
func TestPluginCompressorGivenUp(t *testing.T) {
	recipe := compressorRecipe(t, "signs-brittle")
	text, err := os.ReadFile(recipe)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "run")
	args := append([]string{"exec", recipe}, pluginSets("ranks=2", "checkpoint=3")...)
	p := start(t, append(args, "--run-dir", dir)...)
	if code := p.wait(t, time.Minute); code != 1 {
		t.Fatalf("exit status %d\n%s", code, p.stderr.String())
	}
	contains(t, p.stderr.String(), "plugin signs-brittle failed in encoding", "its process ended", "exit status 3", "it was tried 4 times", "the brittle part broke")
	if err := os.WriteFile(filepath.Join(filepath.Dir(recipe), "plugins", "mended"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	base := runtimeResult(t, filepath.Join(t.TempDir(), "base"), args...)
	if r := runtimeResult(t, dir, append(args, "--resume")...); r.WeightsSHA256 != base.WeightsSHA256 {
		t.Errorf("weights %s, want %s", r.WeightsSHA256, base.WeightsSHA256)
	}

	p = start(t, append([]string{"check", recipe}, pluginSets("reduction=fast")...)...)
	if code := p.wait(t, 20*time.Second); code != 1 {
		t.Errorf("exit status %d", code)
	}
	contains(t, p.stderr.String(), `plugin.compressor("signs-brittle") with parallel.mesh(reduction = "fast")`)
	for call, want := range map[string]string{
		`plugin.compressor("signs-brittle", block = 63)`:  `Setup: block = 63 is none that I like`,
		`plugin.compressor("signs-brittle", block = 1)`:   `block = 1: must be at least 8`,
		`plugin.compressor("signs-brittle", blocks = 64)`: `did you mean "block"?`,
		`plugin.compressor("missing")`:                    `there is no plugin "missing"`,
		`plugin.optimizer("signs-brittle", lr = 1)`:       `no optimizer: a recipe names it with plugin.compressor("signs-brittle", …)`,
	} {
		path := filepath.Join(filepath.Dir(recipe), "mistake.star")
		if err := os.WriteFile(path, []byte(strings.Replace(string(text), `plugin.compressor("signs-brittle")`, call, 1)), 0o644); err != nil {
			t.Fatal(err)
		}
		p := start(t, "check", path)
		if code := p.wait(t, 20*time.Second); code != 1 {
			t.Errorf("%s: exit status %d", call, code)
		}
		contains(t, p.stderr.String(), "mistake.star:", want)
	}
}

// The compressor of this repository trains nearly as well as no compression, for a seventh of the bytes.
func TestFourbit(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	recipe := compressing(t, `plugin.compressor("fourbit")`)
	buildFourbit(t, recipe)
	sets := pluginSets("ranks=2")
	dense := runtimeResult(t, filepath.Join(t.TempDir(), "dense"), append([]string{"exec", invarianceRecipe()}, sets...)...)
	r := runtimeResult(t, filepath.Join(t.TempDir(), "run"), append([]string{"exec", recipe}, sets...)...)
	if r.TrainLoss == dense.TrainLoss || r.TrainLoss > 1.01*dense.TrainLoss || r.SentBytes*13 > dense.SentBytes*2 {
		t.Errorf("loss %v with %d bytes, %v with %d without compression", r.TrainLoss, r.SentBytes, dense.TrainLoss, dense.SentBytes)
	}
}

// buildFourbit builds the plugin into the folder plugins beside a recipe.
func buildFourbit(t *testing.T, recipe string) {
	t.Helper()
	cmd := exec.Command("go", "build", "-o", filepath.Join(filepath.Dir(recipe), "plugins", "fourbit"), ".")
	cmd.Dir = filepath.Join("..", "..", "plugins", "fourbit")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
