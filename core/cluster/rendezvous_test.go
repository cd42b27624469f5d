//go:build unix

package cluster

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"starling/core/comm"
)

const testSecret = "a secret of these tests"

// freePort is a port of the loopback that nobody has at the moment.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// guestProcess starts a process of a job that something else than the launcher starts.
type guestProcess struct {
	cmd    *exec.Cmd
	stderr bytes.Buffer // once exited
	exited chan struct{}
	err    error
}

func startGuest(t *testing.T, part, address, secret string, number, world int, env ...string) *guestProcess {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	g := &guestProcess{cmd: exec.Command(self), exited: make(chan struct{})}
	g.cmd.Env = append(os.Environ(), envPart+"="+part, envVictim+"=-1", "RANK="+strconv.Itoa(number), "WORLD_SIZE="+strconv.Itoa(world),
		envRendezvous+"="+address, envSecret+"="+secret)
	g.cmd.Env = append(g.cmd.Env, env...)
	g.cmd.Stderr = &g.stderr
	if err := g.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		g.err = g.cmd.Wait()
		close(g.exited)
	}()
	t.Cleanup(func() {
		_ = g.cmd.Process.Kill()
		<-g.exited
	})
	return g
}

func (g *guestProcess) wait(t *testing.T, limit time.Duration) error {
	t.Helper()
	select {
	case <-g.exited:
	case <-time.After(limit):
		_ = g.cmd.Process.Kill()
		<-g.exited
	}
	return g.err
}

func rendezvousConfig(t *testing.T, part string, ranks int) (Config, string) {
	address := "127.0.0.1:" + freePort(t)
	cfg := testConfig(part, ranks, -1)
	cfg.Rendezvous = &Rendezvous{Address: "tcp:" + address, Secret: []byte(testSecret)}
	cfg.Payload = []byte("what all must know")
	cfg.JoinTimeout = time.Minute
	return cfg, address
}

// TestRendezvous: ranks that come by themselves, before and after the launcher, with strangers at the door who have no
// certificate, one of another secret, or say nothing.
func TestRendezvous(t *testing.T) {
	cfg, address := rendezvousConfig(t, "run", 4)
	// Numbers 1 and 3 are on one declared host, so they become neighbours.
	hosts := []string{"", "a", "b", "a"}
	early := startGuest(t, "run", address, testSecret, 1, 4, "STARLING_HOST=a")
	over := make(chan struct{})
	strangers := make(chan int)
	go func() {
		n := 0
		defer func() { strangers <- n }()
		for {
			select {
			case <-over:
				return
			case <-time.After(2 * time.Millisecond):
			}
			c, err := net.Dial("tcp", address)
			if err != nil {
				continue
			}
			n++
			if n%2 == 0 {
				noise := make([]byte, 300)
				_, _ = rand.Read(noise)
				_, _ = c.Write(noise)
				_ = c.Close()
			} else {
				defer c.Close() // half open, to the end
			}
			if n == 40 {
				return
			}
		}
	}()
	foreign := startGuest(t, "run", address, "the secret of another job", 2, 4)
	time.AfterFunc(300*time.Millisecond, func() {
		for _, n := range []int{3, 2} {
			startGuest(t, "run", address, testSecret, n, 4, "STARLING_HOST="+hosts[n])
		}
	})
	results, _, err := launch(t, t.Context(), cfg)
	close(over)
	if n := <-strangers; n == 0 {
		t.Error("no stranger came to the door")
	}
	if err != nil || len(results) != 4 {
		t.Fatalf("results %q, %v", results, err)
	}
	if want := "rank 2 of 4 stopped=false number=3 payload=what all must know"; string(results[2]) != want {
		t.Errorf("rank 2 says %q, want %q", results[2], want)
	}
	if err := early.wait(t, 5*time.Second); err != nil {
		t.Errorf("a guest ended with %v: %s", err, &early.stderr)
	}
	select {
	case <-foreign.exited:
		t.Errorf("a process with another secret ended with %v: %s", foreign.err, &foreign.stderr)
	default: // it still knocks
	}
}

