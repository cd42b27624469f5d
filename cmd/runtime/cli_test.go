package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

var update = flag.Bool("update", false, "rewrite the golden files of this package")

// TestTheCommandLineIsFrozen compares every command's help with a golden file: scripts rely on names and flags, so a
// change there is made on purpose.
func TestTheCommandLineIsFrozen(t *testing.T) {
	var b bytes.Buffer
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Hidden || c.Name() == "help" || c.Name() == "completion" {
			return
		}
		fmt.Fprintf(&b, "==== %s\n%s\n%s\n", c.CommandPath(), c.UseLine(), c.LocalFlags().FlagUsages())
		for _, s := range c.Commands() {
			walk(s)
		}
	}
	walk(newRoot(time.Now()))
	path := filepath.Join("testdata", "commands.txt")
	if *update {
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b.Bytes(), want) {
		t.Errorf("the command line has changed; if that is meant, run the test with -update. It is now\n%s", b.String())
	}
}

func TestUsageErrors(t *testing.T) {
	recipe := recipeFile(t, slowRecipe)
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"exec"}, 2, "takes one recipe, got 0"},
		{[]string{"exec", "a.star", "b.star"}, 2, "takes one recipe, got 2"},
		{[]string{"exec", "a.star", "ranks=4"}, 2, "to set a param of the recipe write --set ranks=4"},
		{[]string{"exec", recipe, "--sett", "x=1"}, 2, "unknown flag"},
		{[]string{"exec", recipe, "--ranks=4"}, 2, "A param of the recipe is set with --set ranks=…"},
		{[]string{"exec", recipe, "--threads", "-1"}, 2, "--threads -1"},
		{[]string{"exec", recipe, "--patience", "-5s"}, 2, "--patience -5s"},
		{[]string{"exec", recipe, "--listen", "nonsense"}, 2, "--listen"},
		{[]string{"exec", recipe, "--listen", "eth0"}, 2, "--listen: bad address \"eth0\": want tcp:host:port"},
		{[]string{"exec", recipe, "--transport", "tpc"}, 2, "--transport: \"tpc\"; choose auto"},
		{[]string{"exec", recipe, "--tls", "yes"}, 2, "--tls: \"yes\"; choose on or off"},
		{[]string{"exec", recipe, "--transpot", "tcp"}, 2, "did you mean --transport?"},
		{[]string{"doctor", "--link"}, 2, "did you mean --links?"},
		{[]string{"doctor", "--links", "--transport", "tpc"}, 2, "--transport: \"tpc\"; choose auto"},
		{[]string{"exec", recipe, "--rendezvous", "localhost:29500"}, 2, "set RANK and WORLD_SIZE"},
		{[]string{"plan", recipe, "--hosts", "a,b,c"}, 2, "--hosts: 3 host names for 2 ranks"},
		{[]string{"exec", filepath.Join(t.TempDir(), "none.star")}, 1, "none.star"},
		{[]string{"exec", recipe, "--set", "rank=2"}, 1, "did you mean \"ranks\""},
		{[]string{"exec", recipe, "--set", "ranks=5"}, 1, "too few for 5 data ranks"},
		{[]string{"exec", recipe, "--run-dir", filepath.Join(t.TempDir(), "none"), "--resume"}, 1, "there is no run in"},
		{[]string{"plan", recipe, "--dump", "everything"}, 2, "everything"},
		{[]string{"sample", recipe, "--run-dir", t.TempDir()}, 1, "there is no run in"},
		{[]string{"reference", "xyzzy"}, 1, "nothing in the recipe language"},
	} {
		p := start(t, c.args...)
		if code := p.wait(t, 20*time.Second); code != c.code {
			t.Errorf("runtime %v: exit status %d, want %d", c.args, code, c.code)
		}
		contains(t, p.stderr.String(), c.want)
	}
}

func TestResidentMemoryIsNearThePlan(t *testing.T) {
	r := runtimeResult(t, filepath.Join(t.TempDir(), "run"), "exec", filepath.Join("..", "..", "recipes", "quickstart.star"), "--set", "steps=12")
	if limit := r.PlannedPeak*115/100 + 100<<20; r.PeakRSS > limit {
		t.Errorf("%s resident, %s planned: more than 15%% and 100 MB above it", bytesText(r.PeakRSS), bytesText(r.PlannedPeak))
	}
	if r.Peak > r.PlannedPeak {
		t.Errorf("%d bytes used of %d planned", r.Peak, r.PlannedPeak)
	}
	t.Logf("first step after %.2f s, %.2f s of them reading data", r.FirstStepS, r.DataIndexS)
}

// TestPlanNamesTheCosts reads the plan as a person would.
func TestPlanNamesTheCosts(t *testing.T) {
	p := start(t, "plan", invarianceRecipe(), "--set", ranksArg(4))
	if code := p.wait(t, 20*time.Second); code != 0 {
		t.Fatalf("exit status %d\n%s", code, p.stderr.String())
	}
	contains(t, p.stdout.String(), "parameters", "rank 3", "subtrees", "imbalance 33.3%", "weight decay")
	for _, stage := range []string{"graph", "passes", "program"} {
		p := start(t, "plan", invarianceRecipe(), "--dump", stage)
		if code := p.wait(t, 20*time.Second); code != 0 || p.stdout.Len() < 2000 {
			t.Errorf("--dump=%s: exit status %d, %d bytes", stage, code, p.stdout.Len())
		}
	}
}

// A word that is no command is refused, also behind one that only holds others; what is near is named.
func TestUnknownCommands(t *testing.T) {
	for args, want := range map[string]string{
		"instal":            `unknown command "instal" for "runtime"`,
		"plugin instal x":   `unknown command "instal" for "runtime plugin"; did you mean "install"?`,
		"train x.star":      `unknown command "train" for "runtime"; did you mean "exec"?`,
		"plugin frobnicate": `unknown command "frobnicate" for "runtime plugin"`,
		"bench opps":        `unknown command "opps" for "runtime bench"; did you mean "ops"?`,
	} {
		p := start(t, strings.Fields(args)...)
		if code := p.wait(t, time.Minute); code == 0 {
			t.Errorf("%s: exit status 0", args)
		}
		contains(t, p.stderr.String(), want)
	}
	p := start(t, "plugin")
	if code := p.wait(t, time.Minute); code != 0 {
		t.Errorf("exit status %d", code)
	}
	contains(t, p.stdout.String(), "install", "remove")
}
