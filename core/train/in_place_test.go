package train

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"starling/core/comm"
	"starling/core/comm/machine"
	"starling/core/device"
	"starling/core/device/cpu"
)

// sharedTransports connects ranks, all of this process, as processes of one host are connected.
func sharedTransports(t *testing.T, ranks int) []comm.Transport {
	t.Helper()
	if machine.ID() == "" {
		t.Skip("this system has no memory that processes can hand each other")
	}
	dir, err := os.MkdirTemp("", "train") // a short path: sockets have no long names
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	addrs, listeners := make([]string, ranks), make([]net.Listener, ranks)
	for r := range addrs {
		addrs[r] = "unix:" + filepath.Join(dir, strconv.Itoa(r))
		if listeners[r], err = comm.Listen(ctx, addrs[r]); err != nil {
			t.Fatal(err)
		}
	}
	out := make([]comm.Transport, ranks)
	var wg sync.WaitGroup
	for r := range out {
		wg.Go(func() {
			var err error
			out[r], err = comm.Connect(ctx, comm.MeshConfig{Identity: comm.Identity{Rank: r, World: ranks, Host: machine.ID()}, Addrs: addrs,
				Listener: listeners[r], Secret: make([]byte, 16), Share: comm.ShareAlways})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	t.Cleanup(func() {
		for _, x := range out {
			wg.Go(func() { _ = x.Close() })
		}
		wg.Wait()
	})
	return out
}

// inMemoryFile reports whether memory is part of a mapped memory file.
func inMemoryFile(t *testing.T, b []byte) bool {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	at := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
	for line := range strings.Lines(string(maps)) {
		var from, to uint64
		if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err == nil && from <= at && at < to {
			return strings.Contains(line, "memfd:")
		}
	}
	return false
}

// TestGradientsInSharedMemory: on ranks that share memory gradients lie in it, where they are summed in place to the weights that
// ranks train who send them to each other.
func TestGradientsInSharedMemory(t *testing.T) {
	for _, zero := range []int{0, 1, 3} {
		t.Run(fmt.Sprint("zero ", zero), func(t *testing.T) {
			const ranks = 2
			train := func(transports []comm.Transport) string {
				r, err := runOn(t, t.Context(), ranks, 1, func(rank int, s *Spec, e *Env) {
					s.Model = deepModel{layers: 2, width: 384}
					s.Data.GlobalBatch, s.Data.MicroBatch, s.Data.Lanes = 18, 3, 6
					s.Mesh.BucketMB, s.Mesh.FirstBucket, s.Mesh.Zero = 0.6, 0.6, zero // too much for one round
					s.Evaluate, s.Checkpoint, s.Steps = nil, nil, 3
					if transports == nil {
						return
					}
					_ = e.Group.Close()
					e.NewGroup = func(name string) (*comm.Group, error) {
						return comm.NewGroup(transports[rank], name, []int{0, 1}, comm.Options{})
					}
					var err error
					if e.Group, err = e.NewGroup("data"); err != nil {
						t.Error(err)
					}
				})
				if err != nil {
					t.Fatal(err)
				}
				return r[0].WeightsSHA256
			}
			if sent, inPlace := train(nil), train(sharedTransports(t, ranks)); sent != inPlace {
				t.Errorf("weights %.16s, in place %.16s", sent, inPlace)
			}
		})
	}
	for r, x := range sharedTransports(t, 2) {
		dev, err := cpu.Open(cpu.Config{Threads: 1, Ranks: 2})
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Close()
		g, err := comm.NewGroup(x, "data", []int{0, 1}, comm.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		s := testSpec(t)
		s.Mesh.Data = 2
		if err := s.Validate(); err != nil {
			t.Fatal(err)
		}
		e, err := newEngine(s, &Env{Rank: r, World: 2, Group: g, Device: dev, Threads: 1, Observe: func(Event) {}})
		if err != nil {
			t.Fatal(err)
		}
		for i, a := range e.grads {
			if !inMemoryFile(t, a.Bytes()) {
				t.Errorf("rank %d: gradient buffer %d is private memory", r, i)
			}
		}
		if inMemoryFile(t, e.mem.Arenas[device.Params].Bytes()) {
			t.Errorf("rank %d: parameters lie in memory that others have mapped", r)
		}
		e.close()
		if held, _ := dev.Held(); held != 0 {
			t.Errorf("rank %d: %d bytes of arenas are left", r, held)
		}
	}
}
