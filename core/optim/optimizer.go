package optim

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"starling/core/graph"
	"starling/core/tensor"
	"starling/core/tensor/detmath"
)

// Slot is a piece of optimizer state, stored as <parameter>/<Name>.
type Slot struct {
	Name string
	Init float64
	// Own says that Shape is its shape; else it has its parameter's.
	Own   bool
	Shape []int
	// DType is its element type, Invalid for f32. Block, if not 0, is how many elements of the parameter have one entry of it
	// between them; its own shape is then the number of such blocks.
	DType tensor.DType
	Block int
}

// Update is the operation that runs on one parameter.
type Update struct {
	Op    string // name in the table of operations; "" for an external update
	Attrs any
	Slots []Slot
	Group int // row of the table of hyper-parameters
	// External, if set, is the optimizer that makes the update outside the program, after the operations of the others.
	External any
	// Whole says that the update looks at the parameter as a whole; others work element by element.
	Whole bool
}

// Optimizer says what happens to parameters at each step.
type Optimizer interface {
	// Update returns what runs on a parameter.
	Update(p graph.ParamAttrs) Update
	// Groups is the number of rows of the table of hyper-parameters; GroupName labels one for people.
	Groups() int
	GroupName(i int) string
	// Decay is the weight decay of a row.
	Decay(i int) float64
	// Hyper writes row group of the table for the step-th update (from 0) at the given learning rate of
	// the first group. gradScale multiplies every gradient first (unscaling, exact averaging, clipping).
	Hyper(row []float64, group, step int, rate, gradScale float64)
	// Rate is the scheduled learning rate of a step.
	Rate(step int) float64
	Validate() error
	// String is the canonical form: it enters the recipe's digest.
	String() string
}

// Group overrides settings for the parameters whose name matches Pattern, a glob such as "h.*.bias" in
// which * crosses dots. The first group that matches wins.
type Group struct {
	Pattern     string
	RateScale   float64  // multiplies the scheduled rate
	WeightDecay *float64 // replaces the optimizer's, also on one-dimensional tensors
}

// groups is the part that every built-in optimizer shares: row 2k is group k's (k = 0 the default) tensors of two or
// more dimensions, row 2k+1 its others, which by default get no weight decay.
type groups struct {
	decay float64
	list  []Group
}

func (g groups) count() int { return 2 * (len(g.list) + 1) }

func (g groups) of(p graph.ParamAttrs) int {
	k := 0
	for i, o := range g.list {
		if ok, _ := path.Match(o.Pattern, p.Name); ok {
			k = i + 1
			break
		}
	}
	row := 2 * k
	if p.Shape.N < 2 {
		row++
	}
	return row
}

func (g groups) name(i int) string {
	s := "default"
	if i >= 2 {
		s = g.list[i/2-1].Pattern
	}
	if i%2 == 1 {
		return s + ", one-dimensional"
	}
	return s + ", matrices"
}

func (g groups) scale(i int) float64 {
	if i >= 2 {
		return g.list[i/2-1].RateScale
	}
	return 1
}

func (g groups) weightDecay(i int) float64 {
	if i >= 2 && g.list[i/2-1].WeightDecay != nil {
		return *g.list[i/2-1].WeightDecay
	}
	if i%2 == 1 {
		return 0
	}
	return g.decay
}

func (g groups) validate() error {
	if err := rate("weight_decay", g.decay); err != nil {
		return err
	}
	for _, o := range g.list {
		if _, err := path.Match(o.Pattern, ""); err != nil {
			return fmt.Errorf("group pattern %q: %w", o.Pattern, err)
		}
		if strings.Contains(o.Pattern, "/") {
			return fmt.Errorf("group pattern %q: parameter names have no slash", o.Pattern)
		}
		if err := rate("group lr_scale", o.RateScale); err != nil {
			return err
		}
		if o.WeightDecay != nil {
			if err := rate("group weight_decay", *o.WeightDecay); err != nil {
				return err
			}
		}
	}
	return nil
}

func (g groups) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "decay %v", g.decay)
	for _, o := range g.list {
		fmt.Fprintf(&b, ", group %q x%v", o.Pattern, o.RateScale)
		if o.WeightDecay != nil {
			fmt.Fprintf(&b, " decay %v", *o.WeightDecay)
		}
	}
	return b.String()
}

// AdamW is Adam with decoupled weight decay (Loshchilov and Hutter, 2019), in PyTorch's form.
type AdamW struct {
	Schedule     Schedule
	Beta1, Beta2 float64
	Eps          float64
	WeightDecay  float64
	ParamGroups  []Group
	// State is how the moments are kept: "" (fp32), StateBF16 or StateInt8.
	State string
}

// How an optimizer may keep its state other than in fp32.
const (
	StateBF16 = "bf16"
	// StateInt8 is block-wise dynamic quantisation; see graph.Dynamic8. Parameters of less than LeastQuantised elements keep fp32.
	StateInt8 = "int8"
)

// LeastQuantised is the size below which 8-bit state is not worth what it costs: norms and biases, which are sensitive and small.
const LeastQuantised = 4096

// slowestBF16 is the largest beta2 at which a second moment in bf16 moves: half a unit in its last place is up to 1/256 of it.
const slowestBF16 = 1 - 1./256

func (o AdamW) groups() groups { return groups{o.WeightDecay, o.ParamGroups} }

