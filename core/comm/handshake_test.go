package comm_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"starling/core/comm"
	"starling/core/comm/commtest"
)

// TestRefusals: ranks that do not belong together part with an error that names both values.
func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(cfg *comm.MeshConfig) // of rank 1
		want   []string                   // in the error of each rank that got one from a handshake
	}{
		{"digest", func(c *comm.MeshConfig) { c.Digest = "d2" }, []string{"rank 0", "rank 1", `"d1"`, `"d2"`}},
		{"class", func(c *comm.MeshConfig) { c.Class = "amx" }, []string{"rank 0", "rank 1", `"fp32"`, `"amx"`}},
		{"secret", func(c *comm.MeshConfig) { c.Secret = []byte("some other job's secret") }, []string{"secret"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, errs := connect(t, unixAddrs(t, 2), func(rank int, cfg *comm.MeshConfig) {
				if rank == 1 {
					c.change(cfg)
				}
			})
			refused := 0
			for r, err := range errs {
				if err == nil {
					t.Fatalf("rank %d was let in", r)
				}
				var h *comm.HandshakeError
				if errors.As(err, &h) {
					refused++
				}
				for _, want := range c.want {
					if !strings.Contains(err.Error(), want) && errors.As(err, &h) {
						t.Errorf("rank %d: the error does not say %s: %v", r, want, err)
					}
				}
			}
			if refused == 0 {
				t.Errorf("no rank says why: %v", errs)
			}
		})
	}
}

// TestStrangers: processes that connect and know no secret do not keep the job from coming together.
func TestStrangers(t *testing.T) {
	addrs := unixAddrs(t, 2)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	listeners := make([]net.Listener, 2)
	for r, a := range addrs {
		l, err := comm.Listen(ctx, a)
		if err != nil {
			t.Fatal(err)
		}
		listeners[r] = l
	}
	for _, say := range []string{"", "GET / HTTP/1.1\r\n\r\n", "\x0e\x00STARLING\x09\x00\x01\x00\x00\x00", strings.Repeat("\xff", 5000)} {
		c, err := comm.Dial(ctx, addrs[0])
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write([]byte(say)); err != nil {
			t.Fatal(err)
		}
	}
	ts := make([]comm.Transport, 2)
	errs := make(chan error)
	for r := range ts {
		go func() {
			var err error
			ts[r], err = comm.Connect(ctx, comm.MeshConfig{Identity: comm.Identity{Rank: r, World: 2}, Addrs: addrs, Listener: listeners[r], Secret: testSecret})
			errs <- err
		}()
	}
	for range ts {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	commtest.CloseAll(t, ts)
}

// TestVersions: another protocol version is named by both numbers.
func TestVersions(t *testing.T) {
	addrs := unixAddrs(t, 2)
	l, err := comm.Listen(t.Context(), addrs[0])
	if err != nil {
		t.Fatal(err)
	}
	mine, err := comm.Listen(t.Context(), addrs[1])
	if err != nil {
		t.Fatal(err)
	}
	go func() { // rank 0 of a later version
		defer l.Close()
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = c.Write([]byte("\x0f\x00STARLING\x63\x00\x00\x00\x00\x00!"))
		_, _ = c.Read(make([]byte, 1000))
	}()
	_, err = comm.Connect(t.Context(), comm.MeshConfig{Identity: comm.Identity{Rank: 1, World: 2}, Addrs: addrs, Listener: mine, Secret: testSecret})
	if err == nil || !strings.Contains(err.Error(), "version 99") || !strings.Contains(err.Error(), "this rank version ") {
		t.Errorf("another version: %v", err)
	}
}

// TestAbsentRank: the ranks that did not connect are named.
func TestAbsentRank(t *testing.T) {
	addrs := unixAddrs(t, 3)
	l, err := comm.Listen(t.Context(), addrs[1])
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	trouble := make(chan string, 4)
	_, err = comm.Connect(ctx, comm.MeshConfig{Identity: comm.Identity{Rank: 1, World: 3}, Addrs: addrs, Listener: l, Secret: testSecret, Trouble: func(why string) { trouble <- why }})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "ranks 0, 2 did not connect") {
		t.Errorf("absent ranks: %v", err)
	}
	select {
	case why := <-trouble:
		if !strings.Contains(why, "rank 0 at "+addrs[0]) {
			t.Errorf("the trouble is %q", why)
		}
	default:
		t.Error("nothing was said of the attempts that failed")
	}
}

func TestAddresses(t *testing.T) {
	ctx := t.Context()
	l, err := comm.Listen(ctx, "tcp:127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := comm.Address(l)
	if strings.HasSuffix(taken, ":0") {
		t.Errorf("port 0 is reported as %s", taken)
	}
	for addr, want := range map[string]string{
		taken:                               taken + " is taken",
		"tcp:192.0.2.1:0":                   "no address of this machine",
		"udp:127.0.0.1:0":                   "bad address",
		"tcp:localhost":                     "bad address",
		"unix:":                             "bad address",
		"unix:/" + strings.Repeat("x", 120): "shorter directory",
	} {
		if l, err := comm.Listen(ctx, addr); err == nil {
			_ = l.Close()
			t.Errorf("%s was accepted", addr)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v does not say %q", addr, err, want)
		}
	}
}
