//go:build mpi

package comm_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"starling/core/comm"
	"starling/core/comm/commtest"
)

// The conformance suite drives all ranks of a world from one process, and MPI has one rank in each. Under mpirun the process
// with MPI rank 0 runs the suite; for the transports of the other ranks it has puppets, which pass every call to the process in
// question over a socket, and back what it says. Between the processes is MPI itself.

const envPuppets = "STARLING_TEST_PUPPETS" // the folder of their sockets

const mpiProcesses = 6

// TestMPI starts the suite under a real mpirun.
func TestMPI(t *testing.T) {
	if os.Getenv(envPuppets) != "" {
		t.Skip("this is a process under mpirun")
	}
	if _, err := exec.LookPath("mpirun"); err != nil {
		t.Skip("no mpirun here")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "mpi")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, "mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1", "-np", strconv.Itoa(mpiProcesses),
		self, "-test.run=^TestUnderMpirun$", "-test.v")
	c.Env = append(os.Environ(), envPuppets+"="+dir)
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	c.WaitDelay = 5 * time.Second
	out, err := c.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestUnderMpirun/suite/lists") {
		t.Fatalf("%v\n%s", err, out)
	}
}

// TestUnderMpirun is the suite in the process of MPI rank 0, and a puppet in the others.
func TestUnderMpirun(t *testing.T) {
	dir := os.Getenv(envPuppets)
	if dir == "" {
		t.Skip("only under mpirun; TestMPI starts it")
	}
	comm.KeepMPI()
	rank, size, err := comm.BeginMPI()
	if err != nil {
		t.Fatal(err)
	}
	if rank > 0 {
		err := servePuppet(filepath.Join(dir, strconv.Itoa(rank)))
		if e := comm.EndMPI(); e != nil || err != nil {
			fmt.Fprintln(os.Stderr, err, e)
			os.Exit(1)
		}
		os.Exit(0)
	}
	puppets := make([]*puppet, size)
	for r := 1; r < size; r++ {
		puppets[r] = newPuppet(t, filepath.Join(dir, strconv.Itoa(r)))
	}
	worlds := 0
	t.Run("suite", func(t *testing.T) {
		commtest.Run(t, func(t *testing.T, world int) []comm.Transport {
			worlds++
			addrs := make([]string, world)
			for r := range addrs {
				addrs[r] = fmt.Sprintf("unix:%s/w%d-%d", dir, worlds, r)
			}
			ts := make([]comm.Transport, world)
			var wg sync.WaitGroup
			for r := 1; r < world; r++ {
				wg.Go(func() { puppets[r].open(t, r, addrs); ts[r] = puppets[r] })
			}
			var err error
			if ts[0], err = openMPI(0, addrs); err != nil {
				t.Error(err)
			}
			wg.Wait()
			if t.Failed() {
				t.FailNow()
			}
			if world > 1 && !strings.HasPrefix(ts[0].String(), "MPI (Open MPI v") {
				t.Errorf("the transport is %s", ts[0])
			}
			return ts
		}, false) // what MPI adds to a payload is not ours to count
	})
	for _, p := range puppets[1:] {
		p.conn.Close()
		<-p.gone
	}
	if err := comm.EndMPI(); err != nil {
		t.Error(err)
	}
}

func openMPI(rank int, addrs []string) (comm.Transport, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	l, err := comm.Listen(ctx, addrs[rank])
	if err != nil {
		return nil, err
	}
	return comm.Connect(ctx, comm.MeshConfig{Identity: comm.Identity{Rank: rank, World: len(addrs), Host: fmt.Sprint("host ", rank)}, Addrs: addrs, Listener: l,
		Secret: []byte("a secret of sixteen bytes"), Share: comm.ShareMPI, Heartbeat: time.Minute})
}
