//go:build unix

package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"starling/core/comm"
)

// Launch starts one worker process per rank on this machine and sees the job to its end: it returns the ranks' results
// (nil for a rank that stopped without one), a *RankError naming the first rank that failed, or an error wrapping
// ErrStopped (and ctx's, if that ended) when the job was killed on request. When it returns, no worker and no file of the
// job is left.
func Launch(ctx context.Context, cfg Config) ([][]byte, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	listen, share, err := cfg.transport()
	if err != nil {
		return nil, err
	}
	credentials := make([]*comm.Credentials, cfg.Ranks)
	if on, err := cfg.encrypted(listen); err != nil {
		return nil, err
	} else if on {
		a, err := comm.NewAuthority()
		if err != nil {
			return nil, err
		}
		for r := range credentials {
			if credentials[r], err = a.Issue(r); err != nil {
				return nil, err
			}
		}
	}
	dir, err := socketDir()
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	onReady := cfg.OnReady
	cfg.OnReady = func() {
		_ = os.RemoveAll(dir) // the sockets have served
		if onReady != nil {
			onReady()
		}
	}
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // never fails

	l := &launcher{cfg: cfg, workers: make([]*process, cfg.Ranks), events: make(chan event), over: make(chan struct{})}
	j := newJob(cfg, time.Now())
	starts, release := make(chan int), make(chan struct{})
	started := make(chan error)
	go l.starter(starts, started, release)
	defer close(release)
	for r := range cfg.Ranks {
		at, err := listenAddress(listen, dir, r)
		if err == nil {
			starts <- r
			err = <-started
		}
		if err != nil {
			j.fail(&RankError{Rank: r, Cause: "could not be started", Detail: err.Error()}, time.Now())
			for k := r; k < cfg.Ranks; k++ {
				j.ranks[k].exited = true
			}
			break
		}
		pid := l.workers[r].cmd.Process.Pid
		j.started(r, pid, time.Now())
		if cfg.OnStart != nil {
			cfg.OnStart(r, pid)
		}
		welcome := message{Kind: kindWelcome, Rank: r, World: cfg.Ranks, Secret: secret, Listen: at, Share: share, Silence: cfg.Silence, Credentials: credentials[r]}
		if len(cfg.Hosts) > 0 {
			welcome.Host = cfg.Hosts[r]
		}
		l.send(r, welcome)
	}
	for _, o := range j.take() {
		l.send(o.rank, o.msg)
	}
	supervise(ctx, j, l.events, l)
	close(l.over)
	for _, p := range l.workers {
		if p != nil {
			p.hangUp()
		}
	}
	l.wg.Wait()
	results, err := j.outcome(ctx)
	var first *RankError
	if errors.As(err, &first) && l.workers[first.Rank] != nil {
		first.Stderr = l.workers[first.Rank].tail.String()
	}
	return results, err
}

// socketDir makes the private directory for the ranks' sockets. Socket paths are short on every system, so a long
// temporary directory is passed over.
func socketDir() (string, error) {
	base := os.TempDir()
	if len(base) > 60 {
		base = "/tmp"
	}
	dir, err := os.MkdirTemp(base, "starling-")
	if err != nil {
		return "", fmt.Errorf("cluster: no directory for the ranks' sockets (set TMPDIR to a writable one): %w", err)
	}
	return dir, nil
}

// launcher carries out a job's orders on processes.
type launcher struct {
	cfg     Config
	workers []*process
	events  chan event
	over    chan struct{} // nobody takes events any more
	output  sync.Mutex    // lines of several workers do not mix
	wg      sync.WaitGroup
}

// process is one worker.
type process struct {
	cmd  *exec.Cmd
	ctl  *control
	out  chan message // to be sent
	tail *tailWriter
	once sync.Once
}

// hangUp closes the control connection.
func (p *process) hangUp() {
	p.once.Do(func() {
		close(p.out)
		_ = p.ctl.conn.Close()
	})
}

// starter starts processes from one OS thread that lives as long as they do: the signal that Linux sends to children
// on their parent's death is tied to the thread that started them.
func (l *launcher) starter(starts <-chan int, started chan<- error, release <-chan struct{}) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for {
		select {
		case r := <-starts:
			started <- l.start(r)
		case <-release:
			return
		}
	}
}

