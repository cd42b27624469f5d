package recipe

import (
	"fmt"

	"go.starlark.net/starlark"
)

// takesOne checks that a function which the run calls with one argument can be called so; argument names it for people, such as
// "the metrics". It returns "" or what is wrong. Builtins are not looked into.
func takesOne(fn starlark.Callable, argument string) string {
	f, ok := fn.(*starlark.Function)
	if !ok {
		return ""
	}
	positional := f.NumParams() - f.NumKwonlyParams()
	if f.HasVarargs() {
		positional--
	}
	if f.HasKwargs() {
		positional--
	}
	needed := 0
	for i := range positional {
		if f.ParamDefault(i) == nil {
			needed++
		}
	}
	keywords := false // that have no default
	for i := positional; i < positional+f.NumKwonlyParams(); i++ {
		keywords = keywords || f.ParamDefault(i) == nil
	}
	if needed <= 1 && (positional >= 1 || f.HasVarargs()) && !keywords {
		return ""
	}
	switch {
	case keywords:
		return fmt.Sprintf("%s needs an argument by name; it is called with one, %s, without a name", f.Name(), argument)
	case needed == 0:
		return fmt.Sprintf("%s takes no argument; it is called with one, %s", f.Name(), argument)
	}
	return fmt.Sprintf("%s needs %d arguments; it is called with one, %s", f.Name(), needed, argument)
}
