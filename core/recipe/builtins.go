package recipe

import (
	"fmt"
	"math"

	"go.starlark.net/starlark"

	"starling/recipes"
)

// namespace is a set of builtins under one name; the name "" stands for those without.
type namespace struct {
	name  string
	doc   string
	decls []declaration
}

// namespaces lists everything that is predeclared in recipes, but for the layers of nn.star.
func namespaces() []namespace {
	return []namespace{
		{"", "the recipe's own frame", frameDeclarations()},
		{"data", "where samples come from", dataDeclarations()},
		{"tokenizer", "how text becomes tokens", tokenizerDeclarations()},
		{"nn", "layers: blocks and parameters here, everything else in @std//nn.star", nnDeclarations()},
		{"init", "initial values of parameters, drawn by the parameter's name", initDeclarations()},
		{"ops", "differentiable primitives", opsDeclarations()},
		{"optim", "optimizers", optimDeclarations()},
		{"plugin", "extensions that are programs of their own", pluginDeclarations()},
		{"schedule", "learning rates over the optimizer steps", scheduleDeclarations()},
		{"precision", "number formats", precisionDeclarations()},
		{"loss_scale", "what small gradients are multiplied by in 16 bits", lossScaleDeclarations()},
		{"parallel", "placement", parallelDeclarations()},
		{"compress", "gradients made small for slow links; each changes the result", compressDeclarations()},
		{"recompute", "activations that are computed again instead of kept", recomputeDeclarations()},
		{"action", "what the hooks on_step and on_eval may return", actionDeclarations()},
		{"math", "functions of numbers, the same bits on every machine", mathDeclarations()},
	}
}

// builtins makes the predeclared names and runs nn.star, whose functions join the namespace nn.
func (s *session) builtins(thread *starlark.Thread) error {
	s.library = starlark.StringDict{"range": starlark.NewBuiltin("range", boundedRange)}
	for _, ns := range namespaces() {
		r := newRecord(ns.name)
		for _, d := range ns.decls {
			sig, b := d.builtin(ns.name)
			if ns.name == "" {
				s.library[sig.name] = b
				continue
			}
			r.set(sig.name[len(ns.name)+1:], b)
		}
		if ns.name != "" {
			s.library[ns.name] = r
		}
	}
	s.library["math"].(*record).set("pi", starlark.Float(math.Pi))

	text, err := recipes.Std.ReadFile("std/nn.star")
	if err != nil {
		return fmt.Errorf("the standard library is incomplete: %w", err)
	}
	// nn.star sees the primitives of nn as nn; recipes see both.
	layers, err := s.exec(thread, nnFile, string(text), s.library)
	if err != nil {
		return err
	}
	s.modules[nnFile] = &module{globals: layers}
	nn := newRecord("nn")
	primitives := s.library["nn"].(*record)
	for _, name := range primitives.names {
		nn.set(name, primitives.fields[name])
	}
	for _, name := range layers.Keys() {
		if name[0] != '_' {
			nn.set(name, layers[name])
		}
	}
	s.names = starlark.StringDict{}
	for name, v := range s.library {
		s.names[name] = v
	}
	s.names["nn"] = nn
	s.names.Freeze()
	// The rest of the library is written like a recipe.
	s.library = s.names
	return nil
}

// maxRange bounds range(): a recipe describes a run, it does not count to a billion.
const maxRange = 10_000_000

// boundedRange is Starlark's range with a bound, because list(range(n)) takes memory without taking steps.
func boundedRange(thread *starlark.Thread, b *starlark.Builtin, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	v, err := starlark.Call(thread, starlark.Universe["range"], args, kwargs)
	if err != nil {
		return nil, err
	}
	if n := starlark.Len(v); n > maxRange {
		return nil, fmt.Errorf("range: %d elements; a recipe may loop over at most %d, put the work in ops", n, maxRange)
	}
	return v, nil
}