func (l *launcher) start(rank int) error {
	cmd, err := l.command(rank)
	if err != nil {
		return err
	}
	ours, theirs, err := controlPair()
	if err != nil {
		return err
	}
	defer theirs.Close()
	fd := 3 + len(cmd.ExtraFiles)
	cmd.ExtraFiles = append(cmd.ExtraFiles, theirs)
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, envRank+"="+strconv.Itoa(rank), envWorld+"="+strconv.Itoa(l.cfg.Ranks), envControl+"=fd:"+strconv.Itoa(fd))
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true // a signal from the terminal reaches the launcher alone, and a kill the worker's children too
	dieWithParent(cmd.SysProcAttr)
	cmd.WaitDelay = 2 * time.Second

	p := &process{cmd: cmd, ctl: &control{conn: ours}, out: make(chan message, 16), tail: &tailWriter{}}
	stderr := l.cfg.Stderr
	if stderr == nil {
		stderr = os.Stderr
	}
	prefix := fmt.Sprintf("[rank %d] ", rank)
	errLines := &lineWriter{mu: &l.output, w: stderr, prefix: prefix}
	outLines := &lineWriter{mu: &l.output, w: l.cfg.Stdout, prefix: prefix}
	if cmd.Stderr == nil {
		cmd.Stderr = io.MultiWriter(p.tail, errLines)
	}
	if cmd.Stdout == nil && l.cfg.Stdout != nil {
		cmd.Stdout = outLines
	}
	if err := cmd.Start(); err != nil {
		_ = ours.Close()
		return err
	}
	l.workers[rank] = p
	spoken := make(chan struct{})
	l.wg.Go(func() {
		defer close(spoken)
		l.read(rank, p)
	})
	l.wg.Go(func() {
		for m := range p.out {
			if err := p.ctl.send(m); err != nil {
				return // its death or silence is noticed elsewhere
			}
		}
	})
	l.wg.Go(func() {
		cause := exitCause(cmd.Wait())
		errLines.flush()
		outLines.flush()
		l.killGroup(p) // whatever it had started
		// What it said last counts before its death. Something it started may still hold the connection: do not wait for long.
		select {
		case <-spoken:
		case <-time.After(500 * time.Millisecond):
		}
		l.post(event{rank: rank, kind: exited, cause: cause})
	})
	return nil
}

// command returns the command of a rank.
func (l *launcher) command(rank int) (*exec.Cmd, error) {
	if l.cfg.Command != nil {
		return l.cfg.Command(rank), nil
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return exec.Command(self, os.Args[1:]...), nil
}

func (l *launcher) post(e event) {
	select {
	case l.events <- e:
	case <-l.over:
	}
}

// read passes on what a worker says.
func (l *launcher) read(rank int, p *process) {
	for {
		m, err := readControl(p.ctl.conn)
		if err != nil {
			l.post(event{rank: rank, kind: hungUp})
			return
		}
		l.post(event{rank: rank, kind: said, msg: m})
	}
}

// send queues a message. A worker is sent a handful in its life; one that does not take them is not alive.
func (l *launcher) send(rank int, m message) {
	if p := l.workers[rank]; p != nil {
		select {
		case p.out <- m:
		default:
		}
	}
}

func (l *launcher) kill(rank int) {
	if p := l.workers[rank]; p != nil {
		_ = p.cmd.Process.Kill()
		l.killGroup(p)
	}
}

// killGroup kills what a worker has started in its process group.
func (l *launcher) killGroup(p *process) {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
}

// exitCause says how a process ended, as it follows "rank 1 (pid 123)"; "" for exit code 0.
func exitCause(err error) string {
	var exit *exec.ExitError
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay):
		return ""
	case !errors.As(err, &exit):
		return "ended: " + err.Error()
	}
	if s, ok := exit.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return fmt.Sprintf("was killed by signal %d (%v)", s.Signal(), s.Signal())
	}
	return fmt.Sprintf("exited with code %d", exit.ExitCode())
}

// controlPair returns the two ends of a control connection.
func controlPair() (ours net.Conn, theirs *os.File, err error) {
	fds, err := socketPair()
	if err != nil {
		return nil, nil, fmt.Errorf("cluster: no control connection: %w", err)
	}
	mine := os.NewFile(uintptr(fds[0]), "control")
	theirs = os.NewFile(uintptr(fds[1]), "control")
	ours, err = net.FileConn(mine)
	_ = mine.Close()
	if err != nil {
		_ = theirs.Close()
		return nil, nil, fmt.Errorf("cluster: no control connection: %w", err)
	}
	return ours, theirs, nil
}

// socketPair makes a socket pair that no other child inherits.
func socketPair() ([2]int, error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fds[0])
		syscall.CloseOnExec(fds[1])
	}
	return fds, err
}

// inheritedControl opens the control connection that the launcher left to this process.
func inheritedControl() (net.Conn, error) {
	addr := os.Getenv(envControl)
	n, ok := strings.CutPrefix(addr, "fd:")
	fd, err := strconv.Atoi(n)
	if !ok || err != nil || fd < 3 {
		return nil, fmt.Errorf("cluster: %s is %q: this process was not started by a launcher, or has joined already", envControl, addr)
	}
	_ = os.Unsetenv(envControl) // not for this process's own children
	syscall.CloseOnExec(fd)
	f := os.NewFile(uintptr(fd), "control")
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("cluster: the launcher's control connection: %w", err)
	}
	return conn, nil
}
