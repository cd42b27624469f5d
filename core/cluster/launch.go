//go:build unix

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"
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
	l := &launcher{cfg: cfg, workers: make([]*process, cfg.Ranks), events: make(chan event), over: make(chan struct{})}
	j := newJob(cfg, time.Now())
	w, err := newWelcomer(cfg, listen, share, dir)
	if err != nil {
		return nil, err
	}
	starts, release := make(chan int), make(chan struct{})
	started := make(chan error)
	go l.starter(starts, started, release)
	defer close(release)
	here := cfg.Ranks
	closeDoor := func() {}
	if cfg.Rendezvous != nil {
		here = 1
		if closeDoor, err = l.meet(w); err != nil {
			return nil, err
		}
		for r := range j.ranks {
			j.ranks[r].awaited, j.ranks[r].here = true, r == 0
		}
	}
	for r := range here {
		starts <- r
		if err = <-started; err != nil {
			e := j.errorOf(r, "could not be started")
			e.Detail = err.Error()
			j.fail(e, time.Now())
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
		if cfg.Rendezvous == nil {
			l.send(r, w.welcome(r))
		}
	}
	for _, o := range j.take() {
		l.send(o.rank, o.msg)
	}
	supervise(ctx, j, l.events, l)
	close(l.over)
	closeDoor()
	for _, p := range l.all() {
		p.hangUp()
	}
	l.wg.Wait()
	results, err := j.outcome(ctx)
	var first *RankError
	if errors.As(err, &first) && l.workers[first.Rank] != nil && l.workers[first.Rank].tail != nil {
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
	mu      sync.Mutex
	workers []*process // nil: not here yet
	events  chan event
	over    chan struct{} // nobody takes events any more
	output  sync.Mutex    // lines of several workers do not mix
	wg      sync.WaitGroup
}

// process is one worker.
type process struct {
	cmd  *exec.Cmd // nil: something else has started it
	ctl  *control
	out  chan message // to be sent
	tail *tailWriter  // of what was started here
	gone chan struct{}
	once sync.Once
}

// hangUp closes the control connection.
func (p *process) hangUp() {
	p.once.Do(func() {
		close(p.gone)
		_ = p.ctl.conn.Close()
	})
}

// worker returns the process of a rank, or nil.
func (l *launcher) worker(rank int) *process {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.workers[rank]
}

// all returns the processes that are here.
func (l *launcher) all() []*process {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.workers), func(p *process) bool { return p == nil })
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
	place := l.cfg.place(rank)
	remote := place.Start
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	if len(remote) > 0 {
		// Files and environment do not travel: what there is to say goes through the shell's own pipes.
		if cmd, err = throughShell(place, cmd); err != nil {
			return err
		}
		cmd.Stdin, cmd.Stdout = theirs, theirs
	} else {
		fd := 3 + len(cmd.ExtraFiles)
		cmd.ExtraFiles = append(cmd.ExtraFiles, theirs)
		cmd.Env = append(cmd.Env, envRank+"="+strconv.Itoa(rank), envWorld+"="+strconv.Itoa(l.cfg.Ranks), envControl+"=fd:"+strconv.Itoa(fd))
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true // a signal from the terminal reaches the launcher alone, and a kill the worker's children too
	dieWithParent(cmd.SysProcAttr)
	cmd.WaitDelay = 2 * time.Second

	p := newProcess(ours)
	p.cmd, p.tail = cmd, &tailWriter{}
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
	l.mu.Lock()
	l.workers[rank] = p
	l.mu.Unlock()
	spoken := make(chan struct{})
	l.wg.Go(func() {
		defer close(spoken)
		if len(remote) > 0 {
			before, err := skipToPreamble(ours)
			show := &lineWriter{mu: &l.output, w: stderr, prefix: prefix}
			_, _ = io.MultiWriter(p.tail, show).Write(before)
			show.flush()
			if err != nil {
				l.lost(rank, err)
				return
			}
		}
		l.read(rank, p)
	})
	l.wg.Go(func() { p.write(len(remote) > 0) })
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
			l.lost(rank, err)
			return
		}
		if m.Kind == kindAsk {
			l.wg.Go(func() { serve(p.ctl, l.cfg.Serve, m.Data) })
		}
		l.post(event{rank: rank, kind: said, msg: m})
	}
}

// lost passes on that a control connection has ended, and why if that is more than its end.
func (l *launcher) lost(rank int, err error) {
	e := event{rank: rank, kind: hungUp}
	if g := (*garbled)(nil); errors.As(err, &g) {
		e.cause = g.text
	}
	l.post(e)
}

// send queues a message. A worker is sent a handful in its life; one that does not take them is not alive.
func (l *launcher) send(rank int, m message) {
	if p := l.worker(rank); p != nil {
		select {
		case p.out <- m:
		default:
		}
	}
}

func (l *launcher) kill(rank int) {
	p := l.worker(rank)
	switch {
	case p == nil: // it has never come
		go l.post(event{rank: rank, kind: exited})
	case p.cmd == nil: // all that can be done from here; it ends itself
		p.hangUp()
	default:
		_ = p.cmd.Process.Kill()
		l.killGroup(p)
	}
}

func newProcess(conn controlConn) *process {
	return &process{ctl: &control{conn: conn}, out: make(chan message, 64), gone: make(chan struct{})}
}

// write sends what is queued, and over a network a sign of life every second.
func (p *process) write(beats bool) {
	var tick <-chan time.Time
	if beats {
		t := time.NewTicker(time.Second)
		defer t.Stop()
		tick = t.C
	}
	for {
		m := message{Kind: kindBeat}
		select {
		case m = <-p.out:
		case <-tick:
		case <-p.gone:
			return
		}
		if err := p.ctl.send(m); err != nil {
			return // its death or silence is noticed elsewhere
		}
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
