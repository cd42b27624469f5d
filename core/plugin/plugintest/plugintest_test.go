package plugintest

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"starling/core/plugin"
	"starling/sdk"
	pb "starling/sdk/proto/v1"
)

// The test binary plays the plugins: one that keeps its word, and one for each way of breaking it.
func TestMain(m *testing.M) {
	if os.Getenv(sdk.CookieKey) == sdk.CookieValue {
		sdk.Serve(served())
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// subject is gradient descent with momentum, or what its name says.
type subject struct {
	name  string
	calls int
}

func (s *subject) Manifest() sdk.Manifest {
	m := sdk.Manifest{Name: s.name, Version: "1.0.0", Optimizer: &sdk.OptimizerInfo{Granularity: sdk.Elementwise, State: []sdk.Slot{sdk.State("m", 0)}}}
	switch s.name {
	case "mapper-whole", "threaded-whole", "replacer-whole":
		m.Optimizer.Granularity = sdk.Whole
	case "whole":
		m.Optimizer.Granularity = sdk.Whole
		m.Optimizer.State = append(m.Optimizer.State, sdk.Scalar("count", 1), sdk.Shaped("left", 0, "rows", "rows"))
	}
	return m
}

func (s *subject) Setup(sdk.Hypers) error { return nil }

func (s *subject) Step(t *sdk.Tensor) error {
	if s.name == "idle" {
		return nil
	}
	m := t.State[0]
	for i, g := range t.Grad {
		m[i] = float32(0.9*m[i]) + g
		t.Param[i] -= float32(float32(t.Rate) * m[i])
	}
	switch s.name {
	case "positional": // counts from where it was cut
		for i := range t.Param {
			t.Param[i] += float32(i)
		}
	case "random":
		for i := range t.Param {
			t.Param[i] += rand.Float32()
		}
	case "mapper-whole": // sums in the order of a map
		parts := map[int]float32{}
		for i, g := range t.Grad {
			parts[i%16] += g
		}
		sum := float32(0)
		for _, p := range parts {
			sum += p
		}
		for i := range t.Param {
			t.Param[i] -= sum
		}
	case "threaded-whole":
		for i := range t.Param {
			t.Param[i] += float32(t.Threads)
		}
	case "late": // not finite in a later step
		if t.Step == 3 && t.To > 0 {
			t.Param[0] = float32(math.NaN())
		}
	case "infinite":
		if t.Step == 3 && t.To > 0 {
			m[0] = float32(math.Inf(-1))
		}
	case "replacer":
		t.State[0] = append([]float32(nil), m...)
	case "replacer-whole":
		t.Param = append([]float32(nil), t.Param...)
	case "averager": // not element-wise
		sum := float32(0)
		for _, g := range t.Grad {
			sum += g
		}
		for i := range t.Param {
			t.Param[i] -= sum
		}
	case "rememberer":
		s.calls++
		for i := range t.Param {
			t.Param[i] += float32(s.calls)
		}
	case "divider":
		for i, g := range t.Grad {
			t.Param[i] /= g
		}
	case "whole":
		t.State[1][0]++
		for i := range t.State[2] {
			t.State[2][i] += t.State[1][0]
		}
	}
	return nil
}

func subjectUse(t *testing.T, name string) *plugin.Use {
	t.Helper()
	return subjectIn(t, t.TempDir(), name)
}

// subjectIn lets the test binary play a plugin that lies in a folder.
func subjectIn(t *testing.T, dir, name string) *plugin.Use {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, name)
	b, err := os.ReadFile(self)
	if err == nil {
		err = os.WriteFile(path, b, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	f, err := plugin.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	m, err := plugin.Describe(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	sha, err := f.Hash()
	if err != nil {
		t.Fatal(err)
	}
	return &plugin.Use{Found: f, Manifest: m, SHA256: sha}
}

// The suite passes what keeps its word, and names what each of the others breaks.
func TestSuite(t *testing.T) {
	for name, want := range map[string]string{
		"honest":          "",
		"whole":           "",
		"averager":        "is element-wise: the result depends on how a parameter is cut",
		"positional":      "is element-wise: the result depends on how a parameter is cut",
		"rememberer":      "has no hidden state: a process that was started again computes something else",
		"random":          "is deterministic: two processes differ",
		"mapper-whole":    "is deterministic: two processes differ",
		"threaded-whole":  "is deterministic: one thread and four differ",
		"divider":         "gives finite values for gradients of zero: ",
		"late":            "takes steps: it computed NaN for element 0 of parameter p0.weight",
		"infinite":        "takes steps: it computed -Inf for element 0 of state p0.weight/m",
		"replacer":        "takes steps: Step must change t.State[0] in place",
		"replacer-whole":  "takes steps: Step must change t.Param in place",
		"idle":            "takes steps: no parameter has changed",
		"coder":           "",
		"coder-swells":    "says how large encodings are: ",
		"coder-remembers": "is deterministic and has no hidden state: a vector of 1 elements has two encodings",
		"coder-ages":      "is deterministic and has no hidden state: a vector of 65 elements has another encoding after 999 calls",
		"coder-draws":     "is deterministic and has no hidden state: ",
		"coder-mute":      "delivers a gradient: what encodings lose is not made up by later ones",
		"coder-greedy":    "encodes and decodes: Encode panicked",
		"coder-fragile":   "refuses what is no encoding: Decode panicked: that is no encoding",
		"clock":           "",
		"clock-counts":    "has no hidden state: a rate must depend on the settings and the step alone",
		"clock-draws":     "is deterministic: and in another process",
		"clock-nan":       "gives finite rates: the learning rate of step 0 is NaN",
		"drain":           "",
		"drain-fails":     "takes the figures: the disk is full",
		"drain-mute":      "takes the figures: it wrote nothing into the run's folder",
		"drain-leaks":     "takes the figures: half of it is not on disk",
		"drain-once":      "goes on after a resume: I have been here before",
	} {
		t.Run(name, func(t *testing.T) {
			expect(t, want, func(ctx context.Context, report func(Check)) error {
				return Run(ctx, subjectUse(t, name), map[string]any{}, report)
			})
		})
	}
}

// expect runs a suite that must fail in the check and with the words that want has, separated by a colon, or not at all. What comes after the
// failure is left out.
func expect(t *testing.T, want string, suite func(context.Context, func(Check)) error) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	name, words, _ := strings.Cut(want, ": ")
	failed, found := "", false
	err := suite(ctx, func(c Check) {
		if c.Err != nil && !found {
			failed += fmt.Sprintf("\n%s: %v", c.Name, c.Err)
			if found = want != "" && strings.HasPrefix(c.Name, name) && strings.Contains(c.Err.Error(), words); found {
				stop()
			}
		}
	})
	if (want == "") != (err == nil) || want != "" && !found {
		t.Errorf("want %q to fail: %v%s", want, err, failed)
	}
}

// An upgrade is let through if it does what it should, and otherwise named.
func TestUpgradesAreChecked(t *testing.T) {
	before := subjectIn(t, folderOf(t, "first"), "mover")
	for version, words := range map[string]string{
		"good":   "",
		"cuts":   "depends on how a parameter is cut",
		"draws":  "another process upgrades the same state otherwise",
		"nan":    "not finite",
		"short":  "state",
		"fails":  "I cannot read that",
		"panics": "panicked: what is this",
	} {
		t.Run(version, func(t *testing.T) {
			want := ""
			if words != "" {
				want = "upgrades the state of 1.0.0: " + words
			}
			expect(t, want, func(ctx context.Context, report func(Check)) error {
				return Optimizer(ctx, subjectIn(t, folderOf(t, version), "mover"), map[string]any{}, report, Earlier{Use: before, Hypers: map[string]any{}})
			})
		})
	}
}

func folderOf(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// The plugins of this repository, built or run as their users do.
func TestFirstParty(t *testing.T) {
	plugins, err := filepath.Abs(filepath.Join("..", "..", "..", "plugins"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"adan", "fourbit", "lion", "muon", "csv", "tensorboard", "wsd"} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), name)
			cmd := exec.Command("go", "build", "-o", path, ".")
			cmd.Dir = filepath.Join(plugins, name)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			firstParty(t, path)
		})
	}
	t.Run("python-adamw", func(t *testing.T) {
		python := os.Getenv("STARLING_PYTHON")
		if python == "" {
			python = "python3"
		}
		if err := exec.Command(python, "-c", "import grpc, google.protobuf, numpy").Run(); err != nil {
			t.Skipf("%s lacks numpy or grpcio (%v); name one that has them in STARLING_PYTHON", python, err)
		}
		firstParty(t, filepath.Join(plugins, "python-adamw"))
	})
}

