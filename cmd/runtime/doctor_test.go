package main

import (
	"encoding/json"
	"testing"
	"time"
)

func TestDoctor(t *testing.T) {
	p := start(t, "doctor", "--json")
	if code := p.wait(t, 30*time.Second); code != 0 {
		t.Fatalf("exit status %d\n%s", code, p.stderr.String())
	}
	var d diagnosis
	if err := json.Unmarshal(p.stdout.Bytes(), &d); err != nil {
		t.Fatal(err)
	}
	if d.Kernels == "" || d.Threads < 1 || d.Memory <= 0 || len(d.Topology.Interfaces) == 0 || d.Scaling <= 0 || d.Scaling > 1.5*float64(d.Threads) {
		t.Errorf("the machine is %+v", d)
	}
	p = start(t, "doctor")
	if code := p.wait(t, 30*time.Second); code != 0 {
		t.Fatalf("exit status %d\n%s", code, p.stderr.String())
	}
	contains(t, p.stdout.String(), "kernels", "memory", "interface lo", "plugins")
}

func TestDoctorLinks(t *testing.T) {
	p := start(t, "doctor", "--links", "--hosts", "a,a,b", "--json") // as many ranks as names
	if code := p.wait(t, time.Minute); code != 0 {
		t.Fatalf("exit status %d\n%s", code, p.stderr.String())
	}
	var links []linkReport
	if err := json.Unmarshal(p.stdout.Bytes(), &links); err != nil {
		t.Fatal(err)
	}
	if len(links) != 3 {
		t.Fatalf("%d links among 3 ranks", len(links))
	}
	for _, l := range links {
		if l.A >= l.B || l.LatencyS <= 0 || l.BytesPS <= 0 || l.HostB != map[int]string{1: "a", 2: "b"}[l.B] {
			t.Errorf("%+v", l)
		}
		if want := map[bool]string{true: "memory", false: "network"}[l.HostA == l.HostB]; l.By != want {
			t.Errorf("ranks %d and %d exchange by %q, want %q", l.A, l.B, l.By, want)
		}
	}
	contains(t, linksTable(3, links), "rank 2", "·", "hosts of ranks 0 to 2: a, a, b")
	p = start(t, "doctor", "--links", "--ranks", "1")
	if code := p.wait(t, time.Minute); code != 2 {
		t.Errorf("exit status %d for one rank", code)
	}
}

func TestScaling(t *testing.T) {
	if s := scaling(1); s < 0.3 || s > 3 {
		t.Errorf("one thread does the work of %v", s)
	}
	for s, want := range map[string]int{"0": 1, "0-3": 4, "0-1,4,6-7": 5} {
		if n, err := countList(s); err != nil || n != want {
			t.Errorf("%s lists %d (%v), want %d", s, n, err, want)
		}
	}
	if _, err := countList("x"); err == nil {
		t.Error("x is a list")
	}
}
