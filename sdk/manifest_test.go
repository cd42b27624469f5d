package sdk

import (
	"errors"
	"math"
	"strings"
	"testing"
)

// plain has a manifest, and the types below the methods of one kind each.
type plain struct{ m Manifest }

func (p plain) Manifest() Manifest { return p.m }

type anOptimizer struct{ plain }

func (anOptimizer) Setup(Hypers) error { return nil }
func (anOptimizer) Step(*Tensor) error { return nil }

type aSchedule struct{ plain }

func (aSchedule) Begin(Hypers, int) error { return nil }
func (aSchedule) Rate(int) float64        { return 0 }

type aCompressor struct{ plain }

func (aCompressor) Setup(Hypers) (Layout, error)       { return Layout{}, nil }
func (aCompressor) Encode([]byte, []float32) error     { return nil }
func (aCompressor) Decode(d []float32, _ []byte) error { return nil }

type aSink struct{ plain }

func (aSink) Open(Run) error       { return nil }
func (aSink) Write([]Record) error { return nil }
func (aSink) Close() error         { return nil }

// An author's own test finds a manifest of any kind right as it is written, though Serve fills in the kind.
func TestManifestsOfAllKinds(t *testing.T) {
	m := Manifest{Name: "mine", Version: "0.1.0", Hypers: []Hyper{Float("peak", 0.5, "").AtLeast(0)}}
	o := m
	o.Optimizer = &OptimizerInfo{Granularity: Elementwise}
	for kind, p := range map[Kind]Plugin{KindOptimizer: anOptimizer{plain{o}}, KindSchedule: aSchedule{plain{m}}, KindCompressor: aCompressor{plain{m}}, KindSink: aSink{plain{m}}} {
		if err := p.Manifest().Validate(); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		if d, err := Describe(p); err != nil || d.Kind() != kind {
			t.Errorf("%s: described as %q, %v", kind, d.Kind(), err)
		}
	}
}

// What is wrong with a manifest is found before it is served.
func TestDescribeRefuses(t *testing.T) {
	good := Manifest{Name: "mine", Version: "0.1.0"}
	with := func(h ...Hyper) Manifest { m := good; m.Hypers = h; return m }
	optimizer := func(o OptimizerInfo) Plugin { m := good; m.Optimizer = &o; return anOptimizer{plain{m}} }
	sink := good
	sink.Sink = true
	for want, p := range map[string]Plugin{
		"neither an Optimizer nor a Sink":              plain{good},
		"its manifest has no Optimizer":                anOptimizer{plain{good}},
		"it is that of 2 of them":                      aSchedule{plain{sink}},
		`name "Mine": must begin`:                      aSink{plain{Manifest{Name: "Mine", Version: "1"}}},
		`version "": must be like 1.2.0`:               aSink{plain{Manifest{Name: "mine"}}},
		`"total": the name is taken`:                   aSchedule{plain{with(Int("total", 1, ""))}},
		`"a" is there twice`:                           aSink{plain{with(Int("a", 1, ""), Bool("a", true, ""))}},
		`"a b": the name is no identifier`:             aSink{plain{with(Int("a b", 1, ""))}},
		"its default: a = 2: must be at most 1":        aSink{plain{with(Float("a", 2, "").AtMost(1))}},
		"its default: a = NaN: must be finite":         aSink{plain{with(Float("a", math.NaN(), ""))}},
		`its default: a = "c": must be one of`:         aSink{plain{with(String("a", "c", "").OneOf("a", "b"))}},
		"the lower bound 3 is above the upper bound 1": aSink{plain{with(Int("a", 1, "").AtLeast(3).AtMost(1))}},
		"granularity 0":                                optimizer(OptimizerInfo{}),
		"an element-wise optimizer's state has":        optimizer(OptimizerInfo{Granularity: Elementwise, State: []Slot{Scalar("count", 0)}}),
		`dimension "row": must be rows, cols`:          optimizer(OptimizerInfo{Granularity: Whole, State: []Slot{Shaped("left", 0, "row")}}),
		"has no method Upgrade":                        optimizer(OptimizerInfo{Granularity: Whole, UpgradesFrom: []string{"0.0.1"}}),
	} {
		if _, err := Describe(p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing from: %v", want, err)
		}
	}
	if _, err := Describe(panics{}); err == nil || !strings.Contains(err.Error(), "Manifest panicked: no idea") {
		t.Error(err)
	}
}

type panics struct{}

func (panics) Manifest() Manifest { panic(errors.New("no idea")) }

// A manifest is the same when it has travelled.
func TestManifestsTravel(t *testing.T) {
	m := Manifest{Name: "mine", Version: "0.1.0", Doc: "a doc", Hypers: []Hyper{
		Float("a", 0.5, "help").AtLeast(0).Below(1), Int("b", 3, "").AtMost(5), Bool("c", true, ""), String("d", "x", "").OneOf("x", "y"),
		Floats("e", []float64{1, 2}, ""), Float("f", 0, "").Required(),
	}, Optimizer: &OptimizerInfo{Granularity: Whole, State: []Slot{State("m", 1), Scalar("n", 0), Shaped("l", 0, "rows", "cols", "3")}, MinDims: 2, MaxDims: 4, UpgradesFrom: []string{"0.0.1"}}}
	back, err := ManifestOf(m.Proto())
	if err != nil {
		t.Fatal(err)
	}
	if err := back.Validate(); err != nil {
		t.Fatal(err)
	}
	for i, h := range m.Hypers {
		if got, want := back.Hypers[i].Signature(), h.Signature(); got != want {
			t.Errorf("%s came back as %s", want, got)
		}
	}
	if got := back.Optimizer.State[2].ShapeFor([]int{4, 5, 6}); len(got) != 3 || got[0] != 4 || got[1] != 30 || got[2] != 3 {
		t.Errorf("a slot of its own shape has %v", got)
	}
	if back.Optimizer.MinDims != 2 || back.Optimizer.MaxDims != 4 || back.Optimizer.UpgradesFrom[0] != "0.0.1" || back.Doc != m.Doc {
		t.Errorf("%+v", back.Optimizer)
	}
}

// Tests give values as they are written, and hear of those that no recipe could give.
func TestNewHypers(t *testing.T) {
	m := Manifest{Name: "mine", Hypers: []Hyper{Float("a", 0.5, "").Below(2), Int("b", 3, ""), Floats("c", []float64{1, 2}, "")}}
	h := NewHypers(m, map[string]any{"a": 1, "b": 4})
	if h.Float("a") != 1 || h.Int("b") != 4 || len(h.Floats("c")) != 2 {
		t.Errorf("%v", h)
	}
	for want, values := range map[string]map[string]any{"no hyper-parameter d": {"d": 1}, "a = 2: must be below 2": {"a": 2}, "b must be an int": {"b": 0.5}, "c has 1 numbers": {"c": []float64{1}}} {
		func() {
			defer func() {
				if p, _ := recover().(string); !strings.Contains(p, want) {
					t.Errorf("%q is missing from: %v", want, p)
				}
			}()
			NewHypers(m, values)
		}()
	}
}
