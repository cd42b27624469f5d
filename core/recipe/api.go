package recipe

import (
	"fmt"
	"strings"

	"go.starlark.net/syntax"

	"starling/recipes"
)

// Reference lists the recipe language: every predeclared name with its arguments and one line of help, and the functions of
// the standard library, one line each as "signature<tab>help".
func Reference() string {
	var b strings.Builder
	line := func(signature, doc string) { fmt.Fprintf(&b, "%s\t%s\n", signature, doc) }
	for _, ns := range namespaces() {
		title := ns.name
		if title == "" {
			title = "predeclared"
		}
		fmt.Fprintf(&b, "# %s: %s\n", title, ns.doc)
		for _, d := range ns.decls {
			line(parseSignature(ns.name, d.signature).String(), d.doc)
		}
		switch ns.name {
		case "nn":
			for _, f := range libraryFunctions("nn.star") {
				line("nn."+f.signature, f.doc)
			}
		case "math":
			line("math.pi", "the ratio of a circle's circumference to its diameter")
		}
	}
	for _, file := range []string{"models/gpt.star", "models/mlp.star", "models/convnet.star"} {
		fmt.Fprintf(&b, "# load(%q, …)\n", stdPrefix+file)
		for _, f := range libraryFunctions(file) {
			line(f.signature, f.doc)
		}
	}
	return b.String()
}

type function struct{ name, signature, doc string }

// libraryFunctions lists the public functions of a file of the standard library, in its order.
func libraryFunctions(file string) []function {
	text, err := recipes.Std.ReadFile("std/" + file)
	if err != nil {
		panic(fmt.Sprintf("recipe: the standard library is incomplete: %v", err))
	}
	f, err := dialect.Parse(file, text, 0)
	if err != nil {
		panic(fmt.Sprintf("recipe: the standard library is broken: %v", err))
	}
	lines := strings.Split(string(text), "\n")
	var out []function
	for _, stmt := range f.Stmts {
		def, ok := stmt.(*syntax.DefStmt)
		if !ok || strings.HasPrefix(def.Name.Name, "_") {
			continue
		}
		var params []string
		for _, p := range def.Params {
			start, end := p.Span()
			params = append(params, string([]rune(lines[start.Line-1])[start.Col-1:end.Col-1]))
		}
		out = append(out, function{def.Name.Name, fmt.Sprintf("%s(%s)", def.Name.Name, strings.Join(params, ", ")), firstLine(def)})
	}
	return out
}

// firstLine is the first line of a function's docstring.
func firstLine(def *syntax.DefStmt) string {
	if e, ok := def.Body[0].(*syntax.ExprStmt); ok {
		if lit, ok := e.X.(*syntax.Literal); ok {
			if s, ok := lit.Value.(string); ok {
				doc, _, _ := strings.Cut(s, "\n")
				return strings.TrimSpace(doc)
			}
		}
	}
	return ""
}
