//go:build unix

package plugin

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// unpackFrozen unpacks testdata/sdk-v1.tar.gz: the sources of the SDK of the day on which version 1 of the protocol was frozen, without tests and
// the Python half, and of lion, written against it. The archive is never made again.
func unpackFrozen(t *testing.T, dir string) {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "sdk-v1.tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil || !filepath.IsLocal(h.Name) {
			t.Fatalf("%v, %v", h, err)
		}
		path := filepath.Join(dir, h.Name)
		if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(path, 0o755)
		} else {
			var b []byte
			if b, err = io.ReadAll(r); err == nil {
				err = os.WriteFile(path, b, 0o644)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A plugin that was built from the SDK of version 1's day keeps loading, and computes what it did, whatever was added since.
func TestFrozenSDK(t *testing.T) {
	dir := t.TempDir()
	unpackFrozen(t, dir)
	path := filepath.Join(dir, "lion")
	cmd := exec.Command("go", "build", "-o", path, ".")
	cmd.Dir = filepath.Join(dir, "plugin")
	cmd.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0", "GOFLAGS=-mod=mod")
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
	w.cfg.Hypers = map[string]any{"betas": []float64{0.5, 0.75}, "weight_decay": 0.0}
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
			rate := float32(testRates[i%2])
			for k := range p {
				x := g[k] * 0.25
				if look := float32(0.5*v[k]) + float32(0.5*x); look != 0 {
					p[k] -= float32(math.Copysign(float64(rate), float64(look)))
				}
				v[k] = float32(0.75*v[k]) + float32(0.25*x)
			}
		}
		w.compare(t)
	}
	if u.Restarts != 0 {
		t.Errorf("it was started again %d times", u.Restarts)
	}
	// A host that speaks a later version too is answered in version 1.
	defer func() { delete(protocols, 2) }()
	protocols[2] = protocols[1]
	later, err := Describe(t.Context(), f)
	if err != nil || later.Proto().String() != m.Proto().String() {
		t.Errorf("beside a later version of the protocol: %+v, %v", later, err)
	}
	if err := w.updater(t).Start(t.Context()); err != nil {
		t.Errorf("beside a later version of the protocol: %v", err)
	}
}
