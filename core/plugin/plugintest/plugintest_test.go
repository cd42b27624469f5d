package plugintest

import (
	"fmt"
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
		sdk.Serve(&subject{name: filepath.Base(os.Args[0])})
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
	case "whole":
		m.Optimizer.Granularity = sdk.Whole
		m.Optimizer.State = append(m.Optimizer.State, sdk.Scalar("count", 1), sdk.Shaped("left", 0, "rows", "rows"))
	}
	return m
}

func (s *subject) Setup(sdk.Hypers) error { return nil }

func (s *subject) Step(t *sdk.Tensor) error {
	m := t.State[0]
	for i, g := range t.Grad {
		m[i] = float32(0.9*m[i]) + g
		t.Param[i] -= float32(float32(t.Rate) * m[i])
	}
	switch s.name {
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
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), name)
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
		"honest":     "",
		"whole":      "",
		"averager":   "is element-wise",
		"rememberer": "has no hidden state",
		"divider":    "gives finite values for gradients of zero",
	} {
		t.Run(name, func(t *testing.T) {
			failed := map[string]error{}
			err := Optimizer(t.Context(), subjectUse(t, name), map[string]any{}, func(c Check) {
				if c.Err != nil {
					failed[c.Name] = c.Err
				}
			})
			if want == "" {
				if err != nil || len(failed) > 0 {
					t.Errorf("%v: %v", err, failed)
				}
				return
			}
			found := false
			for check := range failed {
				found = found || strings.HasPrefix(check, want)
			}
			if err == nil || !found {
				t.Errorf("%q did not fail: %v, %v", want, err, failed)
			}
		})
	}
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
