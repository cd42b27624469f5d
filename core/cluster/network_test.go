//go:build linux

package cluster

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"starling/core/comm"
)

// The tests of this file put ranks into network namespaces of their own, joined by a virtual cable.

// cable makes two namespaces joined by a cable, skips the test where that is not allowed, and returns the command that
// runs ip in the second one.
func cable(t *testing.T) (names [2]string, ip func(args ...string) error) {
	t.Helper()
	run := func(args ...string) error {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
		}
		return nil
	}
	tag := fmt.Sprint(os.Getpid())
	names = [2]string{"starA" + tag, "starB" + tag}
	t.Cleanup(func() {
		for _, n := range names {
			_ = run("netns", "del", n)
		}
	})
	steps := [][]string{{"netns", "add", names[0]}, {"netns", "add", names[1]},
		{"link", "add", "sa" + tag, "netns", names[0], "type", "veth", "peer", "name", "sb" + tag, "netns", names[1]}}
	for i, n := range names {
		device := []string{"sa", "sb"}[i] + tag
		steps = append(steps, []string{"-n", n, "addr", "add", fmt.Sprintf("10.77.9.%d/24", i+1), "dev", device},
			[]string{"-n", n, "link", "set", device, "up"}, []string{"-n", n, "link", "set", "lo", "up"})
	}
	for _, s := range steps {
		if err := run(s...); err != nil {
			t.Skipf("no network namespaces here (they need root and iproute2): %v", err)
		}
	}
	return names, func(args ...string) error { return run(append([]string{"-n", names[1]}, args...)...) }
}

// inNamespaces runs rank r of the job in namespace r.
func inNamespaces(cfg Config, names [2]string) Config {
	plain := cfg.Command
	cfg.Command = func(rank int) *exec.Cmd {
		c := plain(rank)
		in := exec.Command("ip", append([]string{"netns", "exec", names[rank]}, c.Args...)...)
		in.Env = c.Env
		return in
	}
	cfg.Listen = "tcp:10.77.9.0/24:0"
	return cfg
}

// TestCableCut: two ranks whose network is cut, with no reset, end within seconds of the silence they are allowed, and the
// error says so.
func TestCableCut(t *testing.T) {
	names, ip := cable(t)
	cfg := inNamespaces(testConfig("loop", 2, -1), names)
	cfg.Silence = 2 * time.Second
	var cut time.Time
	cfg.OnEvent = func(rank int, _ []byte) {
		if rank == 0 {
			cut = time.Now()
			if err := ip("link", "set", "sb"+fmt.Sprint(os.Getpid()), "down"); err != nil {
				t.Error(err)
			}
		}
	}
	_, _, err := launch(t, t.Context(), cfg)
	took := time.Since(cut)
	if err == nil || !strings.Contains(err.Error(), "no sign of life") || cut.IsZero() {
		t.Fatalf("after the cut: %v", err)
	}
	if took > 10*time.Second {
		t.Errorf("it took %v to end", took)
	}
}

// TestStopped: a rank that is stopped for less than the silence allowed goes on as if nothing had been; for longer, and
// the job ends and names it.
func TestStopped(t *testing.T) {
	for _, c := range []struct {
		stop  time.Duration
		fails bool
	}{{time.Second, false}, {time.Minute, true}} {
		t.Run(c.stop.String(), func(t *testing.T) {
			cfg := testConfig("loop", 3, -1)
			cfg.Silence = 3 * time.Second
			var pid int
			cfg.OnStart = func(rank, p int) {
				if rank == 1 {
					pid = p
				}
			}
			stop := make(chan struct{})
			cfg.Stop = stop
			done := make(chan struct{})
			defer func() { <-done }()
			cfg.OnEvent = func(rank int, _ []byte) {
				if rank != 1 {
					return
				}
				_ = syscall.Kill(pid, syscall.SIGSTOP)
				go func() {
					defer close(done)
					if c.fails {
						return
					}
					time.Sleep(c.stop)
					_ = syscall.Kill(pid, syscall.SIGCONT)
					time.Sleep(500 * time.Millisecond)
					close(stop)
				}()
			}
			begin := time.Now()
			results, _, err := launch(t, t.Context(), cfg)
			if !c.fails {
				if err != nil || len(results) != 3 || !strings.Contains(string(results[1]), "stopped=true") {
					t.Errorf("results %q, %v", results, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), "rank 1") || time.Since(begin) > 15*time.Second {
				t.Errorf("after %v: %v", time.Since(begin), err)
			}
		})
	}
}

// TestStrangers: processes that connect to the ranks' ports without belonging to the job — with random bytes, with
// another program's request, saying nothing at all, or encrypted without a certificate or with another job's — change nothing.
func TestStrangers(t *testing.T) {
	for _, encryption := range []string{EncryptionOff, EncryptionOn} {
		t.Run("TLS "+encryption, func(t *testing.T) { testStrangers(t, encryption) })
	}
}

// portsInARow is the first of n neighbouring ports of the loopback that nobody has at the moment, none of which a system hands out by
// itself: what strangers dial must not be the port that their own connection leaves from.
func portsInARow(t *testing.T, n int) int {
	t.Helper()
	for range 1000 {
		first, free := 10000+mathrand.IntN(20000), true
		for i := range n {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", first+i))
			if free = free && err == nil; err == nil {
				_ = l.Close()
			}
		}
		if free {
			return first
		}
	}
	t.Fatalf("no %d free ports in a row", n)
	return 0
}

func testStrangers(t *testing.T, encryption string) {
	authority, err := comm.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	other, err := authority.Issue(0)
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.ParsePKCS8PrivateKey(other.Key)
	if err != nil {
		t.Fatal(err)
	}
	port := portsInARow(t, 3)
	cfg := testConfig("run", 3, -1)
	cfg.TLS = encryption
	cfg.Listen = fmt.Sprintf("tcp:127.0.0.1:%d", port)
	over := make(chan struct{})
	var strangers sync.WaitGroup
	var visits atomic.Int32
	for i := range 15 {
		strangers.Go(func() {
			for {
				select {
				case <-over:
					return
				case <-time.After(time.Millisecond):
				}
				c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port+i%3))
				if err != nil {
					continue
				}
				visits.Add(1)
				switch i / 3 {
				case 0:
					_, _ = c.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
				case 1:
					noise := make([]byte, 5000)
					_, _ = rand.Read(noise)
					_, _ = c.Write(noise)
				case 2:
					select {
					case <-over:
					case <-time.After(50 * time.Millisecond):
					}
				default:
					_ = c.SetDeadline(time.Now().Add(time.Second))
					cfg := &tls.Config{InsecureSkipVerify: true}
					if i/3 == 4 {
						cfg.Certificates = []tls.Certificate{{Certificate: [][]byte{other.Certificate}, PrivateKey: key}}
					}
					stranger := tls.Client(c, cfg)
					if stranger.Handshake() == nil { // whether the other side accepts, TLS 1.3 tells afterwards
						if _, err := stranger.Read(make([]byte, 1)); err == nil {
							t.Error("a stranger was answered")
						}
					}
				}
				_ = c.Close()
			}
		})
	}
	results, _, err := launch(t, t.Context(), cfg)
	close(over)
	strangers.Wait()
	if err != nil || len(results) != 3 {
		t.Errorf("results %q, %v", results, err)
	}
	if visits.Load() == 0 {
		t.Error("no stranger came to the door")
	}
}
