package main

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"starling/core/train"
)

// What ranks send is counted by the kind of link and by peer: in the log, in the result and in the table that closes a run.
func TestBytesOfLinks(t *testing.T) {
	recipe := recipeFile(t, apartRecipe)
	for _, c := range []struct {
		name string
		args []string
		near string   // the kind of link to a neighbour
		said []string // in the table
	}{
		{"memory and network", []string{"--hosts", "a,a,b,b"}, "memory", []string{"within a ", " through memory", "a → b ", "b → a "}},
		{"connections and network", []string{"--hosts", "a,a,b,b", "--transport", "tcp"}, "host", []string{"within a ", " through connections", "a → b "}},
		{"in process", []string{"--in-process", "--hosts", "a,a,b,b"}, "memory", []string{"within b ", " through memory", "a → b "}},
	} {
		dir := filepath.Join(t.TempDir(), "run")
		p := start(t, append([]string{"exec", recipe, "--run-dir", dir, "--set", ranksArg(4)}, c.args...)...)
		if code := p.wait(t, time.Minute); code != 0 {
			t.Fatalf("%s: exit status %d\n%s", c.name, code, p.stderr.String())
		}
		contains(t, p.stdout.String(), append(c.said, "traffic")...)
		r := readResult(t, dir)
		sums := map[[2]string]train.Link{}
		for _, l := range r.Peers {
			near := l.Memory
			if c.near == "host" {
				near = l.Host
			}
			// A few figures of all four ranks go through connections.
			if same := l.Rank/2 == l.Peer/2; l.From == l.To != same || l.Memory+l.Host+l.Network != l.Payload ||
				same && near < l.Payload*9/10 || !same && l.Network != l.Payload || l.Payload == 0 {
				t.Errorf("%s: from rank %d to rank %d: %+v", c.name, l.Rank, l.Peer, l.Link)
			}
			s := sums[[2]string{l.From, l.To}]
			s.From, s.To = l.From, l.To
			s.Payload, s.Memory, s.Host, s.Network, s.Wire = s.Payload+l.Payload, s.Memory+l.Memory, s.Host+l.Host, s.Network+l.Network, s.Wire+l.Wire
			sums[[2]string{l.From, l.To}] = s
		}
		if len(r.Peers) != 12 || len(r.Links) != 4 {
			t.Errorf("%s: %d pairs and %d links, want 12 and 4", c.name, len(r.Peers), len(r.Links))
		}
		for _, l := range r.Links {
			if l != sums[[2]string{l.From, l.To}] {
				t.Errorf("%s: link %+v, its pairs make %+v", c.name, l, sums[[2]string{l.From, l.To}])
			}
		}
		text, err := os.ReadFile(filepath.Join(dir, train.MetricsFile))
		if err != nil {
			t.Fatal(err)
		}
		steps, windows := 0, 0
		for line := range strings.Lines(string(text)) {
			var m map[string]any
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				t.Fatal(err)
			}
			of := func(key string) float64 { v, _ := m[key].(float64); return v }
			switch m["kind"] {
			case "step":
				steps++
				if near := of("sent_" + c.near + "_bytes"); near <= 0 || of("sent_network_bytes") <= 0 ||
					// The two are read one after the other, while a checkpoint may be written.
					math.Abs(of("sent_memory_bytes")+of("sent_host_bytes")+of("sent_network_bytes")-of("sent_bytes")) > 0.05*of("sent_bytes") {
					t.Errorf("%s: a step's line %s", c.name, line)
				}
			case "traffic":
				windows++
				if of("sent_"+c.near+"_bytes_rank1") <= 0 || of("sent_network_bytes_rank2") <= 0 || m["sent_network_bytes_rank1"] != nil || of("window_s") <= 0 {
					t.Errorf("%s: a window's line %s", c.name, line)
				}
			}
		}
		if steps != 12 || windows == 0 {
			t.Errorf("%s: %d steps and %d windows in the log", c.name, steps, windows)
		}
	}
}