// TestRendezvousRefusals: a process that belongs elsewhere is told why, and the job waits on for the right one.
func TestRendezvousRefusals(t *testing.T) {
	cfg, address := rendezvousConfig(t, "run", 2)
	refused := make(chan struct{})
	wrong := []*guestProcess{startGuest(t, "run", address, testSecret, 1, 3), startGuest(t, "run", address, testSecret, 2, 3)}
	right := make(chan *guestProcess, 1)
	go func() {
		defer close(refused)
		for _, g := range wrong {
			<-g.exited
		}
		right <- startGuest(t, "run", address, testSecret, 1, 2)
	}()
	results, _, err := launch(t, t.Context(), cfg)
	<-refused
	if err != nil || len(results) != 2 {
		t.Errorf("results %q, %v", results, err)
	}
	for _, g := range wrong {
		if g.err == nil || !strings.Contains(g.stderr.String(), "it was told of 3 ranks, and the job has 2") {
			t.Errorf("a wrong guest ended with %v: %s", g.err, &g.stderr)
		}
	}
	if err := (<-right).wait(t, 10*time.Second); err != nil {
		t.Error(err)
	}
}

// TestGuestsThatFail: a guest that never comes is named, and one that is killed; the others end.
func TestGuestsThatFail(t *testing.T) {
	t.Run("absent", func(t *testing.T) {
		cfg, address := rendezvousConfig(t, "run", 3)
		cfg.JoinTimeout = time.Second
		g := startGuest(t, "run", address, testSecret, 1, 3)
		_, _, err := launch(t, t.Context(), cfg)
		var rank *RankError
		if !errors.As(err, &rank) || rank.Rank != 2 || !strings.Contains(err.Error(), "of the 3 processes, these did not join the job at tcp:"+address+" within 1s: 2;") {
			t.Errorf("%v, want process 2 named", err)
		}
		if err := g.wait(t, 10*time.Second); err == nil || !strings.Contains(g.stderr.String(), "ended before all its processes were there") {
			t.Errorf("the waiting guest ended with %v: %s", err, &g.stderr)
		}
	})
	t.Run("killed", func(t *testing.T) {
		cfg, address := rendezvousConfig(t, "loop", 3)
		a, b := startGuest(t, "loop", address, testSecret, 1, 3), startGuest(t, "loop", address, testSecret, 2, 3)
		cfg.OnEvent = func(rank int, _ []byte) {
			if rank == 0 {
				_ = syscall.Kill(a.cmd.Process.Pid, syscall.SIGKILL)
			}
		}
		_, _, err := launch(t, t.Context(), cfg)
		var rank *RankError
		if !errors.As(err, &rank) || rank.Rank != 1 || rank.PID != a.cmd.Process.Pid {
			t.Errorf("%v, want rank 1 and its pid named", err)
		}
		if err := b.wait(t, 15*time.Second); err == nil || !strings.Contains(b.stderr.String(), "rank 1") {
			t.Errorf("the other guest ended with %v: %s", err, &b.stderr)
		}
	})
	t.Run("launcher gone", func(t *testing.T) {
		address := "127.0.0.1:" + freePort(t)
		cfg := testConfig("launcher", 2, -1)
		l := cfg.Command(0)
		l.Env = append(l.Env, "CLUSTER_TEST_RENDEZVOUS="+address)
		out, err := l.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Start(); err != nil {
			t.Fatal(err)
		}
		g := startGuest(t, "loop", address, testSecret, 1, 2)
		_, _ = io.ReadAtLeast(out, make([]byte, 3), 3) // an event: the ranks are running
		_ = l.Process.Kill()
		_ = l.Wait()
		if err := g.wait(t, 15*time.Second); err == nil || g.stderr.Len() == 0 {
			t.Errorf("a guest without a launcher ended with %v: %s", err, &g.stderr)
		}
	})
}

