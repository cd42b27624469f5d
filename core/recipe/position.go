package recipe

import (
	"strings"

	"go.starlark.net/starlark"
	"go.starlark.net/syntax"

	"starling/core/graph"
)

// stdPrefix starts the name of every file of the standard library.
const stdPrefix = "@std//"

// nnFile is the file whose functions are the namespace nn.
const nnFile = stdPrefix + "nn.star"

func toPosition(p syntax.Position) graph.Position {
	return graph.Position{File: p.Filename(), Line: int(p.Line), Col: int(p.Col)}
}

// frame is one call that is running: the function and where in it execution stands.
type frame struct {
	function string
	graph.Position
}

func (f frame) inLibrary() bool { return strings.HasPrefix(f.File, stdPrefix) }

// frames lists the Starlark functions of a call stack, innermost first; builtins have no place of their own.
func frames(stack starlark.CallStack) []frame {
	var out []frame
	for i := range len(stack) {
		f := stack.At(i)
		if f.Pos.Line > 0 {
			out = append(out, frame{f.Name, toPosition(f.Pos)})
		}
	}
	return out
}

// place picks from a stack what a person should look at: the innermost position in a file of their own. Callers
// are all other frames, innermost first, those of the standard library included.
func place(stack []frame) graph.Position {
	at := 0
	for i, f := range stack {
		if !f.inLibrary() {
			at = i
			break
		}
	}
	if len(stack) == 0 {
		return graph.Position{}
	}
	pos := stack[at].Position
	for i, f := range stack {
		if i != at {
			pos.Callers = append(pos.Callers, f.Position)
		}
	}
	return pos
}

// position is the place of the call that a builtin or an operator is running for.
func position(thread *starlark.Thread) graph.Position { return place(frames(thread.CallStack())) }

// layer names the function of nn that is running, with its first argument where that is a name, such as
// nn.linear "down"; or "" outside any.
func layer(thread *starlark.Thread) string {
	for i := range thread.CallStackDepth() {
		f := thread.DebugFrame(i)
		fn, ok := f.Callable().(*starlark.Function)
		if !ok {
			continue
		}
		if fn.Position().Filename() != nnFile {
			return ""
		}
		if strings.HasPrefix(fn.Name(), "_") || fn.Name() == "lambda" {
			continue
		}
		label := "nn." + fn.Name()
		if fn.NumParams() > 0 && f.NumLocals() > 0 {
			if b, v := f.Local(0); b.Name == "name" {
				if s, ok := v.(starlark.String); ok {
					label += " " + s.String()
				}
			}
		}
		return label
	}
	return ""
}
