package main

import (
	"testing"

	"starling/sdk"
)

// TestHypersOf: what a plugin has no default for is asked for in the words that give it.
func TestHypersOf(t *testing.T) {
	zero := 0.0
	m := sdk.Manifest{Name: "warm", Hypers: []sdk.Hyper{
		{Name: "peak", Type: sdk.TypeFloat, Needed: true, Min: &zero},
		{Name: "floor", Type: sdk.TypeFloat, Default: 0.5},
		{Name: "total", Type: sdk.TypeInt, Needed: true},
	}}
	if got, err := hypersOf(m, []string{"peak=0.25", "total=7"}); err != nil || got["peak"] != 0.25 || got["floor"] != 0.5 || got["total"] != int64(7) {
		t.Errorf("%v, %v", got, err)
	}
	for _, c := range []struct {
		set  []string
		want []string
	}{
		{nil, []string{"plugin warm has no defaults", "--set peak=…\tpeak (a number", "--set total=…\ttotal ("}},
		{[]string{"peak=1"}, []string{"--set total=…"}},
		{[]string{"peak=1", "total=x"}, []string{"--set total=x"}},
		{[]string{"peek=1"}, []string{"--set peek=1"}},
	} {
		_, err := hypersOf(m, c.set)
		if err == nil {
			t.Errorf("%q is taken", c.set)
			continue
		}
		contains(t, err.Error(), c.want...)
	}
}
