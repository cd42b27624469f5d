package recipe

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.starlark.net/resolve"
	"go.starlark.net/starlark"
	"go.starlark.net/syntax"

	"starling/core/graph"
)

// Error is a mistake in a recipe. It prints as
//
//	gpt.star:31:19: nn.linear "down": cannot multiply [8,128,768] by a weight [512,192] …
//	    in block h.0.mlp, called from gpt.star:14:5
//	    inside @std//models/gpt.star:40:12
type Error struct {
	// Pos is the innermost place in a file of the user's; its Callers are the user's own calls that led there.
	Pos graph.Position
	Msg string
	// Block is the path of the block that was open, or "".
	Block string
	// Library lists the places in the standard library between Pos and the mistake, outermost first.
	Library []graph.Position
}

// maxCallers bounds the calls that an error lists.
const maxCallers = 6

func (e *Error) Error() string {
	var b strings.Builder
	if e.Pos.Line > 0 {
		b.WriteString(e.Pos.String() + ": ")
	} else if e.Pos.File != "" {
		b.WriteString(e.Pos.File + ": ")
	}
	b.WriteString(clip(visible(e.Msg)))
	var where []string
	if e.Block != "" {
		where = append(where, "in block "+e.Block)
	}
	for callers := e.Pos.Callers; len(callers) > 0; {
		if len(where) > maxCallers {
			where = append(where, fmt.Sprintf("and %d more calls", len(callers)))
			break
		}
		at, same := callers[0].String(), 0
		for len(callers) > 0 && callers[0].String() == at {
			callers, same = callers[1:], same+1
		}
		if same > 1 {
			at += fmt.Sprintf(" (%d times)", same)
		}
		where = append(where, "called from "+at)
	}
	if len(where) > 0 {
		b.WriteString("\n    " + strings.Join(where, ", "))
	}
	if len(e.Library) > 0 {
		var inside []string
		for _, p := range e.Library {
			inside = append(inside, p.String())
		}
		b.WriteString("\n    inside " + strings.Join(inside, ", "))
	}
	return b.String()
}

// maxMessage bounds the bytes of a message: a recipe may say anything with fail(…).
const maxMessage = 2000

func clip(msg string) string {
	if len(msg) <= maxMessage {
		return msg
	}
	end := maxMessage
	for !utf8.RuneStart(msg[end]) {
		end--
	}
	return fmt.Sprintf("%s … (%d bytes more)", msg[:end], len(msg)-end)
}

