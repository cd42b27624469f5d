package sdk

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Manifest says what a plugin is: what recipes may set and what the runtime must keep for it.
type Manifest struct {
	// Name is what recipes call it: a lower-case letter, then letters, digits, - and _, 64 at most.
	Name string `json:"name"`
	// Version is for people and for the lock file, such as "1.2.0".
	Version string `json:"version"`
	// Doc is one line.
	Doc    string  `json:"doc,omitempty"`
	Hypers []Hyper `json:"hypers,omitempty"`
	// Optimizer is set for optimizers, Sink for sinks, Schedule for schedules, Compressor for compressors: one of them.
	Optimizer  *OptimizerInfo `json:"optimizer,omitempty"`
	Sink       bool           `json:"sink,omitempty"`
	Schedule   bool           `json:"schedule,omitempty"`
	Compressor bool           `json:"compressor,omitempty"`
}

// Kind is what a plugin extends.
type Kind string

// The kinds. Each is also the function of a recipe's plugin module that names such a plugin.
const (
	KindOptimizer  Kind = "optimizer"
	KindSink       Kind = "sink"
	KindSchedule   Kind = "schedule"
	KindCompressor Kind = "compressor"
)

// kinds lists what the manifest says it is: one, in a manifest that is valid.
func (m Manifest) kinds() (out []Kind) {
	if m.Optimizer != nil {
		out = append(out, KindOptimizer)
	}
	if m.Sink {
		out = append(out, KindSink)
	}
	if m.Schedule {
		out = append(out, KindSchedule)
	}
	if m.Compressor {
		out = append(out, KindCompressor)
	}
	return out
}

// Kind is what a valid manifest is of.
func (m Manifest) Kind() Kind {
	if k := m.kinds(); len(k) > 0 {
		return k[0]
	}
	return ""
}

// Granularity is how an optimizer wants to see parameters.
type Granularity int

const (
	// Elementwise: each element's update depends on this element of parameter, gradient and state alone, and on
	// figures that are the same for the whole tensor. The runtime cuts parameters into ranges of any size.
	Elementwise Granularity = 1
	// Whole: an update needs the whole tensor.
	Whole Granularity = 2
)

// OptimizerInfo is what the runtime must know of an optimizer.
type OptimizerInfo struct {
	Granularity Granularity `json:"granularity"`
	// State is what is kept for each parameter between steps. The runtime owns it: it is sharded, saved and restored
	// with the parameter. An optimizer must remember nothing else.
	State []Slot `json:"state,omitempty"`
	// MinDims and MaxDims bound the number of dimensions of the parameters that the optimizer takes; 0: no bound.
	MinDims int `json:"min_dims,omitempty"`
	MaxDims int `json:"max_dims,omitempty"`
	// Journal says that the plugin copies results to their place itself, as Serve does for element-wise optimizers; it is
	// Serve's to set.
	Journal bool `json:"journal,omitempty"`
	// UpgradesFrom lists the earlier versions of this plugin whose state its Upgrade turns into this one's. A run that one of
	// them began may be resumed with this one.
	UpgradesFrom []string `json:"upgrades_from,omitempty"`
}

// Slot is a piece of float32 state kept for each parameter, stored as <parameter>/<Name>.
type Slot struct {
	Name string  `json:"name"`
	Init float32 `json:"init,omitempty"`
	// Shape is nil for the parameter's own shape. Otherwise it has one entry for each dimension: "rows" is the
	// parameter's first dimension, "cols" the product of the others, or a number; Scalar has none.
	Shape []string `json:"shape,omitempty"`
	// Own says that Shape counts. It is set by Shaped and Scalar.
	Own bool `json:"own,omitempty"`
}

// State is a slot of the parameter's shape.
func State(name string, init float32) Slot { return Slot{Name: name, Init: init} }

// Scalar is a slot of one number for each parameter. Only optimizers of whole tensors can have it.
func Scalar(name string, init float32) Slot { return Slot{Name: name, Init: init, Own: true} }

// Shaped is a slot of a shape of its own, such as Shaped("left", 0, "rows", "rows"). Only optimizers of whole tensors can have it.
func Shaped(name string, init float32, dims ...string) Slot {
	return Slot{Name: name, Init: init, Shape: dims, Own: true}
}

// ShapeFor is the slot's shape for a parameter.
func (s Slot) ShapeFor(param []int) []int {
	if !s.Own {
		return slices.Clone(param)
	}
	rows, cols := 1, 1
	for i, d := range param {
		if i == 0 {
			rows = d
		} else {
			cols *= d
		}
	}
	out := []int{}
	for _, d := range s.Shape {
		switch d {
		case "rows":
			out = append(out, rows)
		case "cols":
			out = append(out, cols)
		default:
			n, _ := strconv.Atoi(d) // Validate has seen it
			out = append(out, n)
		}
	}
	return out
}

// Type is the type of a hyper-parameter.
type Type int

