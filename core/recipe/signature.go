package recipe

import (
	"fmt"
	"slices"
	"strings"

	"go.starlark.net/starlark"
	"go.starlark.net/syntax"
)

// declaration is one builtin: its signature in Starlark's own syntax, which is parsed once and is the only place
// where names and defaults of arguments are written, one line of help, and what it does.
type declaration struct {
	signature string // such as "softmax(x)" or "train(*, loss, steps = 0)"
	doc       string
	run       func(c *call) (starlark.Value, error)
}

// parameter is one argument of a builtin.
type parameter struct {
	name    string
	text    string         // its default as written; "" where it is required
	value   starlark.Value // its default, or nil
	keyword bool           // may be given by name only
}

// signature is a parsed declaration.
type signature struct {
	name   string // with its namespace, such as "ops.softmax"
	params []parameter
	rest   bool // takes *args and **kwargs besides
}

// parseSignature reads a declaration in the namespace space ("" for a predeclared name). Declarations are part of the
// program, so that a malformed one panics.
func parseSignature(space, decl string) *signature {
	f, err := dialect.Parse("signature", "def "+decl+": pass\n", 0)
	if err != nil {
		panic(fmt.Sprintf("recipe: malformed signature %q: %v", decl, err))
	}
	def := f.Stmts[0].(*syntax.DefStmt)
	s := &signature{name: def.Name.Name}
	if space != "" {
		s.name = space + "." + s.name
	}
	keyword := false
	for _, p := range def.Params {
		switch p := p.(type) {
		case *syntax.Ident:
			s.params = append(s.params, parameter{name: p.Name, keyword: keyword})
		case *syntax.BinaryExpr:
			start, end := p.Y.Span()
			line := "def " + decl
			text := line[start.Col-1 : end.Col-1]
			v, err := starlark.EvalExprOptions(dialect, new(starlark.Thread), p.Y, nil)
			if err != nil {
				panic(fmt.Sprintf("recipe: malformed default in %q: %v", decl, err))
			}
			v.Freeze()
			s.params = append(s.params, parameter{p.X.(*syntax.Ident).Name, text, v, keyword})
		case *syntax.UnaryExpr: // *, *args or **kwargs
			keyword = true
			s.rest = s.rest || p.X != nil
		}
	}
	return s
}

func (s *signature) names() []string {
	names := make([]string, len(s.params))
	for i, p := range s.params {
		names[i] = p.name
	}
	return names
}

// String prints the signature as a person would write it.
func (s *signature) String() string {
	var b strings.Builder
	b.WriteString(s.name + "(")
	keyword := false
	for i, p := range s.params {
		if i > 0 {
			b.WriteString(", ")
		}
		if p.keyword && !keyword && !s.rest {
			b.WriteString("*, ")
			keyword = true
		}
		b.WriteString(p.name)
		if p.value != nil {
			b.WriteString(" = " + p.text)
		}
	}
	if s.rest {
		b.WriteString(", *args, **kwargs")
	}
	return b.String() + ")"
}

// argumentError is a mistake in one argument of a call. The converter of errors moves the position from the call to the argument.
type argumentError struct {
	fn, arg string
	msg     string
}

func (e *argumentError) Error() string { return e.fn + ": " + e.msg }

// call is one call of a builtin.
type call struct {
	*signature
	thread *starlark.Thread
	args   starlark.Tuple
	kwargs []starlark.Tuple
}

// builtin makes the Starlark value of a declaration.
func (d declaration) builtin(space string) (*signature, *starlark.Builtin) {
	sig := parseSignature(space, d.signature)
	return sig, starlark.NewBuiltin(sig.name, func(thread *starlark.Thread, _ *starlark.Builtin, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
		return d.run(&call{sig, thread, args, kwargs})
	})
}

// bad is a mistake in one argument.
func (c *call) bad(arg, format string, args ...any) error {
	return &argumentError{c.name, arg, fmt.Sprintf(format, args...)}
}

// errorf is a mistake in the call as a whole.
func (c *call) errorf(format string, args ...any) error {
	return fmt.Errorf("%s: %s", c.name, fmt.Sprintf(format, args...))
}

// bind matches arguments and parameters: the result has a value for each parameter, defaults filled in.
func (c *call) bind() ([]starlark.Value, error) {
	values := make([]starlark.Value, len(c.params))
	positional := 0
	for _, p := range c.params {
		if !p.keyword {
			positional++
		}
	}
	if len(c.args) > positional {
		return nil, c.errorf("%d arguments without a name, at most %d are possible: %v", len(c.args), positional, c.signature)
	}
	copy(values, c.args)
	for _, kv := range c.kwargs {
		name := string(kv[0].(starlark.String))
		i := slices.IndexFunc(c.params, func(p parameter) bool { return p.name == name })
		if i < 0 {
			return nil, c.bad(name, "%s", unexpectedArgument(c.name, name, c.names()))
		}
		if values[i] != nil {
			return nil, c.bad(name, "argument %q is given twice", name)
		}
		values[i] = kv[1]
	}
	for i, p := range c.params {
		if values[i] != nil {
			continue
		}
		if p.value == nil {
			return nil, c.errorf("missing argument %q: %v", p.name, c.signature)
		}
		values[i] = p.value
	}
	return values, nil
}

