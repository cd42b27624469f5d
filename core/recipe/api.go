package recipe

import (
	"fmt"
	"io/fs"
	"strings"

	"go.starlark.net/syntax"

	"starling/recipes"
)

// entry is one function of the recipe language.
type entry struct{ name, args, doc string }

// section is one namespace, or one file of the standard library.
type section struct {
	name    string // of the namespace; "" for predeclared names
	file    string // of a library file to load, such as "@std//models/gpt.star"
	doc     string
	entries []entry
}

// language lists the recipe language: every predeclared name and every function of the standard library.
func language() []section {
	var out []section
	for _, ns := range namespaces() {
		s := section{name: ns.name, doc: ns.doc}
		for _, d := range ns.decls {
			name, args, _ := strings.Cut(strings.TrimSuffix(parseSignature("", d.signature).String(), ")"), "(")
			s.entries = append(s.entries, entry{name, args, d.doc})
		}
		if ns.name == "nn" {
			s.entries = append(s.entries, libraryFunctions("nn.star")...)
		}
		out = append(out, s)
	}
	models, err := fs.Glob(recipes.Std, "std/models/*.star")
	if err != nil {
		panic(fmt.Sprintf("recipe: the standard library is incomplete: %v", err))
	}
	for _, path := range models {
		file := strings.TrimPrefix(path, "std/")
		out = append(out, section{file: stdPrefix + file, doc: "a model of the standard library", entries: libraryFunctions(file)})
	}
	return out
}

// Reference prints the recipe language for people: a line "# …" for each namespace and library file, and a line
// "name(arguments)", a tab and one line of help for each function.
func Reference() string {
	var b strings.Builder
	for _, s := range language() {
		prefix := ""
		switch {
		case s.file != "":
			fmt.Fprintf(&b, "# load(%q, …): %s\n", s.file, s.doc)
		case s.name == "":
			fmt.Fprintf(&b, "# predeclared: %s\n", s.doc)
		default:
			fmt.Fprintf(&b, "# %s: %s\n", s.name, s.doc)
			prefix = s.name + "."
		}
		for _, e := range s.entries {
			fmt.Fprintf(&b, "%s%s(%s)\t%s\n", prefix, e.name, e.args, e.doc)
		}
	}
	return b.String()
}

// Stubs prints the predeclared names as a Python stub file, with which editors complete and check recipes.
func Stubs() string {
	var b strings.Builder
	b.WriteString(`"""What recipes find predeclared, for editors that take stubs: Pyright, for one, reads this file by its name
from the folder that a project is opened in. Recipes are Starlark, which is close enough to Python for that; let the editor
treat *.star as Python.

Generated from the program's own declarations; a test of core/recipe keeps it current.
"""
`)
	for _, s := range language() {
		if s.file != "" {
			continue
		}
		indent := ""
		if s.name != "" {
			fmt.Fprintf(&b, "\nclass %s:\n    \"\"\"%s\"\"\"\n", s.name, s.doc)
			indent = "    "
		}
		for _, e := range s.entries {
			b.WriteString("\n")
			if s.name != "" {
				b.WriteString(indent + "@staticmethod\n")
			}
			fmt.Fprintf(&b, "%sdef %s(%s):\n%s    \"\"\"%s\"\"\"\n%s    ...\n", indent, e.name, e.args, indent, e.doc, indent)
		}
		if s.name == "math" {
			b.WriteString("\n    pi: float\n")
		}
	}
	return b.String()
}

// libraryFunctions lists the public functions of a file of the standard library, in its order.
func libraryFunctions(file string) []entry {
	text, err := recipes.Std.ReadFile("std/" + file)
	if err != nil {
		panic(fmt.Sprintf("recipe: the standard library is incomplete: %v", err))
	}
	f, err := dialect.Parse(file, text, 0)
	if err != nil {
		panic(fmt.Sprintf("recipe: the standard library is broken: %v", err))
	}
	lines := strings.Split(string(text), "\n")
	var out []entry
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
		out = append(out, entry{def.Name.Name, strings.Join(params, ", "), firstLine(def)})
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