// TestAttendGivesUp: nobody at the rendezvous is said with its address.
func TestAttendGivesUp(t *testing.T) {
	_, err := Attend(t.Context(), Attendance{Number: 1, World: 2, Address: "tcp:127.0.0.1:" + freePort(t), Secret: []byte(testSecret), Patience: 200 * time.Millisecond})
	if err == nil || !strings.Contains(err.Error(), "waited 200ms at the rendezvous") || !strings.Contains(err.Error(), "process 0 has not been started yet") {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err := Attend(ctx, Attendance{Number: 1, World: 2, Address: "tcp:127.0.0.1:1", Secret: []byte(testSecret)}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := Attend(t.Context(), Attendance{Number: 1, World: 2, Address: "tcp:127.0.0.1:1", Secret: []byte("short")}); err == nil {
		t.Error("a short secret is accepted")
	}
}

// TestForeignSecret: who knocks with another secret than process 0's, or where another program listens, says so while it waits and at its end.
func TestForeignSecret(t *testing.T) {
	authority, err := comm.DeriveAuthority([]byte(testSecret))
	if err != nil {
		t.Fatal(err)
	}
	credentials, err := authority.Issue(0)
	if err != nil {
		t.Fatal(err)
	}
	for want, serve := range map[string]func(c net.Conn){
		"the process there has another secret": func(c net.Conn) { _, _ = comm.Secure(c, credentials, -1) },
		"another program listens there":        func(c net.Conn) { _, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")) },
	} {
		door, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer door.Close()
		go func() {
			for {
				c, err := door.Accept()
				if err != nil {
					return
				}
				serve(c)
				_ = c.Close()
			}
		}()
		var told []string
		_, err = Attend(t.Context(), Attendance{Number: 1, World: 2, Address: "tcp:" + door.Addr().String(), Secret: []byte(strings.Repeat("x", 32)), Patience: 3 * time.Second,
			Waiting: func(why error) { told = append(told, why.Error()) }})
		if err == nil || len(told) == 0 || !strings.Contains(told[0], "process 1 of 2 waits at the rendezvous") || !strings.Contains(told[0]+err.Error(), want) {
			t.Errorf("it says %q, want %q, and ends with %v", told, want, err)
		}
	}
}

// TestTakenRendezvous: where process 0 cannot listen it says at once at which address and what to do, and starts no rank.
func TestTakenRendezvous(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	taken := other.Addr().String()
	for address, want := range map[string]string{
		taken:             taken + " is taken: another job or program listens there; give all processes a free port, with --rendezvous or MASTER_PORT",
		"192.0.2.1:29400": "192.0.2.1:29400 is at no address of this machine", // an address for documentation
	} {
		cfg, _ := rendezvousConfig(t, "run", 2)
		cfg.Rendezvous.Address = "tcp:" + address
		cfg.OnStart = func(rank, _ int) { t.Errorf("rank %d was started", rank) }
		if _, _, err := launch(t, t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "--rendezvous") {
			t.Errorf("%s: %v, want %q", address, err, want)
		}
	}
}

// TestRendezvousStops: a stop before all ranks have come ends the job as asked, and no rank's exit is taken for a crash.
func TestRendezvousStops(t *testing.T) {
	cfg, address := rendezvousConfig(t, "run", 3)
	var said bytes.Buffer
	cfg.Stderr = &said
	g := startGuest(t, "run", address, testSecret, 1, 3)
	stop := make(chan struct{})
	cfg.Stop = stop
	time.AfterFunc(300*time.Millisecond, func() { close(stop) })
	begun := time.Now()
	_, _, err := launch(t, t.Context(), cfg)
	if !errors.Is(err, ErrStopped) || !strings.Contains(err.Error(), "before all ranks had come") {
		t.Errorf("the job ended with %v", err)
	}
	if d := time.Since(begun); d > 15*time.Second {
		t.Errorf("it took %v", d)
	}
	if !strings.Contains(said.String(), "before all ranks had come") {
		t.Errorf("rank 0 says %q", &said)
	}
	if err := g.wait(t, 20*time.Second); err == nil {
		t.Error("the guest ended as if all were well")
	}
}

// TestAttendStops: who waits can be asked to end, with nobody at the rendezvous and with a launcher there that waits for others.
func TestAttendStops(t *testing.T) {
	stop := make(chan struct{})
	time.AfterFunc(100*time.Millisecond, func() { close(stop) })
	if _, err := Attend(t.Context(), Attendance{Number: 1, World: 3, Address: "tcp:127.0.0.1:" + freePort(t), Secret: []byte(testSecret), Stop: stop}); !errors.Is(err, ErrStopped) {
		t.Error(err)
	}
	cfg, address := rendezvousConfig(t, "run", 3)
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _ = Launch(ctx, cfg)
	}()
	stop = make(chan struct{})
	time.AfterFunc(500*time.Millisecond, func() { close(stop) })
	if _, err := Attend(t.Context(), Attendance{Number: 1, World: 3, Address: "tcp:" + address, Secret: []byte(testSecret), Stop: stop}); !errors.Is(err, ErrStopped) {
		t.Error(err)
	}
	cancel()
	<-over
}

// TestNoPlaceAnyMore: a process that is let in when the last place has just been taken is told so.
func TestNoPlaceAnyMore(t *testing.T) {
	for _, c := range []struct {
		name, want string
		full, over bool
	}{{"full", "has all its processes", true, false}, {"over", "has ended", false, true}} {
		l := &launcher{over: make(chan struct{})}
		full := make(chan struct{})
		if c.full {
			close(full)
		}
		if c.over {
			close(l.over)
		}
		here, there := net.Pipe()
		go l.admit(guest{number: 1, conn: here}, make(chan guest), full)
		_ = there.SetReadDeadline(time.Now().Add(10 * time.Second))
		if m, err := readControl(there); err != nil || m.Kind != kindFail || !strings.Contains(m.Text, c.want) {
			t.Errorf("%s: %+v, %v", c.name, m, err)
		}
		_ = there.Close()
	}
}

// TestMPIByItself: MPI is taken without being asked for where it started the ranks, the program has it, the launcher's host has a device with
// remote access to memory and encryption is not asked for; whatever is named goes before that.
func TestMPIByItself(t *testing.T) {
	with, without := t.TempDir(), t.TempDir()
	for _, dir := range []string{filepath.Join(with, "class/infiniband/mlx5_0"), filepath.Join(without, "class/infiniband")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	yes := Config{Ranks: 2, System: with, Rendezvous: &Rendezvous{Address: "tcp::29400", Secret: []byte(testSecret), MPI: true}}
	for name, c := range map[string]struct {
		change  func(c *Config)
		without bool // MPI is not built in
		want    comm.Sharing
		listen  string
	}{
		"a device":                   {want: comm.ShareMPI},
		"auto":                       {change: func(c *Config) { c.Transport = TransportAuto }, want: comm.ShareMPI},
		"TLS off":                    {change: func(c *Config) { c.TLS = EncryptionOff }, want: comm.ShareMPI},
		"an address":                 {change: func(c *Config) { c.Listen = "tcp:auto:0" }, want: comm.ShareMPI, listen: "tcp:auto:0"},
		"no device":                  {change: func(c *Config) { c.System = without }, want: comm.ShareAuto},
		"no files":                   {change: func(c *Config) { c.System = filepath.Join(without, "none") }, want: comm.ShareAuto},
		"no MPI in the program":      {without: true, want: comm.ShareAuto},
		"not started by MPI":         {change: func(c *Config) { c.Rendezvous.MPI = false }, want: comm.ShareAuto},
		"started here":               {change: func(c *Config) { c.Rendezvous = nil }, want: comm.ShareAuto},
		"TLS on":                     {change: func(c *Config) { c.TLS = EncryptionOn }, want: comm.ShareAuto},
		"named tcp":                  {change: func(c *Config) { c.Transport = TransportTCP }, want: comm.ShareNever, listen: autoListen},
		"named shm":                  {change: func(c *Config) { c.Transport = TransportShared }, want: comm.ShareAlways},
		"named mpi without a device": {change: func(c *Config) { c.Transport, c.System = TransportMPI, without }, want: comm.ShareMPI},
	} {
		cfg, r := yes, *yes.Rendezvous
		cfg.Rendezvous = &r
		if c.change != nil {
			c.change(&cfg)
		}
		if listen, share, err := cfg.transportOf(!c.without); err != nil || share != c.want || listen != c.listen {
			t.Errorf("%s: %v at %q, %v; want %v at %q", name, share, listen, err, c.want, c.listen)
		}
	}
}

// TestMPIIsNotEncrypted: who asks for encryption does not get MPI.
func TestMPIIsNotEncrypted(t *testing.T) {
	cfg := Config{Ranks: 2, TLS: EncryptionOn, Transport: TransportMPI, Rendezvous: &Rendezvous{Address: "tcp::29400", Secret: []byte(testSecret), MPI: true}}
	if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "not encrypted") {
		t.Errorf("MPI with TLS: %v", err)
	}
	cfg.Transport = TransportAuto
	if _, share, err := cfg.transport(); err != nil || share != comm.ShareAuto {
		t.Errorf("auto with TLS: %v, %v", share, err)
	}
	cfg.Rendezvous.Address = "tcp:host"
	if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "port") {
		t.Errorf("a rendezvous without a port: %v", err)
	}
}