// unpack stores the arguments in the pointers, one for each parameter of the signature, in order.
// None leaves its variable as it is where None is the argument's default.
func (c *call) unpack(dst ...any) error {
	if len(dst) != len(c.params) {
		panic(fmt.Sprintf("recipe: %s has %d parameters, %d are unpacked", c.name, len(c.params), len(dst)))
	}
	values, err := c.bind()
	if err != nil {
		return err
	}
	for i, p := range c.params {
		if values[i] == starlark.None && p.value == starlark.None {
			continue
		}
		if want, msg := store(dst[i], values[i]); want != "" {
			return c.bad(p.name, "%s must be %s, not %s", p.name, want, describe(values[i]))
		} else if msg != "" {
			return c.bad(p.name, "%s: %s", p.name, msg)
		}
	}
	return nil
}

// store converts a value to the type that dst points to. want names the type that was expected, or msg says
// what is wrong with a value of the right type; both are empty on success.
func store(dst any, v starlark.Value) (want, msg string) {
	switch dst := dst.(type) {
	case *starlark.Value:
		*dst = v
	case *int:
		i, ok := v.(starlark.Int)
		if !ok {
			return "an int", ""
		}
		n, ok := i.Int64()
		if !ok || n != int64(int(n)) {
			return "", fmt.Sprintf("%v is too large", i)
		}
		*dst = int(n)
	case *float64:
		f, ok := number(v)
		if !ok {
			return "a number", ""
		}
		*dst = f
	case *bool:
		b, ok := v.(starlark.Bool)
		if !ok {
			return "True or False", ""
		}
		*dst = bool(b)
	case *string:
		s, ok := starlark.AsString(v)
		if !ok {
			return "a string", ""
		}
		*dst = s
	case *[]int:
		return storeInts(dst, v)
	case *[]string:
		return storeStrings(dst, v)
	case *starlark.Callable:
		f, ok := v.(starlark.Callable)
		if !ok {
			return "a function", ""
		}
		*dst = f
	case **Tensor:
		t, ok := v.(*Tensor)
		if !ok {
			return "a tensor", ""
		}
		*dst = t
	case *[]*Tensor:
		seq, ok := v.(starlark.Sequence)
		if !ok {
			return "a list of tensors", ""
		}
		for x := range starlark.Elements(seq) {
			t, ok := x.(*Tensor)
			if !ok {
				return "", "an element is " + describe(x) + ", not a tensor"
			}
			*dst = append(*dst, t)
		}
	case *rate:
		return storeRate(dst, v)
	case kindOf:
		s, ok := v.(*setting)
		if !ok || s.kind != dst.kind {
			return dst.want, ""
		}
		*dst.to = s
	default:
		panic(fmt.Sprintf("recipe: arguments of type %T are not supported", dst))
	}
	return "", ""
}

// maxDims bounds the lists of ints that describe a tensor; the graph refuses more dimensions than that.
const maxDims = 8

// storeInts accepts a list or tuple of ints, and one int as a list of one.
func storeInts(dst *[]int, v starlark.Value) (want, msg string) {
	if i, ok := v.(starlark.Int); ok {
		v = starlark.Tuple{i}
	}
	seq, ok := v.(starlark.Indexable)
	if _, tensor := v.(*Tensor); !ok || tensor {
		return "an int or a list of ints", ""
	}
	if seq.Len() > maxDims {
		return "", fmt.Sprintf("%d entries, at most %d are possible", seq.Len(), maxDims)
	}
	for i := range seq.Len() {
		var n int
		if want, msg := store(&n, seq.Index(i)); want != "" {
			return "", fmt.Sprintf("entry %d must be an int, not %s", i, describe(seq.Index(i)))
		} else if msg != "" {
			return "", msg
		}
		*dst = append(*dst, n)
	}
	return "", ""
}

// maxStrings bounds lists of strings.
const maxStrings = 1 << 16

// storeStrings accepts a list or tuple of strings.
func storeStrings(dst *[]string, v starlark.Value) (want, msg string) {
	seq, ok := v.(starlark.Indexable)
	if _, text := v.(starlark.String); !ok || text {
		return "a list of strings", ""
	}
	if seq.Len() > maxStrings {
		return "", fmt.Sprintf("%d entries, at most %d are possible", seq.Len(), maxStrings)
	}
	for i := range seq.Len() {
		var s string
		if want, _ := store(&s, seq.Index(i)); want != "" {
			return "", fmt.Sprintf("entry %d must be a string, not %s", i, describe(seq.Index(i)))
		}
		*dst = append(*dst, s)
	}
	return "", ""
}

// number reads an int or a float.
func number(v starlark.Value) (float64, bool) {
	switch v := v.(type) {
	case starlark.Float:
		return float64(v), true
	case starlark.Int:
		return float64(v.Float()), true
	}
	return 0, false
}

// describe names a value for an error message: its type, and the value itself where that is short.
func describe(v starlark.Value) string {
	switch v := v.(type) {
	case starlark.NoneType, starlark.Bool:
		return v.String()
	case starlark.String:
		if len(v) <= 40 {
			return "the string " + v.String()
		}
	case starlark.Int, starlark.Float:
		if s := v.String(); len(s) <= 40 {
			return "the " + v.Type() + " " + s
		}
	case *Tensor:
		return "a " + v.String()
	}
	article := "a "
	if strings.ContainsRune("aeiou", rune(v.Type()[0])) {
		article = "an "
	}
	return article + v.Type()
}
