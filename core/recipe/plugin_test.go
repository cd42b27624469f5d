package recipe

import (
	"reflect"
	"testing"

	"go.starlark.net/starlark"

	"starling/sdk"
)

// A value of a recipe becomes one of the hyper-parameter's type, or is refused: nothing is rounded or guessed.
func TestHyperValues(t *testing.T) {
	list := starlark.NewList([]starlark.Value{starlark.MakeInt(1), starlark.Float(0.5)})
	mixed := starlark.Tuple{starlark.Float(1), starlark.String("a")}
	for _, c := range []struct {
		of   sdk.Type
		v    starlark.Value
		want any // nil: refused
	}{
		{sdk.TypeFloat, starlark.Float(0.5), 0.5},
		{sdk.TypeFloat, starlark.MakeInt(2), 2.0},
		{sdk.TypeFloat, starlark.String("2"), nil},
		{sdk.TypeFloat, starlark.True, nil},
		{sdk.TypeFloat, starlark.None, nil},
		{sdk.TypeInt, starlark.MakeInt(3), int64(3)},
		{sdk.TypeInt, starlark.Float(3), nil},
		{sdk.TypeInt, starlark.MakeUint64(1 << 63), nil},
		{sdk.TypeInt, starlark.True, nil},
		{sdk.TypeBool, starlark.True, true},
		{sdk.TypeBool, starlark.MakeInt(1), nil},
		{sdk.TypeString, starlark.String("a"), "a"},
		{sdk.TypeString, starlark.MakeInt(1), nil},
		{sdk.TypeFloats, list, []float64{1, 0.5}},
		{sdk.TypeFloats, mixed, nil},
		{sdk.TypeFloats, starlark.Float(1), nil},
		{sdk.TypeFloats, starlark.String("ab"), nil},
	} {
		got, ok := hyperValue(c.of, c.v)
		if ok != (c.want != nil) || ok && !reflect.DeepEqual(got, c.want) {
			t.Errorf("%v for %v: %v, %v, want %v", c.v, c.of, got, ok, c.want)
		}
	}
}
