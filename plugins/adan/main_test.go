package main

import (
	"math"
	"path/filepath"
	"testing"

	"starling/sdk"
	"starling/sdk/sdktest"
)

// Fifty steps on recorded gradients, against a reference in PyTorch (testdata/golden/plugins.py).
func TestAgainstPyTorch(t *testing.T) {
	golden, err := sdktest.Read(filepath.Join("..", "..", "testdata", "golden", "plugins.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	const every, tolerance = 10, 1e-5
	for name, c := range cases {
		o := &adan{}
		m := o.Manifest()
		if err := m.Validate(); err != nil {
			t.Fatal(err)
		}
		for k, v := range c.hypers {
			for _, h := range m.Hypers {
				if h.Name == k {
					if err := h.Check(v); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		if err := o.Setup(sdk.NewHypers(m, c.hypers)); err != nil {
			t.Fatal(err)
		}
		init, gradients, path := golden[name+".init"], golden[name+".gradients"].Float32(), golden[name+".path"].Values
		n := len(init.Values)
		if n == 0 || len(gradients) != 50*n || len(path) != 5*n {
			t.Fatalf("%s: the recording has %d, %d and %d values", name, n, len(gradients), len(path))
		}
		x := &sdk.Tensor{Name: "w", Shape: init.Shape, To: n, Param: init.Float32(), State: [][]float32{make([]float32, n), make([]float32, n), make([]float32, n), make([]float32, n)}, Threads: 2}
		worst := 0.0
		for x.Step = range 50 {
			x.Rate = c.lr * golden["rates"].Values[x.Step]
			x.Grad = append([]float32(nil), gradients[x.Step*n:][:n]...)
			if err := o.Step(x); err != nil {
				t.Fatal(err)
			}
			if x.Step%every != every-1 {
				continue
			}
			for i, want := range path[x.Step/every*n:][:n] {
				worst = max(worst, math.Abs(float64(x.Param[i])-want))
			}
		}
		t.Logf("%s: at most %.1e from PyTorch", name, worst)
		if !(worst <= tolerance) {
			t.Errorf("%s: %.1e from PyTorch, more than %v", name, worst, tolerance)
		}
	}
}
