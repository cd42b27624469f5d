package comm_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"starling/core/comm"
	"starling/core/comm/commtest"
	"starling/core/comm/machine"
)

func TestInProcess(t *testing.T) {
	commtest.Run(t, func(_ *testing.T, world int) []comm.Transport { return comm.NewInProcess(world) }, false)
}

func TestUnixSockets(t *testing.T) {
	commtest.Run(t, func(t *testing.T, world int) []comm.Transport { return mesh(t, world, unixAddrs(t, world)) }, true)
}

func TestTCP(t *testing.T) {
	commtest.Run(t, func(t *testing.T, world int) []comm.Transport { return mesh(t, world, tcpAddrs(world)) }, true)
}

func TestTLS(t *testing.T) {
	commtest.Run(t, func(t *testing.T, world int) []comm.Transport {
		credentials := issue(t, world)
		ts, errs := connect(t, tcpAddrs(world), func(r int, cfg *comm.MeshConfig) { cfg.Credentials = credentials[r] })
		for r, err := range errs {
			if err != nil {
				t.Fatalf("rank %d: %v", r, err)
			}
		}
		return ts
	}, true)
}

// issue makes the credentials of a job.
func issue(t *testing.T, world int) []*comm.Credentials {
	t.Helper()
	a, err := comm.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	all := make([]*comm.Credentials, world)
	for r := range all {
		if all[r], err = a.Issue(r); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// TestTLSRefusals: a rank without credentials, with those of another job, or with those of another rank is not let in, and
// both sides' errors end the meeting.
func TestTLSRefusals(t *testing.T) {
	for name, change := range map[string]func(own []*comm.Credentials, r int) *comm.Credentials{
		"none":         func(own []*comm.Credentials, r int) *comm.Credentials { return nil },
		"another job":  func(own []*comm.Credentials, r int) *comm.Credentials { return issue(t, 2)[r] },
		"another rank": func(own []*comm.Credentials, r int) *comm.Credentials { return own[0] },
	} {
		t.Run(name, func(t *testing.T) {
			own := issue(t, 2)
			_, errs := connectWithin(t, 500*time.Millisecond, tcpAddrs(2), func(r int, cfg *comm.MeshConfig) {
				cfg.Credentials = own[r]
				if r == 1 {
					cfg.Credentials = change(own, r)
				}
			})
			for r, err := range errs {
				if err == nil {
					t.Errorf("rank %d is connected", r)
				}
			}
		})
	}
}

func TestSharedMemory(t *testing.T) {
	commtest.Run(t, func(t *testing.T, world int) []comm.Transport { return sharedMesh(t, world) }, true)
}

// sharedMesh connects a world through shared memory, as processes of one host would.
func sharedMesh(t testing.TB, world int) []comm.Transport {
	t.Helper()
	if machine.ID() == "" {
		t.Skip("this system has no memory that processes can hand each other")
	}
	ts, errs := connect(t, unixAddrs(t, world), func(_ int, cfg *comm.MeshConfig) {
		cfg.Host = machine.ID()
		if world > 1 {
			cfg.Share = comm.ShareAlways
		}
	})
	for r, err := range errs {
		if err != nil {
			t.Fatalf("rank %d: %v", r, err)
		}
	}
	return ts
}

func tcpAddrs(world int) []string {
	addrs := make([]string, world)
	for r := range addrs {
		addrs[r] = "tcp:127.0.0.1:0"
	}
	return addrs
}

func unixAddrs(t testing.TB, world int) []string {
	dir, err := os.MkdirTemp("", "comm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	addrs := make([]string, world)
	for r := range addrs {
		addrs[r] = "unix:" + filepath.Join(dir, strconv.Itoa(r))
	}
	return addrs
}

var testSecret = []byte("a secret of more than sixteen bytes")

// mesh connects a world over sockets.
func mesh(t testing.TB, world int, addrs []string) []comm.Transport {
	t.Helper()
	ts, errs := connect(t, addrs, func(int, *comm.MeshConfig) {})
	for r := range world {
		if errs[r] != nil {
			t.Fatalf("rank %d: %v", r, errs[r])
		}
	}
	return ts
}

// connect lets every rank call Connect, with what change makes of its configuration.
func connect(t testing.TB, addrs []string, change func(rank int, cfg *comm.MeshConfig)) ([]comm.Transport, []error) {
	t.Helper()
	return connectWithin(t, 5*time.Second, addrs, change)
}

func connectWithin(t testing.TB, limit time.Duration, addrs []string, change func(rank int, cfg *comm.MeshConfig)) ([]comm.Transport, []error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	listeners := make([]net.Listener, len(addrs))
	for r, a := range addrs {
		l, err := comm.Listen(ctx, a)
		if err != nil {
			t.Fatal(err)
		}
		listeners[r], addrs[r] = l, comm.Address(l)
	}
	ts, errs := make([]comm.Transport, len(addrs)), make([]error, len(addrs))
	var wg sync.WaitGroup
	for r := range addrs {
		cfg := comm.MeshConfig{
			Identity: comm.Identity{Rank: r, World: len(addrs), Digest: "d1", Class: "fp32"},
			Addrs:    addrs, Listener: listeners[r], Secret: testSecret,
		}
		change(r, &cfg)
		wg.Go(func() {
			ts[r], errs[r] = comm.Connect(ctx, cfg)
			if errs[r] != nil {
				cancel() // as a launcher does when a rank fails
			}
		})
	}
	wg.Wait()
	return ts, errs
}