// The types.
const (
	TypeFloat  Type = 1
	TypeInt    Type = 2
	TypeBool   Type = 3
	TypeString Type = 4
	TypeFloats Type = 5
)

// String names a type as recipes' errors do.
func (t Type) String() string {
	return [...]string{"?", "a number", "an int", "True or False", "a string", "a list of numbers"}[max(0, min(int(t), 5))]
}

// Hyper is a hyper-parameter. Make one with Float, Floats, Int, Bool or String, and refine it: Float("momentum", 0.9, "…").AtLeast(0).Below(1).
type Hyper struct {
	Name string `json:"name"`
	Type Type   `json:"type"`
	// Default is a float64, int64, bool, string or []float64.
	Default  any      `json:"default"`
	Needed   bool     `json:"needed,omitempty"` // must be given
	Min      *float64 `json:"min,omitempty"`
	Max      *float64 `json:"max,omitempty"`
	BelowMax bool     `json:"below_max,omitempty"` // Max itself is not allowed
	Choices  []string `json:"choices,omitempty"`
	Help     string   `json:"help,omitempty"`
}

// Float is a hyper-parameter that is a number.
func Float(name string, def float64, help string) Hyper {
	return Hyper{Name: name, Type: TypeFloat, Default: def, Help: help}
}

// Floats is a list of numbers of the default's length.
func Floats(name string, def []float64, help string) Hyper {
	return Hyper{Name: name, Type: TypeFloats, Default: def, Help: help}
}

// Int is a whole number.
func Int(name string, def int, help string) Hyper {
	return Hyper{Name: name, Type: TypeInt, Default: int64(def), Help: help}
}

// Bool is a switch.
func Bool(name string, def bool, help string) Hyper {
	return Hyper{Name: name, Type: TypeBool, Default: def, Help: help}
}

// String is a text.
func String(name, def, help string) Hyper {
	return Hyper{Name: name, Type: TypeString, Default: def, Help: help}
}

// AtLeast sets the lower bound.
func (h Hyper) AtLeast(v float64) Hyper { h.Min = &v; return h }

// AtMost sets the upper bound.
func (h Hyper) AtMost(v float64) Hyper { h.Max, h.BelowMax = &v, false; return h }

// Below sets an upper bound that is not allowed itself.
func (h Hyper) Below(v float64) Hyper { h.Max, h.BelowMax = &v, true; return h }

// OneOf lists what a string may be.
func (h Hyper) OneOf(choices ...string) Hyper { h.Choices = choices; return h }

// Required takes the default away: recipes must give a value.
func (h Hyper) Required() Hyper { h.Needed = true; return h }

// Check reports a value that the hyper-parameter does not allow. The value has Default's Go type.
func (h Hyper) Check(v any) error {
	within := func(x float64) error {
		switch {
		case math.IsNaN(x) || math.IsInf(x, 0):
			return fmt.Errorf("%s = %v: must be finite", h.Name, x)
		case h.Min != nil && x < *h.Min, h.Max != nil && (x > *h.Max || h.BelowMax && x == *h.Max):
			return fmt.Errorf("%s = %v: must %s", h.Name, x, h.bounds())
		}
		return nil
	}
	switch v := v.(type) {
	case float64:
		if h.Type == TypeFloat {
			return within(v)
		}
	case int64:
		if h.Type == TypeInt {
			return within(float64(v))
		}
	case bool:
		if h.Type == TypeBool {
			return nil
		}
	case string:
		if h.Type == TypeString {
			if len(h.Choices) > 0 && !slices.Contains(h.Choices, v) {
				return fmt.Errorf("%s = %q: must be one of %q", h.Name, v, h.Choices)
			}
			return nil
		}
	case []float64:
		if h.Type == TypeFloats {
			if def, ok := h.Default.([]float64); ok && len(def) != len(v) {
				return fmt.Errorf("%s has %d numbers: must have %d", h.Name, len(v), len(def))
			}
			for _, x := range v {
				if err := within(x); err != nil {
					return err
				}
			}
			return nil
		}
	}
	return fmt.Errorf("%s must be %v", h.Name, h.Type)
}

func (h Hyper) bounds() string {
	var b []string
	if h.Min != nil {
		b = append(b, fmt.Sprintf("be at least %v", *h.Min))
	}
	if h.Max != nil {
		word := "at most"
		if h.BelowMax {
			word = "below"
		}
		b = append(b, fmt.Sprintf("be %s %v", word, *h.Max))
	}
	return strings.Join(b, " and ")
}

// Signature prints the hyper-parameter as documentation does, such as "momentum = 0.9 (a number, at least 0 and below 1)".
func (h Hyper) Signature() string {
	s := h.Name
	if !h.Needed {
		s += " = " + valueText(h.Default)
	}
	s += " (" + h.Type.String()
	if b := h.bounds(); b != "" {
		s += ", " + strings.ReplaceAll(b, "be ", "")
	}
	if len(h.Choices) > 0 {
		s += fmt.Sprintf(", one of %q", h.Choices)
	}
	if h.Needed {
		s += ", required"
	}
	return s + ")"
}

