package main

import (
	"encoding/json"
	"testing"
	"time"
)

// TestBenchComm: every operation over every transport gives a row whose figures fit together.
func TestBenchComm(t *testing.T) {
	p := start(t, "bench", "comm", "--json", "--ranks", "2", "--sizes", "4K,200000", "--transports", "shm,unix,tls",
		"--ops", "all_reduce,reduce_scatter,all_gather,broadcast,barrier", "--seconds", "0.01", "--rounds", "1")
	if code := p.wait(t, time.Minute); code != 0 {
		t.Fatalf("exit status %d: %s", code, p.stderr.String())
	}
	var rows []benchRow
	if err := json.Unmarshal(p.stdout.Bytes(), &rows); err != nil {
		t.Fatalf("%v in %s", err, p.stdout.String())
	}
	if len(rows) != 2*3*4+3 { // a barrier has no sizes
		t.Fatalf("%d rows", len(rows))
	}
	seen := map[[3]any]bool{}
	for _, r := range rows {
		seen[[3]any{r.Op, r.Transport, r.Bytes}] = true
		if r.Seconds <= 0 || r.Best <= 0 || r.Best > r.Seconds || r.AlgBW != float64(r.Bytes)/r.Seconds || r.DType != "float32" || (r.Op == "barrier") != (r.Bytes == 0) || (r.Op == "barrier") != (r.Copy <= 0) || (r.Raw > 0) != (r.Op != "barrier" && r.Transport == benchTLS) {
			t.Errorf("row %+v", r)
		}
		if want := map[string]float64{"all_reduce": 1, "reduce_scatter": 0.5, "all_gather": 0.5, "broadcast": 1}[r.Op]; r.Op != "barrier" && r.BusBW/r.AlgBW != want {
			t.Errorf("%s of 2 ranks: bus bandwidth is %v of the algorithm's, want %v", r.Op, r.BusBW/r.AlgBW, want)
		}
	}
	if len(seen) != len(rows) {
		t.Error("rows repeat")
	}
}

// TestBenchCommTypes: rows for other element types, and for what only moves them; what cannot be is refused.
func TestBenchCommTypes(t *testing.T) {
	p := start(t, "bench", "comm", "--json", "--ranks", "2", "--sizes", "20000", "--transports", "shm", "--dtype", "bf16,int64",
		"--ops", "all_reduce,reduce_scatter,all_gather,broadcast,all_to_all,gather,scatter", "--seconds", "0.01", "--rounds", "1")
	if code := p.wait(t, time.Minute); code != 0 {
		t.Fatalf("exit status %d: %s", code, p.stderr.String())
	}
	var rows []benchRow
	if err := json.Unmarshal(p.stdout.Bytes(), &rows); err != nil {
		t.Fatalf("%v in %s", err, p.stdout.String())
	}
	seen := map[[2]string]bool{}
	for _, r := range rows {
		seen[[2]string{r.Op, r.DType}] = true
		if r.Seconds <= 0 || r.DType != "bfloat16" && r.DType != "int64" {
			t.Errorf("row %+v", r)
		}
	}
	if len(seen) != 2*7 || len(rows) != len(seen) {
		t.Errorf("%d rows, %d kinds", len(rows), len(seen))
	}
	for _, o := range []benchCommOptions{
		{dtypes: []string{"float8"}, rounds: 1, seconds: 1},
		{dtypes: []string{"bf16"}, sizes: []string{"4K", "3"}, rounds: 1, seconds: 1},
		{dtypes: []string{"float32"}, sizes: []string{"0"}, rounds: 1, seconds: 1},
		{dtypes: []string{"int8"}, ops: []string{benchFast + "ring"}, rounds: 1, seconds: 1},
	} {
		if _, _, err := o.parse(); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}

func TestParseSize(t *testing.T) {
	for s, want := range map[string]int{"0": 0, "4096": 4096, "4K": 4096, "4k": 4096, "4KB": 4096, "256M": 256 << 20, "1G": 1 << 30} {
		if got, err := parseSize(s); err != nil || got != want {
			t.Errorf("%s is %d (%v), want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", "K", "-1", "1T", "9999G", "1.5M"} {
		if got, err := parseSize(s); err == nil {
			t.Errorf("%q is read as %d", s, got)
		}
	}
}
