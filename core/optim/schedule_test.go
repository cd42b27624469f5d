package optim

import (
	"math"
	"strings"
	"testing"

	"starling/core/graph"
)

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-12*math.Max(1, math.Abs(want)) {
		t.Errorf("%s = %v, want %v", what, got, want)
	}
}

func TestSchedules(t *testing.T) {
	cosine := WarmupCosine{Peak: 2, Warmup: 4, Total: 104, Floor: 0.1}
	for _, c := range []struct {
		s    Schedule
		step int
		want float64
	}{
		{Constant{3}, 0, 3}, {Constant{3}, 1e6, 3},
		{Step{Rate: 1, Every: 10, Gamma: 0.5}, 0, 1},
		{Step{Rate: 1, Every: 10, Gamma: 0.5}, 9, 1},
		{Step{Rate: 1, Every: 10, Gamma: 0.5}, 10, 0.5},
		{Step{Rate: 1, Every: 10, Gamma: 0.5}, 35, 0.125},
		{Linear{From: 1, To: 0, Total: 4}, 0, 1}, {Linear{From: 1, To: 0, Total: 4}, 1, 0.75}, {Linear{From: 1, To: 0, Total: 4}, 99, 0},
		{cosine, 0, 0.5}, {cosine, 3, 2}, {cosine, 4, 2},
		{cosine, 54, 0.2 + 0.9}, // half way: the floor and half of the rest
		{cosine, 29, 0.2 + 0.9*(1+math.Cos(math.Pi/4))},
		{cosine, 104, 0.2}, {cosine, 1000, 0.2},
	} {
		near(t, c.s.String(), c.s.At(c.step), c.want)
	}
}

func TestSchedulesRefuseWhatCannotBeMeant(t *testing.T) {
	for _, c := range []struct {
		s    Schedule
		want string
	}{
		{Constant{-1}, "lr = -1"}, {Constant{math.NaN()}, "lr = NaN"}, {Constant{math.Inf(1)}, "lr = +Inf"},
		{Step{Rate: 1, Every: 0, Gamma: 1}, "every = 0"}, {Linear{From: 1, Total: 0}, "total = 0"},
		{WarmupCosine{Peak: 1, Warmup: 9, Total: 5}, "warmup = 9"}, {WarmupCosine{Peak: 1, Total: 5, Floor: 2}, "floor = 2"},
	} {
		if err := c.s.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: error %v, want one with %q", c.s, err, c.want)
		}
	}
}

func TestScaleByBatch(t *testing.T) {
	v, err := ScaleByBatch(0.1, 256, 1024, "linear")
	near(t, "linear", v, 0.4)
	if err != nil {
		t.Error(err)
	}
	v, err = ScaleByBatch(0.1, 256, 1024, "sqrt")
	near(t, "sqrt", v, 0.2)
	if err != nil {
		t.Error(err)
	}
	if _, err = ScaleByBatch(0.1, 256, 1024, "cubic"); err == nil {
		t.Error("an unknown rule was taken")
	}
	if _, err = ScaleByBatch(0.1, 0, 1024, "sqrt"); err == nil {
		t.Error("a base batch of 0 was taken")
	}
}

func TestGroupsDecideDecayAndRate(t *testing.T) {
	zero := 0.0
	o := AdamW{Schedule: Constant{1}, Beta1: 0.9, Beta2: 0.99, WeightDecay: 0.1,
		ParamGroups: []Group{{Pattern: "*.head.*", RateScale: 0.5, WeightDecay: &zero}, {Pattern: "wte.*", RateScale: 2}}}
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name        string
		dims        []int
		decay, rate float64
	}{
		{"h.0.mlp.weight", []int{4, 4}, 0.1, 1},
		{"h.0.mlp.bias", []int{4}, 0, 1}, // one-dimensional tensors are left alone
		{"out.head.weight", []int{4, 4}, 0, 0.5},
		{"wte.weight", []int{4, 4}, 0.1, 2},
	} {
		u := o.Update(graph.ParamAttrs{Name: c.name, Shape: graph.MakeDims(c.dims)})
		row := make([]float64, graph.HyperCount)
		o.Hyper(row, u.Group, 0, 1, 3)
		if row[graph.HyperWeightDecay] != c.decay || row[graph.HyperLR] != c.rate || row[graph.HyperGradScale] != 3 {
			t.Errorf("%s: decay %v, rate %v, gradient scale %v, want %v, %v, 3 (%s)", c.name, row[graph.HyperWeightDecay], row[graph.HyperLR], row[graph.HyperGradScale], c.decay, c.rate, o.GroupName(u.Group))
		}
		near(t, "1-β1", row[graph.HyperCorrection1], 0.1)
		near(t, "1-β2", row[graph.HyperCorrection2], 0.01)
	}
	bad := o
	bad.ParamGroups = []Group{{Pattern: "[", RateScale: 1}}
	if bad.Validate() == nil {
		t.Error("a broken pattern was taken")
	}
}

func TestSGDMarksItsFirstUpdate(t *testing.T) {
	o := SGD{Schedule: Constant{1}, Momentum: 0.9}
	row := make([]float64, graph.HyperCount)
	o.Hyper(row, 0, 0, 1, 1)
	if row[graph.HyperSGDFirstStep] != 1 {
		t.Error("the first update is not marked")
	}
	o.Hyper(row, 0, 1, 1, 1)
	if row[graph.HyperSGDFirstStep] != 0 {
		t.Error("the second update is marked as the first")
	}
	if err := (SGD{Schedule: Constant{1}, Nesterov: true}).Validate(); err == nil {
		t.Error("Nesterov without momentum was taken")
	}
}