func valueText(v any) string {
	switch v := v.(type) {
	case string:
		return strconv.Quote(v)
	case bool:
		if v {
			return "True"
		}
		return "False"
	case []float64:
		return strings.ReplaceAll(fmt.Sprint(v), " ", ", ")
	}
	return fmt.Sprint(v)
}

var (
	pluginName = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,63}$`)
	identifier = regexp.MustCompile(`^[a-z_][a-zA-Z0-9_]{0,63}$`)
	versionRE  = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z.+-]{0,63}$`)
)

// ValidName reports whether a plugin may have this name.
func ValidName(name string) bool { return pluginName.MatchString(name) }

// reserved are the arguments of plugin.optimizer, and of plugin.schedule, that are the runtime's own.
var (
	reserved         = []string{"name", "lr", "groups"}
	reservedSchedule = []string{"name", "total"}
)

// Validate reports everything that is wrong with a manifest. One that says of no kind what it is may be right: Serve takes the kind from the
// plugin's type. Describe looks at that too.
func (m Manifest) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !ValidName(m.Name) {
		bad("name %q: must begin with a lower-case letter and hold lower-case letters, digits, - and _ only, 64 at most", m.Name)
	}
	if !versionRE.MatchString(m.Version) {
		bad("version %q: must be like 1.2.0", m.Version)
	}
	if strings.Contains(m.Doc, "\n") {
		bad("doc has several lines: give one")
	}
	kinds := m.kinds()
	if len(kinds) > 1 {
		bad("the manifest must be that of an optimizer, of a sink, of a schedule or of a compressor, and it is that of %d of them", len(kinds))
	}
	taken := reserved
	switch {
	case len(kinds) == 0:
		taken = taken[:1]
	case m.Schedule:
		taken = reservedSchedule
	}
	seen := map[string]bool{}
	for _, h := range m.Hypers {
		switch {
		case !identifier.MatchString(h.Name):
			bad("hyper-parameter %q: the name is no identifier", h.Name)
		case slices.Contains(taken, h.Name):
			bad("hyper-parameter %q: the name is taken by the runtime (%s)", h.Name, strings.Join(taken, ", "))
		case seen[h.Name]:
			bad("hyper-parameter %q is there twice", h.Name)
		case h.Min != nil && h.Max != nil && *h.Min > *h.Max:
			bad("hyper-parameter %q: the lower bound %v is above the upper bound %v", h.Name, *h.Min, *h.Max)
		case !h.Needed:
			if err := h.Check(h.Default); err != nil {
				bad("hyper-parameter %q: its default: %w", h.Name, err)
			}
		}
		seen[h.Name] = true
	}
	if m.Optimizer != nil {
		errs = append(errs, m.Optimizer.validate())
		for i, v := range m.Optimizer.UpgradesFrom {
			switch {
			case !versionRE.MatchString(v):
				bad("it upgrades from version %q: must be like 1.2.0", v)
			case v == m.Version:
				bad("it upgrades from its own version %s", v)
			case slices.Contains(m.Optimizer.UpgradesFrom[:i], v):
				bad("it upgrades from version %s twice", v)
			}
		}
	}
	return errors.Join(errs...)
}

func (o *OptimizerInfo) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if o.Granularity != Elementwise && o.Granularity != Whole {
		bad("granularity %d: must be Elementwise or Whole", o.Granularity)
	}
	if o.MinDims < 0 || o.MaxDims < 0 || o.MaxDims > 0 && o.MinDims > o.MaxDims {
		bad("dimensions between %d and %d: no parameter has them", o.MinDims, o.MaxDims)
	}
	seen := map[string]bool{}
	for _, s := range o.State {
		if !identifier.MatchString(s.Name) {
			bad("state %q: the name is no identifier", s.Name)
		}
		if seen[s.Name] {
			bad("state %q is there twice", s.Name)
		}
		seen[s.Name] = true
		if s.Init != s.Init || math.IsInf(float64(s.Init), 0) {
			bad("state %q: initial value %v: must be finite", s.Name, s.Init)
		}
		if s.Own && o.Granularity == Elementwise {
			bad("state %q: an element-wise optimizer's state has the parameter's shape; ask for whole tensors", s.Name)
		}
		for _, d := range s.Shape {
			if n, err := strconv.Atoi(d); d != "rows" && d != "cols" && (err != nil || n < 1) {
				bad("state %q: dimension %q: must be rows, cols or a number of at least 1", s.Name, d)
			}
		}
		if len(s.Shape) > 8 {
			bad("state %q has %d dimensions: at most 8 are possible", s.Name, len(s.Shape))
		}
	}
	return errors.Join(errs...)
}

// Takes reports whether the optimizer takes parameters of a number of dimensions.
func (o *OptimizerInfo) Takes(dims int) bool {
	return dims >= o.MinDims && (o.MaxDims == 0 || dims <= o.MaxDims)
}