// visible escapes what would steer a terminal: everything that does not print, but newline and tab.
func visible(msg string) string {
	if !strings.ContainsFunc(msg, steers) && utf8.ValidString(msg) {
		return msg
	}
	var b strings.Builder
	for i, r := range msg {
		_, size := utf8.DecodeRuneInString(msg[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, msg[i])
		case steers(r):
			quoted := strconv.QuoteRune(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

func steers(r rune) bool {
	return r != '\n' && r != '\t' && !unicode.IsPrint(r) && !unicode.IsSpace(r) || r == '\r' || r == '\v' || r == '\f' || r == 0x85
}

// explain turns an error of the interpreter into an *Error. block is where tracing stood, or "".
func (s *session) explain(err error, block string) error {
	if err == nil {
		return nil
	}
	var already *Error
	if errors.As(err, &already) {
		return already
	}
	var eval *starlark.EvalError
	for cause := err; errors.As(cause, &eval); cause = eval.Unwrap() {
		err = eval
	}
	var parse syntax.Error
	if errors.As(err, &parse) {
		return &Error{Pos: toPosition(parse.Pos), Msg: "syntax: " + syntaxHint(parse.Msg, s.before(parse.Pos))}
	}
	var unresolved resolve.ErrorList
	if errors.As(err, &unresolved) {
		var msgs []error
		for _, u := range unresolved {
			msg := rewrite(u.Msg)
			if name, ok := strings.CutPrefix(msg, "undefined: "); ok && !strings.Contains(name, ";") {
				msg += didYouMean(name, append(s.names.Keys(), starlark.Universe.Keys()...))
			}
			msgs = append(msgs, &Error{Pos: toPosition(u.Pos), Msg: msg})
		}
		return errors.Join(msgs...)
	}
	if !errors.As(err, &eval) {
		return &Error{Pos: graph.Position{File: s.name}, Msg: err.Error()}
	}
	return s.explainCall(eval, block)
}

func (s *session) explainCall(eval *starlark.EvalError, block string) error {
	stack, msg := eval.CallStack, eval.Msg
	var late *lateError
	if errors.As(eval, &late) {
		stack, msg = late.stack, late.Error()
	}
	calls := frames(stack)
	var missing *loadError
	if errors.As(eval, &missing) {
		msg = missing.Error()
	}
	arg := ""
	var bad *argumentError
	if errors.As(eval, &bad) {
		arg = bad.arg
	}
	if m := wrongCall.FindStringSubmatch(msg); m != nil && len(calls) > 1 && calls[0].function == m[1] {
		// Starlark blames the function that was called: the mistake is one frame further out.
		msg, arg = s.rewriteCall(calls[0], msg, m)
		calls = calls[1:]
	}
	if strings.HasPrefix(msg, cancelled) && len(calls) > 0 {
		calls[0].Position = s.loop(calls[0].Position)
	}
	e := &Error{Msg: rewrite(msg), Block: block}
	at := 0
	for at < len(calls)-1 && calls[at].inLibrary() {
		at++
	}
	if at < len(calls) {
		e.Pos = calls[at].Position
		if at == 0 {
			e.Pos = s.argument(e.Pos, arg)
		}
	}
	if e.Pos.Line == 0 && s.spec != nil { // a builtin in the place of the user's function
		e.Pos = s.trained
	}
	for i := at - 1; i >= 0; i-- {
		e.Library = append(e.Library, calls[i].Position)
	}
	for _, c := range calls[min(at+1, len(calls)):] {
		if !c.inLibrary() {
			e.Pos.Callers = append(e.Pos.Callers, c.Position)
		}
	}
	return e
}

var (
	wrongCall  = regexp.MustCompile(`^function (\S+) (got an unexpected keyword argument "(.*)"|.*)$`)
	suggestion = regexp.MustCompile(` \(did you mean \.?([^?]*)\?\)$`)
	formatted  = regexp.MustCompile(`\bf(["'].*)?$`)
	comparison = regexp.MustCompile(`^(\S+) (<|>|<=|>=) (\S+) not implemented$`)
)

// cancelled is what Starlark puts before the reason of a cancellation.
const cancelled = "Starlark computation cancelled: "

// rewrite puts Starlark's own messages into the words of ours.
func rewrite(msg string) string {
	msg = strings.TrimPrefix(strings.TrimPrefix(msg, cancelled), "fail: ")
	if msg == "Starlark stack overflow" {
		return tooDeep
	}
	msg = suggestion.ReplaceAllString(msg, `; did you mean "$1"?`)
	if m := comparison.FindStringSubmatch(msg); m != nil && (m[1] == "tensor" || m[3] == "tensor") {
		return fmt.Sprintf("operator %s: tensors cannot be compared, they have no content while a model is traced; use ops.maximum, ops.relu, …", m[2])
	}
	switch {
	case strings.HasPrefix(msg, "tensor index: got tuple"):
		return "x[i, j]: " + oneAxis
	case strings.HasPrefix(msg, "cannot ") && strings.Contains(msg, " frozen "):
		return msg + fixedGlobals
	case strings.HasPrefix(msg, "local variable ") && strings.HasSuffix(msg, " referenced before assignment"):
		return msg + "; a name that a function assigns to is the function's own" + fixedGlobals
	}
	return msg
}

const (
	oneAxis      = "index one axis; for others use ops.slice(x, axis, start, end)"
	fixedGlobals = "; globals are fixed once the recipe has been read: a model or a hook leaves nothing behind, and a hook sees nothing but its argument m"
)

// before is the text of a line up to a position.
func (s *session) before(pos syntax.Position) string {
	lines := strings.Split(s.sources[pos.Filename()], "\n")
	if i := int(pos.Line) - 1; i >= 0 && i < len(lines) {
		line := []rune(lines[i])
		return strings.TrimSpace(string(line[:min(max(0, int(pos.Col)-1), len(line))]))
	}
	return ""
}

// syntaxHint adds what people who come from Python want to know. before is the line up to the mistake.
func syntaxHint(msg, before string) string {
	inBrackets := false
	if i := strings.LastIndexAny(before, "[{("); i >= 0 {
		inBrackets = before[i] == '['
	}
	switch {
	case inBrackets && strings.Contains(msg, "want primary expression") && (strings.HasSuffix(before, ":") || strings.Contains(msg, "got '.'") || strings.Contains(msg, "got ':'")):
		return msg + "; " + oneAxis
	case strings.Contains(msg, "got string literal") && formatted.MatchString(before):
		return msg + `; Starlark has no f-strings, write "%d" % x or "{}".format(x)`
	case strings.Contains(msg, "got '**'"):
		return msg + "; Starlark has no operator **, write math.pow(x, y), or ops.pow(x, y) for a tensor"
	case strings.HasPrefix(before, "def ") && (strings.Contains(msg, "got ':'") || strings.Contains(msg, "got '-', want ':'")):
		return msg + "; Starlark has no type annotations"
	case strings.Contains(msg, "got try") || strings.Contains(msg, "got with") || strings.Contains(msg, "got except"):
		return msg + "; Starlark has no exceptions and no with"
	case strings.Contains(msg, "'@'"):
		return msg + "; Starlark has no operator @, write ops.matmul(a, b)"
	case strings.Contains(msg, "class") || strings.Contains(msg, "import") || strings.Contains(msg, "raise"):
		return msg + "; Starlark has functions only: no class, no exceptions, and load(\"file.star\", \"name\") in place of import"
	}
	return msg
}

// rewriteCall rewrites a call that does not fit a function of Starlark, and names the argument at fault.
func (s *session) rewriteCall(callee frame, msg string, m []string) (text, arg string) {
	name := callee.function
	if callee.File == nnFile {
		name = "nn." + name
	}
	if !strings.HasPrefix(m[2], "got an unexpected keyword argument") {
		return name + ": " + m[2], ""
	}
	arg = m[3]
	var names []string
	if f := s.files[callee.File]; f != nil {
		syntax.Walk(f, func(n syntax.Node) bool {
			if def, ok := n.(*syntax.DefStmt); ok && def.Name.Name == callee.function {
				for _, p := range def.Params {
					switch p := p.(type) {
					case *syntax.Ident:
						names = append(names, p.Name)
					case *syntax.BinaryExpr:
						names = append(names, p.X.(*syntax.Ident).Name)
					}
				}
			}
			return true
		})
	}
	return fmt.Sprintf("%s: %s", name, unexpectedArgument(name, arg, names)), arg
}

// argument moves the position of a call to one of its named arguments, where it has that argument by name.
func (s *session) argument(pos graph.Position, arg string) graph.Position {
	f := s.files[pos.File]
	if arg == "" || f == nil {
		return pos
	}
	found := pos
	syntax.Walk(f, func(n syntax.Node) bool {
		c, ok := n.(*syntax.CallExpr)
		if !ok || int(c.Lparen.Line) != pos.Line || int(c.Lparen.Col) != pos.Col {
			return true
		}
		for _, a := range c.Args {
			if b, ok := a.(*syntax.BinaryExpr); ok && b.Op == syntax.EQ {
				if id, ok := b.X.(*syntax.Ident); ok && id.Name == arg {
					p := toPosition(id.NamePos)
					found.Line, found.Col = p.Line, p.Col
				}
			}
		}
		return true
	})
	return found
}

// loop corrects a position inside a loop without any statement that has a place of its own, such as
// while True: pass; Starlark gives the statement before it.
func (s *session) loop(pos graph.Position) graph.Position {
	f := s.files[pos.File]
	if f == nil {
		return pos
	}
	var next *graph.Position
	inside := false
	syntax.Walk(f, func(n syntax.Node) bool {
		switch n.(type) {
		case *syntax.ForStmt, *syntax.WhileStmt:
			start, end := n.Span()
			p := toPosition(start)
			after := p.Line > pos.Line || p.Line == pos.Line && p.Col > pos.Col
			inside = inside || !after && int(end.Line) >= pos.Line
			if after && next == nil {
				next = &p
			}
		}
		return true
	})
	if inside || next == nil {
		return pos
	}
	next.Callers = pos.Callers
	return *next
}
