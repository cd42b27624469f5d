package main

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The plan names the owner of every tensor that a whole-tensor plugin renews: each has one, and with nothing sharded every rank
// renews all.
func TestPlanNamesOwners(t *testing.T) {
	recipe := pluginRecipe(t)
	plan := func(sets ...string) string {
		t.Helper()
		p := start(t, append([]string{"plan", recipe}, pluginSets(sets...)...)...)
		if code := p.wait(t, 20*time.Second); code != 0 {
			t.Fatalf("exit status %d\n%s", code, p.stderr.String())
		}
		return p.stdout.String()
	}
	section := func(text string) string {
		t.Helper()
		_, after, ok := strings.Cut(text, "\noptimizer plugin reference-adamw-whole 1.0.0, whole tensors")
		if !ok {
			t.Fatalf("the plan does not speak of the plugin:\n%s", text)
		}
		own, _, _ := strings.Cut(after, "\n\n")
		return own
	}
	all := section(plan("optimizer=reference-adamw-whole", "ranks=2", "zero=0"))
	m := regexp.MustCompile(`which every rank renews.*\n  each rank  (\d+) tensors, (\S+) elements, scratch (\S+ KiB) \(one tensor with its state: (\S+)\)`).FindStringSubmatch(all)
	if m == nil {
		t.Fatalf("nothing sharded: %s", all)
	}
	for _, placement := range [][]string{{"ranks=3", "zero=1"}, {"ranks=2", "zero=2"}, {"ranks=4", "zero=3"}} {
		text := section(plan(append(placement, "optimizer=reference-adamw-whole")...))
		contains(t, text, "each dealt to one owner", "times its even share", "one tensor with its state: "+m[4])
		var names []string
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "          ") {
				for _, n := range strings.Split(strings.TrimSpace(line), ",") {
					if n = strings.TrimSpace(n); n != "" {
						names = append(names, n)
					}
				}
			}
		}
		slices.Sort(names)
		if double := len(names) - len(slices.Compact(slices.Clone(names))); double != 0 {
			t.Errorf("%v: %d tensors have several owners:\n%s", placement, double, text)
		}
		if want := m[1]; len(names) == 0 || want != strconv.Itoa(len(names)) {
			t.Errorf("%v: %d tensors have an owner, there are %s:\n%s", placement, len(names), want, text)
		}
	}
	contains(t, plan("optimizer=reference-adamw", "ranks=2", "zero=1"), "optimizer plugin reference-adamw 1.0.0, element-wise", "optimizer plugins")
	if text := plan("ranks=2"); strings.Contains(text, "plugin") {
		t.Errorf("a plan without plugins speaks of them:\n%s", text)
	}
}
