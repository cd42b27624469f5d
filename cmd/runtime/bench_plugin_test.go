//go:build linux

package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// bench plugin times a recipe's steps on both sides; the sides have the same weights, or it says so.
func TestBenchPluginSteps(t *testing.T) {
	one := strings.Replace(apartRecipe, `"ranks", 3`, `"ranks", 1`, 1)
	adamw := recipeFile(t, strings.Replace(one, "optim.sgd(lr = 0.01)", "optim.adamw(lr = 0.01, betas = (0.9, 0.95))", 1))
	args := []string{"bench", "plugin", "--elements", "0.1", "--rounds", "1", "--turns", "1", "--json", "--models"}
	p := start(t, append(args, adamw)...)
	if code := p.wait(t, time.Minute); code != 0 {
		t.Fatalf("exit status %d\n%s", code, p.stderr.String())
	}
	var f pluginFigures
	if err := json.Unmarshal(p.stdout.Bytes(), &f); err != nil {
		t.Fatal(err)
	}
	if len(f.Models) != 1 || f.Models[0].Ratio <= 0 || f.Models[0].Steps < 3 || f.Models[0].BuiltInMS <= 0 {
		t.Errorf("%+v", f)
	}
	p = start(t, append(args, recipeFile(t, one))...)
	if code := p.wait(t, time.Minute); code != 1 {
		t.Errorf("exit status %d", code)
	}
	contains(t, p.stderr.String(), "does not use optim.adamw")
}