func firstParty(t *testing.T, path string) {
	t.Helper()
	f, err := plugin.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	m, err := plugin.Describe(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	sha, err := f.Hash()
	if err != nil {
		t.Fatal(err)
	}
	hypers := map[string]any{}
	for _, h := range m.Hypers {
		hypers[h.Name] = h.Default
		if h.Needed {
			hypers[h.Name] = 0.5
		}
	}
	report := func(c Check) {
		if c.Err != nil {
			t.Errorf("%s: %v", c.Name, c.Err)
		} else if c.Note != "" {
			t.Logf("%s: %s", c.Name, c.Note)
		}
	}
	use := &plugin.Use{Found: f, Manifest: m, SHA256: sha}
	if err := Run(t.Context(), use, hypers, report); err != nil {
		t.Error(err)
	}
}

// A Python plugin carries its own copy of the SDK's Python package, which must be the SDK's.
func TestPythonCopies(t *testing.T) {
	const files = "starling_sdk"
	entries, err := sdk.Source.ReadDir("python/" + files)
	if err != nil || len(entries) < 3 {
		t.Fatalf("%d files, %v", len(entries), err)
	}
	for _, e := range entries {
		want, err := sdk.Source.ReadFile("python/" + files + "/" + e.Name())
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join("..", "..", "..", "plugins", "python-adamw", files, e.Name()))
		if err != nil || string(got) != string(want) {
			t.Errorf("plugins/python-adamw/%s/%s is not sdk/python/%s/%s (%v); copy it", files, e.Name(), files, e.Name(), err)
		}
	}
}

// The Python stubs are those of plugin.proto: every method and every message is in them.
func TestPythonStubsAreCurrent(t *testing.T) {
	read := func(name string) string {
		t.Helper()
		b, err := sdk.Source.ReadFile("python/starling_sdk/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	methods, messages := read("starling_plugin_pb2_grpc.py"), read("starling_plugin_pb2.py")
	file := pb.File_plugin_proto
	for i := range file.Services().Len() {
		s := file.Services().Get(i)
		for k := range s.Methods().Len() {
			if path := fmt.Sprintf("'/%s/%s'", s.FullName(), s.Methods().Get(k).Name()); !strings.Contains(methods, path) {
				t.Errorf("starling_plugin_pb2_grpc.py lacks %s: make the stubs again (sdk/proto/v1/doc.go)", path)
			}
		}
	}
	for i := range file.Messages().Len() {
		if name := string(file.Messages().Get(i).Name()); !strings.Contains(messages, "_globals['_"+strings.ToUpper(name)+"']") {
			t.Errorf("starling_plugin_pb2.py lacks %s: make the stubs again (sdk/proto/v1/doc.go)", name)
		}
	}
}