// Update runs adamw with the moments m and v.
func (o AdamW) Update(p graph.ParamAttrs) Update {
	u := Update{Op: "adamw", Attrs: graph.AdamWAttrs{}, Slots: []Slot{{Name: "m"}, {Name: "v"}}, Group: o.groups().of(p)}
	switch {
	case o.State == StateBF16:
		u.Op, u.Slots = "adamw_bf16", []Slot{{Name: "m", DType: tensor.BF16}, {Name: "v", DType: tensor.BF16}}
	case o.State == StateInt8 && tensor.Shape(p.Shape.Slice()).Numel() >= LeastQuantised:
		u.Op, u.Slots = "adamw_int8", []Slot{{Name: "m", DType: tensor.U8}, {Name: "m_scale", Block: graph.QuantBlock},
			{Name: "v", DType: tensor.U8}, {Name: "v_scale", Block: graph.QuantBlock}}
	}
	return u
}

// Groups is the number of rows.
func (o AdamW) Groups() int { return o.groups().count() }

// GroupName labels a row.
func (o AdamW) GroupName(i int) string { return o.groups().name(i) }

// Decay is the weight decay of a row.
func (o AdamW) Decay(i int) float64 { return o.groups().weightDecay(i) }

// Hyper fills lr, β1, β2, ε, weight decay, 1-β1^t, 1-β2^t and the gradient's scale, t counting from 1.
func (o AdamW) Hyper(row []float64, group, step int, rate, gradScale float64) {
	g := o.groups()
	row[graph.HyperLR], row[graph.HyperGradScale] = rate*g.scale(group), gradScale
	row[graph.HyperBeta1], row[graph.HyperBeta2], row[graph.HyperEps], row[graph.HyperWeightDecay] = o.Beta1, o.Beta2, o.Eps, g.weightDecay(group)
	row[graph.HyperCorrection1], row[graph.HyperCorrection2] = 1-detmath.PowInt(o.Beta1, step+1), 1-detmath.PowInt(o.Beta2, step+1)
}

// Rate is the scheduled learning rate.
func (o AdamW) Rate(step int) float64 { return o.Schedule.At(step) }

// Validate checks every setting.
func (o AdamW) Validate() error {
	if !(o.Beta1 >= 0 && o.Beta1 < 1 && o.Beta2 >= 0 && o.Beta2 < 1) {
		return fmt.Errorf("betas = (%v, %v): each must lie in [0, 1)", o.Beta1, o.Beta2)
	}
	if o.State != "" && o.State != StateBF16 && o.State != StateInt8 {
		return fmt.Errorf("state = %q: must be \"fp32\", \"bf16\" or \"int8\"", o.State)
	}
	if o.State == StateBF16 && o.Beta2 > slowestBF16 {
		return fmt.Errorf("betas = (%v, %v) with state = \"bf16\": the second moment has 8 bits there, and what one step takes from it would be rounded away, so it could only grow; use a beta2 of at most %v, such as 0.95, or state = \"int8\"", o.Beta1, o.Beta2, slowestBF16)
	}
	return errors.Join(rate("eps", o.Eps), o.groups().validate(), o.Schedule.Validate())
}

func (o AdamW) String() string {
	state := ""
	if o.State != "" {
		state = ", state " + o.State
	}
	return fmt.Sprintf("adamw(%v, betas %v %v, eps %v, %v%s)", o.Schedule, o.Beta1, o.Beta2, o.Eps, o.groups(), state)
}

// SGD is stochastic gradient descent with momentum, in PyTorch's form (weight decay added to the gradient).
type SGD struct {
	Schedule    Schedule
	Momentum    float64
	Dampening   float64
	Nesterov    bool
	WeightDecay float64
	ParamGroups []Group
}

func (o SGD) groups() groups { return groups{o.WeightDecay, o.ParamGroups} }

// Update runs sgd, with a momentum slot where momentum is not 0.
func (o SGD) Update(p graph.ParamAttrs) Update {
	u := Update{Op: "sgd", Attrs: graph.SGDAttrs{Momentum: o.Momentum != 0, Nesterov: o.Nesterov}, Group: o.groups().of(p)}
	if o.Momentum != 0 {
		u.Slots = []Slot{{Name: "momentum"}}
	}
	return u
}

// Groups is the number of rows.
func (o SGD) Groups() int { return o.groups().count() }

// GroupName labels a row.
func (o SGD) GroupName(i int) string { return o.groups().name(i) }

// Decay is the weight decay of a row.
func (o SGD) Decay(i int) float64 { return o.groups().weightDecay(i) }

// Hyper fills the row of sgd. The first update is marked: its momentum is the gradient itself.
func (o SGD) Hyper(row []float64, group, step int, rate, gradScale float64) {
	g := o.groups()
	row[graph.HyperLR], row[graph.HyperGradScale] = rate*g.scale(group), gradScale
	row[graph.HyperMomentum], row[graph.HyperDampening], row[graph.HyperSGDDecay] = o.Momentum, o.Dampening, g.weightDecay(group)
	row[graph.HyperSGDFirstStep] = 0
	if step == 0 {
		row[graph.HyperSGDFirstStep] = 1
	}
}

// Rate is the scheduled learning rate.
func (o SGD) Rate(step int) float64 { return o.Schedule.At(step) }

// Validate checks every setting.
func (o SGD) Validate() error {
	switch {
	case !(o.Momentum >= 0 && o.Momentum < 1):
		return fmt.Errorf("momentum = %v: must lie in [0, 1)", o.Momentum)
	case o.Nesterov && (o.Momentum == 0 || o.Dampening != 0):
		return errors.New("nesterov = True needs momentum above 0 and dampening 0")
	}
	return errors.Join(rate("dampening", o.Dampening), o.groups().validate(), o.Schedule.Validate())
}

func (o SGD) String() string {
	return fmt.Sprintf("sgd(%v, momentum %v, dampening %v, nesterov %v, %v)", o.Schedule, o.Momentum, o.Dampening, o.Nesterov, o.groups())
}
