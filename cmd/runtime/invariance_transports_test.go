package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"starling/core/comm"
)

// placement is a row of the table of transports.
type placement struct {
	ranks     int
	hosts     int    // declared, which share the ranks as evenly as can be
	way       string // how the ranks are connected
	reduction string
	zero      int
}

// values are a row's choices, one for each column.
func (p placement) values() [5]any { return [5]any{p.ranks, p.hosts, p.way, p.reduction, p.zero} }

// ways are the transports and how the command line asks for them. The last is for several hosts: memory is shared within each.
var ways = []way{
	{"shared memory", []string{"--transport", "shm"}},
	{"Unix sockets", []string{"--transport", "unix"}},
	{"TCP", []string{"--transport", "tcp"}},
	{"TCP with TLS", []string{"--transport", "tcp", "--tls", "on"}},
	{"in process", []string{"--in-process"}},
	{"shared memory and TLS", []string{"--listen", "tcp:127.0.0.1:0", "--tls", "on"}},
}

type way struct {
	name string
	args []string
}

// placements is every row: each number of ranks on one host and each transport; on several hosts flat sums against those made host
// by host, or where hosts are of unequal size what the canonical order then is.
func placements() (rows []placement) {
	for zero := range 4 {
		rows = append(rows, placement{1, 1, "in process", "canonical", zero})
		for i, w := range ways {
			if i < len(ways)-1 {
				for _, ranks := range []int{2, 3, 4, 6, 8} {
					rows = append(rows, placement{ranks, 1, w.name, "canonical", zero})
				}
			}
			for _, h := range [][2]int{{4, 2}, {6, 2}, {6, 3}, {8, 2}, {8, 4}} {
				for _, reduction := range []string{"direct", "hierarchical"} {
					rows = append(rows, placement{h[0], h[1], w.name, reduction, zero})
				}
			}
			for _, h := range [][2]int{{3, 2}, {6, 4}} {
				if w.name != "shared memory" { // which is refused to a rank that is alone on its host
					rows = append(rows, placement{h[0], h[1], w.name, "canonical", zero})
				}
			}
		}
	}
	return rows
}

func (p placement) args() []string {
	args := []string{"--set", ranksArg(p.ranks), "--set", "zero=" + strconv.Itoa(p.zero), "--set", "reduction=" + p.reduction}
	if p.hosts > 1 {
		var names []string
		for r := range p.ranks {
			names = append(names, string(rune('a'+r*p.hosts/p.ranks)))
		}
		args = append(args, "--hosts", strings.Join(names, ","))
	}
	i := slices.IndexFunc(ways, func(w way) bool { return w.name == p.way })
	return append(args, ways[i].args...)
}

// sixteenInEight is the recipe of 16 micro-batches in 8 lanes, for a few steps.
func sixteenInEight(args ...string) []string {
	return append([]string{"exec", invarianceRecipe(), "--set", "micro_batches=16", "--set", "lanes=8", "--set", "steps=3", "--threads", "1"}, args...)
}

// TestTransportTable: 16 micro-batches in 8 lanes have one hash on 1, 2, 3, 4, 6 and 8 ranks, whatever connects them, summed flat or host by
// host, at every stage of sharding. STARLING_LONG=1 runs all rows, a test run those that bring every two columns' values together.
func TestTransportTable(t *testing.T) {
	want := runtimeResult(t, filepath.Join(t.TempDir(), "run"), sixteenInEight()...)
	if want.Ranks != 1 || want.WeightsSHA256 == "" {
		t.Fatalf("%d ranks, weights %q", want.Ranks, want.WeightsSHA256)
	}
	rows := placements()
	if os.Getenv("STARLING_LONG") == "" {
		rows = pairs(rows)
	}
	for _, p := range rows {
		r := runtimeResult(t, filepath.Join(t.TempDir(), "run"), sixteenInEight(p.args()...)...)
		if r.Ranks != p.ranks || r.WeightsSHA256 != want.WeightsSHA256 || r.TrainLoss != want.TrainLoss {
			t.Errorf("%+v: %d ranks, weights %s and a loss of %v, want %s and %v", p, r.Ranks, r.WeightsSHA256, r.TrainLoss, want.WeightsSHA256, want.TrainLoss)
		}
	}
	t.Logf("%d of %d rows, weights %s", len(rows), len(placements()), want.WeightsSHA256)
}

// TestMpirunTable: the same recipe has the same hash where a real mpirun starts the ranks and MPI carries their gradients: each rank on a host
// of its own, so that everything goes by MPI, and two hosts of two, which share memory within.
func TestMpirunTable(t *testing.T) {
	if !comm.MPIBuilt {
		t.Skip("built without -tags mpi")
	}
	if _, err := exec.LookPath("mpirun"); err != nil {
		t.Skip("no mpirun here")
	}
	want := runtimeResult(t, filepath.Join(t.TempDir(), "run"), sixteenInEight()...)
	for _, row := range []struct {
		ranks, perHost int
		set            []string
		said           string
	}{
		{1, 1, nil, ""},
		{2, 1, nil, "ranks connected by MPI"},
		{2, 1, []string{"zero=2"}, "ranks connected by MPI"},
		{4, 1, nil, "ranks connected by MPI"},
		{4, 1, []string{"zero=3"}, "ranks connected by MPI"},
		{4, 2, []string{"reduction=hierarchical"}, "shared memory among 2 ranks of this host"},
		{4, 2, []string{"reduction=hierarchical", "zero=1"}, "hierarchical for "},
		{4, 2, []string{"reduction=direct"}, "direct for "},
	} {
		dir := filepath.Join(t.TempDir(), "run")
		args := sixteenInEight("--run-dir", dir, "--set", ranksArg(row.ranks), "--transport", "mpi")
		for _, s := range row.set {
			args = append(args, "--set", s)
		}
		mpirun := []string{"mpirun", "--allow-run-as-root", "--oversubscribe", "-np", strconv.Itoa(row.ranks),
			"bash", "-c", "STARLING_HOST=host$((OMPI_COMM_WORLD_RANK/" + strconv.Itoa(row.perHost) + `)) exec "$@"`, "-"}
		p := startThrough(t, mpirun, []string{"STARLING_SECRET=a secret for these processes alone"}, args...)
		if code := p.wait(t, 2*time.Minute); code != 0 {
			t.Fatalf("%+v: exit status %d\n%s", row, code, p.stderr.String())
		}
		contains(t, p.stderr.String(), row.said)
		if r := readResult(t, dir); r.Ranks != row.ranks || r.WeightsSHA256 != want.WeightsSHA256 || r.TrainLoss != want.TrainLoss {
			t.Errorf("%+v: %d ranks, weights %s and a loss of %v, want %s and %v", row, r.Ranks, r.WeightsSHA256, r.TrainLoss, want.WeightsSHA256, want.TrainLoss)
		}
	}
}

// pairs picks rows in which every two values of different columns meet that meet in the table, always the row that brings most of
// them.
func pairs(rows []placement) (picked []placement) {
	met := map[[4]any]bool{}
	fresh := func(p placement) (pairs [][4]any) {
		v := p.values()
		for i := range v {
			for j := range i {
				if pair := [4]any{i, j, v[i], v[j]}; !met[pair] {
					pairs = append(pairs, pair)
				}
			}
		}
		return pairs
	}
	for {
		best := slices.MaxFunc(rows, func(a, b placement) int { return len(fresh(a)) - len(fresh(b)) })
		brought := fresh(best)
		if len(brought) == 0 {
			return picked
		}
		picked = append(picked, best)
		for _, pair := range brought {
			met[pair] = true
		}
	}
}
