package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"starling/core/train"
)

// Hosts that a recipe or a flag declares are those of a run, as processes and as goroutines: what crosses between them shows it.
// Ranks are given by host, and what the command line says goes before the recipe.
func TestDeclaredHosts(t *testing.T) {
	recipe := recipeFile(t, strings.NewReplacer("ranks = param(", `hosts = param("hosts", "", "of each rank")
ranks = param(`, "timeout = 20", `timeout = 20, hosts = hosts.split(",") if hosts else None`, `"ranks", 3`, `"ranks", 4`).Replace(apartRecipe))
	want := runtimeResult(t, filepath.Join(t.TempDir(), "run"), "exec", recipe, "--set", ranksArg(1)).WeightsSHA256
	crossed := map[string]int64{} // in all, from any host to another
	for _, c := range []struct {
		name, hosts string
		args        []string
	}{
		{"flag", "a b", []string{"--hosts", "a,a,b,b"}},
		{"flag, in process", "a b", []string{"--hosts", "a,a,b,b", "--in-process"}},
		{"flag, by turns", "a b", []string{"--hosts", "a,b,a,b", "--in-process"}},
		{"recipe", "c d", []string{"--set", "hosts=c,c,d,d"}},
		{"recipe, in process", "c d", []string{"--set", "hosts=c,c,d,d", "--in-process"}},
		{"flag before recipe", "a b", []string{"--hosts", "a,a,b,b", "--set", "hosts=c,c,d,d", "--in-process"}},
	} {
		r := runtimeResult(t, filepath.Join(t.TempDir(), "run"), append([]string{"exec", recipe}, c.args...)...)
		if r.WeightsSHA256 != want {
			t.Errorf("%s: weights %s, want %s", c.name, r.WeightsSHA256, want)
		}
		var names []string
		for _, l := range r.Links {
			if !slices.Contains(names, l.From) {
				names = append(names, l.From)
			}
			if l.From != l.To {
				crossed[c.name] += l.Payload
			}
		}
		if got := strings.Join(names, " "); got != c.hosts {
			t.Errorf("%s: hosts %s, want %s", c.name, got, c.hosts)
		}
	}
	for name, n := range crossed {
		// Small collectives beside the gradients go by their own ways; in flat sums twice as much would cross.
		if flag := crossed["flag"]; n < flag*9/10 || n > flag*11/10 {
			t.Errorf("%s: %d bytes crossed, with the flag %d", name, n, flag)
		}
	}
}

