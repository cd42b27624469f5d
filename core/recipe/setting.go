package recipe

import (
	"fmt"
	"strings"

	"go.starlark.net/starlark"

	"starling/core/graph"
)

// setting is an opaque value that one builtin makes and another consumes: a loader, an optimizer, a schedule, an
// initialiser. It remembers where it was written, for errors that only show when train() puts everything together.
type setting struct {
	kind  string // what it is used as, such as "loader"
	name  string // the builtin that made it
	value any
	pos   graph.Position
}

// kindOf unpacks a setting of one kind; want names it in errors, such as "a loader(…)".
type kindOf struct {
	kind, want string
	to         **setting
}

// newSetting makes a setting at the position of the call.
func (c *call) newSetting(kind string, value any) *setting {
	return &setting{kind, c.name, value, position(c.thread)}
}

func (s *setting) String() string        { return s.name + "(…)" }
func (s *setting) Type() string          { return s.kind }
func (s *setting) Freeze()               {} // immutable
func (s *setting) Truth() starlark.Bool  { return true }
func (s *setting) Hash() (uint32, error) { return 0, fmt.Errorf("unhashable: %s", s.kind) }

// payload returns the value of a setting of known kind.
func payload[T any](s *setting) T { return s.value.(T) }

// record is an immutable value with named attributes: a namespace, a batch, a data source, a step's metrics.
type record struct {
	kind   string
	names  []string // in the order of definition
	fields starlark.StringDict
	hints  map[string]string // why an attribute is not there
}

func newRecord(kind string) *record { return &record{kind: kind, fields: starlark.StringDict{}} }

func (r *record) set(name string, v starlark.Value) {
	if !r.fields.Has(name) {
		r.names = append(r.names, name)
	}
	r.fields[name] = v
}

// hint explains the absence of an attribute that people may look for.
func (r *record) hint(name, why string) {
	if r.hints == nil {
		r.hints = map[string]string{}
	}
	r.hints[name] = why
}

// String is the kind; metrics print their values too, for print(m) in a hook.
func (r *record) String() string {
	if r.kind != metricsKind {
		return "<" + r.kind + ">"
	}
	var b strings.Builder
	for i, name := range r.names {
		if i > 0 {
			b.WriteString(" ")
		}
		fmt.Fprintf(&b, "%s=%v", name, r.fields[name])
	}
	return b.String()
}

func (r *record) Type() string          { return r.kind }
func (r *record) Freeze()               { r.fields.Freeze() }
func (r *record) Truth() starlark.Bool  { return true }
func (r *record) Hash() (uint32, error) { return 0, fmt.Errorf("unhashable: %s", r.kind) }
func (r *record) AttrNames() []string   { return r.names }

// Attr finds an attribute. A wrong name is an error that suggests the nearest.
func (r *record) Attr(name string) (starlark.Value, error) {
	if v, ok := r.fields[name]; ok {
		return v, nil
	}
	if why, ok := r.hints[name]; ok {
		return nil, fmt.Errorf("%s has no %q: %s", r.kind, name, why)
	}
	return nil, noAttribute(r.kind, name, r.names)
}
