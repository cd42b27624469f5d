//go:build unix

package cluster

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"starling/core/comm/mesh"
)

var pids = regexp.MustCompile(`pid \d+`)

// TestPlaces: ranks started through a shell that passes on stdin and stdout and nothing else.
func TestPlaces(t *testing.T) {
	cfg := testConfig("run", 3, -1)
	plain := cfg.Command
	cfg.Command = func(rank int) *exec.Cmd { c := plain(rank); c.Args = c.Args[:1]; return c }
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	shell := []string{"env", "-i", envPart + "=run", envVictim + "=-1"}
	cfg.Places = []Place{{Host: "a"}, {Host: "b", Start: shell}, {Host: "b", Start: shell, Program: self}}
	cfg.Payload = []byte("what all must know")
	cfg.Listen = "tcp:127.0.0.1:0"
	results, _, err := launch(t, t.Context(), cfg)
	if err != nil || len(results) != 3 || !strings.Contains(string(results[2]), "rank 2 of 3 stopped=false") || !strings.Contains(string(results[2]), "payload=what") {
		t.Errorf("results %q, %v", results, err)
	}
	var shown bytes.Buffer
	cfg.Stderr = &shown
	start := func(script string) error {
		cfg.Places[2].Start = []string{"sh", "-c", script + `; exec env -i "$@"`, "shell", envPart + "=run", envVictim + "=-1"}
		_, _, err := launch(t, t.Context(), cfg)
		return err
	}
	if err := start("echo Welcome to b; printf 'and no more'"); err != nil {
		t.Errorf("a shell that prints before it starts the program: %v", err)
	}
	if !strings.Contains(shown.String(), "[rank 2] Welcome to b\n[rank 2] and no more\n") {
		t.Errorf("what the shell printed is not shown: %q", shown.String())
	}
	for script, want := range map[string]string{
		"echo This account is clo''sed.; exit 1": "This account is closed.",
		"exec yes":                               "rank 2 (pid PID) on b sent over its control connection what it should not before the ranks were connected: the first 16402 bytes that came are not this program's; something prints over there: try by hand sh -c exec yes",
	} {
		if err := start(script); err == nil || !strings.Contains(pids.ReplaceAllString(err.Error(), "pid PID"), want) {
			t.Errorf("%s: %v\nwant %s", script, err, want)
		}
	}
	cfg.Places[2].Start = []string{"/no/such/shell"}
	if _, _, err := launch(t, t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "rank 2 on b could not be started before the ranks were connected: ") {
		t.Errorf("a command that is not there: %v", err)
	}
	cfg.Places[2].Start = []string{"sh", "-c", "echo no such host >&2; exit 255"}
	_, _, err = launch(t, t.Context(), cfg)
	if err == nil || !strings.Contains(err.Error(), "rank 2") || !strings.Contains(err.Error(), "no such host") {
		t.Errorf("a host that cannot be reached: %v", err)
	}
}

func TestHosts(t *testing.T) {
	read := func(text string) (*Hosts, error) {
		path := filepath.Join(t.TempDir(), "hosts.json")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return ReadHosts(path)
	}
	h, err := read(`{"listen": "tcp:auto:0", "program": "/opt/runtime", "hosts": [{"name": "a", "start": []}, {"name": "b", "address": "10.0.0.2", "listen": "tcp:ib0:100-200"}]}`)
	if err != nil {
		t.Fatal(err)
	}
	places, err := h.Places(mesh.Axes{{Name: "data", Size: 3}})
	if got := fmt.Sprint(places, err); got != "[{a tcp:auto:0 [] } {a tcp:auto:0 [] } {b tcp:ib0:100-200 [ssh -oBatchMode=yes 10.0.0.2] /opt/runtime}] <nil>" {
		t.Error(got)
	}
	for _, c := range []struct{ text, want string }{
		{`{}`, `no "hosts"`},
		{"{\n\n\"hots\": []}", "near line 3"},
		{`{"hosts": [{"name": "a"}, {"name": "a"}]}`, "named twice"},
		{`{"hosts": [{"ranks": 1}]}`, `no "name"`},
		{`{"hosts": [{"name": "a", "rank": 1}]}`, `unknown key "rank"; a host has "name"`},
		{`{"hosts": ["a", "b"]}`, `a string in "hosts" where a host should be`},
		{`{"hosts": [{"name": "a", "ranks": "2"}]}`, `ranks" has a string`},
		{`{"hosts": [{"name": "a", "listen": "eth0"}]}`, `host a: cluster: listen: bad address "eth0"`},
		{`{"hosts": [{"name": "a", "ranks": 1}, {"name": "b"}]}`, "every host"},
		{`{"hosts": [{"name": "a"}]} {}`, "after the end"},
	} {
		if _, err := read(c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.text, err, c.want)
		}
	}
	for text, ranks := range map[string]int{`{"hosts": [{"name": "a", "ranks": 2}]}`: 3, `{"hosts": [{"name": "a"}, {"name": "b"}]}`: 1} {
		h, err := read(text)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.Places(mesh.Axes{{Name: "data", Size: ranks}}); err == nil {
			t.Errorf("%s takes %d ranks", text, ranks)
		}
	}
}

// Hosts whose room does not fit the blocks of ranks that talk most take their ranks in an order in which more of those stay whole.
func TestHostsFitTheMesh(t *testing.T) {
	axes := mesh.Axes{{Name: "replica", Size: 2}, {Name: "shard", Size: 4}}
	h := &Hosts{Hosts: []Host{{Name: "a", Ranks: 3}, {Name: "b", Ranks: 4}, {Name: "c", Ranks: 1}}}
	places, err := h.Places(axes)
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, p := range places {
		got += p.Host
	}
	if got != "bbbbaaac" {
		t.Errorf("ranks on %s", got)
	}
	here := map[int]guest{}
	for i, host := range []string{"b", "b", "c", "a", "b", "a", "b"} {
		here[i+1] = guest{number: i + 1, hello: message{Host: host}}
	}
	got = ""
	for _, g := range inOrder(axes, "a", here) {
		got += fmt.Sprint(g.hello.Host, g.number, " ")
	}
	if got != "a4 a6 c3 b1 b2 b5 b7 " {
		t.Errorf("after rank 0 on a: %s", got)
	}
}

// Declared hosts and the places of a cluster file are those of the same processes, whatever ranks they get.
func TestPlacesGoWithTheirHosts(t *testing.T) {
	cfg := Config{Ranks: 4, Hosts: []string{"a", "b", "a", "b"}, Places: []Place{{Host: "p"}, {Host: "q"}, {Host: "r"}, {Host: "s"}}}.withDefaults()
	want := []Place{{Host: "p"}, {Host: "r"}, {Host: "q"}, {Host: "s"}}
	if !slices.Equal(cfg.Hosts, []string{"a", "a", "b", "b"}) || !reflect.DeepEqual(cfg.Places, want) {
		t.Errorf("hosts %v, places %v", cfg.Hosts, cfg.Places)
	}
}