// Flags that goroutines of one process cannot follow are refused, and nothing is left behind.
func TestFlagsThatExcludeInProcess(t *testing.T) {
	recipe := recipeFile(t, apartRecipe)
	cluster := filepath.Join(t.TempDir(), "hosts.json")
	if err := os.WriteFile(cluster, []byte(`{"hosts": [{"name": "a", "start": []}]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ want, flag, value string }{
		{"no connections", "--cluster", cluster},
		{"no connections", "--listen", "tcp:127.0.0.1:0"},
		{"no connections", "--tls", "on"},
		{"no connections", "--transport", "tcp"},
		{"2 host names for 3 ranks", "--hosts", "a,b"},
		{"host name 2 of 3: a host's name must not be empty", "--hosts", "a,,b"},
		{"host name 3 of 3: host name \"a b\" contains ' '", "--hosts", "a,b,a b"},
		{"name the host of each rank with --hosts", "--host", "a"},
		{"contains '\\x1b'", "--hosts", "a,b,\x1b[31mc"},
	} {
		dir := filepath.Join(t.TempDir(), "run")
		p := start(t, "exec", recipe, "--in-process", "--run-dir", dir, c.flag, c.value)
		if code := p.wait(t, time.Minute); code != 2 {
			t.Errorf("%s: exit status %d, want 2", c.flag, code)
		}
		contains(t, p.stderr.String(), c.want)
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s: a run folder is left", c.flag)
		}
	}
}

func TestSplitNote(t *testing.T) {
	m := train.Mesh{Data: 6, Zero: 3, Shard: 3}
	for hosts, want := range map[string]string{"a a a b b b": "", "a a b b c c": "2 of 2 copies", "a a a a b b": "1 of 2 copies"} {
		if got := splitNote(m, strings.Fields(hosts)); !strings.HasPrefix(got, want) || (got == "") != (want == "") {
			t.Errorf("hosts %s: %q, want %q", hosts, got, want)
		}
	}
	if got := splitNote(train.Mesh{Data: 4}, strings.Fields("a a b b")); got != "" {
		t.Errorf("without shards: %q", got)
	}
}

// The algorithm by which gradients are summed is said once, can be forced, and is refused with the reason where it cannot be.
func TestTheAlgorithmIsSaidAndForced(t *testing.T) {
	recipe := recipeFile(t, strings.NewReplacer("ranks = param(", `reduction = param("reduction", "canonical")
ranks = param(`, "timeout = 20", "timeout = 20, reduction = reduction", `"ranks", 3`, `"ranks", 4`).Replace(apartRecipe))
	weights := ""
	for _, c := range []struct {
		reduction, want string
		args            []string
	}{
		{"canonical", `reduction = "canonical": hierarchical for `, []string{"--hosts", "a,a,b,b"}},
		{"hierarchical", `reduction = "hierarchical": hierarchical for `, []string{"--hosts", "a,a,b,b", "--in-process"}},
		{"direct", `reduction = "direct": direct for `, []string{"--hosts", "a,a,b,b", "--in-process"}},
		{"canonical", `reduction = "canonical": one round for `, nil},
	} {
		dir := filepath.Join(t.TempDir(), "run")
		p := start(t, append([]string{"exec", recipe, "--run-dir", dir, "--set", "reduction=" + c.reduction}, c.args...)...)
		if code := p.wait(t, time.Minute); code != 0 {
			t.Fatalf("%v: exit status %d\n%s", c, code, p.stderr.String())
		}
		if got := strings.Count(p.stderr.String(), c.want); got != 1 {
			t.Errorf("%v: said %d times, want once:\n%s", c, got, p.stderr.String())
		}
		r := readResult(t, dir)
		if weights == "" {
			weights = r.WeightsSHA256
		}
		if r.WeightsSHA256 != weights {
			t.Errorf("%v: weights %s, want %s", c, r.WeightsSHA256, weights)
		}
		if b, err := os.ReadFile(filepath.Join(dir, recordFile)); err != nil || strings.Contains(string(b), `"reduction": `) {
			t.Errorf("%v: the record tells of other bits than the canonical order's: %s %v", c, b, err)
		}
	}
	for _, c := range []struct {
		reduction, want string
		args            []string
	}{
		{"hierarchical", "all ranks are on one host", nil},
		{"hierarchical", "1 and 3", []string{"--hosts", "a,a,a,b", "--in-process"}},
		{"ring", "the 4 ranks share memory, where every sum is direct", nil},
	} {
		p := start(t, append([]string{"exec", recipe, "--run-dir", filepath.Join(t.TempDir(), "run"), "--set", "reduction=" + c.reduction}, c.args...)...)
		if code := p.wait(t, time.Minute); code != 1 {
			t.Errorf("%v: exit status %d, want 1", c, code)
		}
		contains(t, p.stderr.String(), c.want, "recipe.star:", "parallel.mesh(reduction = ")
	}
}

// A sum host by host that the declared hosts do not allow is found before a run.
func TestCheckFindsHostsThatCannotBeSummed(t *testing.T) {
	for hosts, want := range map[string]string{
		`["a", "a", "b", "b"]`: "is fine",
		`["a", "b", "a", "b"]`: "is fine", // ranks are given by host
		`["a", "a", "a", "b"]`: "some hosts have more of the ranks than others (1 and 3)",
		`["a"] * 4`:            "all ranks are on one host",
		`["a", "b", "c", "d"]`: "each host has one rank",
	} {
		flag := strings.Join(strings.FieldsFunc(strings.ReplaceAll(hosts, `["a"] * 4`, "a,a,a,a"), func(r rune) bool { return strings.ContainsRune(`[]", `, r) }), ",")
		for _, where := range [][2]string{{"hosts = " + hosts + ",", ""}, {"", "--hosts=" + flag}} {
			recipe := recipeFile(t, strings.NewReplacer("micro_batch = 16", "micro_batch = 4", "parallel.mesh(data = 2,", `parallel.mesh(data = 4, reduction = "hierarchical", `+where[0]).Replace(overlapRecipe))
			p := start(t, strings.Fields("check "+recipe+" "+where[1])...)
			code := p.wait(t, time.Minute)
			if (code == 0) != (want == "is fine") {
				t.Errorf("%s: exit status %d", where, code)
			}
			contains(t, p.stdout.String()+p.stderr.String(), want)
		}
	}
}
