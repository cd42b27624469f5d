//go:build unix

package plugin

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// A plugin of the day on which version 1 of the protocol was frozen keeps loading, and computes what it did.
func TestVersion1Plugin(t *testing.T) {
	path := filepath.Join(t.TempDir(), "v1")
	cmd := exec.Command("go", "build", "-o", path, ".")
	cmd.Dir = filepath.Join("testdata", "v1")
	cmd.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	m, err := Describe(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	sha, err := f.Hash()
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, &Use{Found: f, Manifest: m, SHA256: sha})
	w.cfg.Hypers = map[string]any{"momentum": 0.5}
	for i := range w.cfg.Ranges {
		w.cfg.Ranges[i].State = w.cfg.Ranges[i].State[:1]
	}
	u := w.updater(t)
	for step := range 3 {
		if err := u.Step(t.Context(), step, 0.25, testRates); err != nil {
			t.Fatal(err)
		}
		for i, n := range w.sizes {
			p, v, g := w.want[0][w.at[i]:][:n], w.want[1][w.state[i][0]:][:n], w.want[2][w.at[i]:][:n]
			for k := range p {
				v[k] = float32(0.5*v[k]) + float32(g[k]*0.25)
				p[k] -= float32(float32(testRates[i%2]) * v[k])
			}
		}
		w.compare(t)
	}
}
