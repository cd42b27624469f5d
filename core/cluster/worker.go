package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"starling/core/comm"
)

// Worker is a rank's place in its job. Its methods may be called from several goroutines.
type Worker struct {
	rank, world int
	link        func(message) error // to the launcher
	ctx         context.Context
	cancel      context.CancelCauseFunc
	stop        chan struct{}
	stopOnce    sync.Once
	peers       chan []string
	ready       chan struct{}
	readyOnce   sync.Once
	end         func() // after Done or Fail: hangs up and joins the goroutines

	mu        sync.Mutex
	transport comm.Transport
	ended     bool
}

func newWorker(ctx context.Context, rank, world int, link func(message) error) *Worker {
	w := &Worker{rank: rank, world: world, link: link, stop: make(chan struct{}), peers: make(chan []string, 1), ready: make(chan struct{}), end: func() {}}
	w.ctx, w.cancel = context.WithCancelCause(ctx)
	return w
}

// Rank returns this rank, World the number of ranks.
func (w *Worker) Rank() int { return w.rank }

// World returns the number of ranks.
func (w *Worker) World() int { return w.world }

// Transport returns the connections to the other ranks; Done and Fail close it.
func (w *Worker) Transport() comm.Transport { return w.transport }

// Context ends when the job has failed; its cause names the rank that failed and why.
func (w *Worker) Context() context.Context { return w.ctx }

// StopRequested is closed when the job is asked to end in order: agree with the other ranks on a step (they may hear of it
// at different times), save, and call Done.
func (w *Worker) StopRequested() <-chan struct{} { return w.stop }

// RequestStop asks for a graceful stop of the whole job, as a signal does.
func (w *Worker) RequestStop() { w.say(message{Kind: kindStop}) }

// Status says what this rank is doing, in the words that should follow "during": "step 12", "evaluation at step 100". It is
// shown if the rank fails.
func (w *Worker) Status(text string) { w.say(message{Kind: kindStatus, Text: clip(text)}) }

// Event passes bytes to Config.OnEvent. They must not be changed afterwards.
func (w *Worker) Event(b []byte) error { return w.link(message{Kind: kindEvent, Data: b}) }

// say sends a message whose loss the control connection's end will explain.
func (w *Worker) say(m message) { _ = w.link(m) }

// Fail reports that this rank has failed, ends the collectives of all ranks with err, and closes the transport. It returns
// err. An error that blames another rank (a broken connection, a stall) is reported as such, so that the job's error
// names the rank where it began.
func (w *Worker) Fail(err error) error {
	if !w.finish() {
		return err
	}
	w.say(message{Kind: kindFailed, Text: err.Error(), Blame: blamed(w.rank, err)})
	if t := w.Transport(); t != nil {
		t.Fail(err)
		_ = t.Close()
	}
	w.cancel(err)
	w.end()
	return err
}

// Done reports this rank's result, says goodbye to the other ranks and ends its part in the job.
func (w *Worker) Done(result []byte) error {
	if !w.finish() {
		return errors.New("cluster: Done after the rank has ended")
	}
	err := w.link(message{Kind: kindDone, Data: result})
	if t := w.Transport(); t != nil {
		err = errors.Join(err, t.Close())
	}
	w.cancel(nil)
	w.end()
	return err
}

// finish reports whether this is the first end.
func (w *Worker) finish() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	first := !w.ended
	w.ended = true
	return first
}

// take handles a message of the launcher.
func (w *Worker) take(m message) {
	switch m.Kind {
	case kindPeers:
		select {
		case w.peers <- m.Addrs:
		default:
		}
	case kindGo:
		w.readyOnce.Do(func() { close(w.ready) })
	case kindStop:
		w.stopOnce.Do(func() { close(w.stop) })
	case kindFail:
		w.lose(&failedElsewhere{rank: m.Rank, text: m.Text})
	}
}

// lose ends the job on this rank because of something that happened elsewhere.
func (w *Worker) lose(err error) {
	w.cancel(err)
	w.mu.Lock()
	t, ended := w.transport, w.ended
	w.mu.Unlock()
	if t != nil && !ended {
		t.Fail(err)
	}
}

// JoinConfig says what the ranks must agree on; a rank that differs is refused with both values.
type JoinConfig struct {
	Digest string // of the recipe
	Class  string // arithmetic class of its kernels
}

// The environment by which a launcher hands a worker its place. The control connection is an inherited file; a later
// launcher on another host may give an address instead.
const (
	envRank    = "STARLING_RANK"
	envWorld   = "STARLING_WORLD_SIZE"
	envControl = "STARLING_CONTROL" // fd:N
)

// IsWorker reports whether this process was started by Launch and has not joined yet.
func IsWorker() bool { return os.Getenv(envControl) != "" }

// orphanGrace is how long a worker whose launcher is gone gets to end by itself.
const orphanGrace = 5 * time.Second

// Join connects this process, started by Launch, to its job: to the launcher over the inherited control connection, then to
// all other ranks. It returns when every rank is connected. SIGINT and SIGTERM of this process are passed to the
// launcher as a request to stop. If the launcher disappears the worker's context ends, and the process exits a few
// seconds later if it still runs.
func Join(ctx context.Context, cfg JoinConfig) (*Worker, error) {
	conn, err := inheritedControl()
	if err != nil {
		return nil, err
	}
	_ = conn.SetReadDeadline(time.Now().Add(sendTimeout))
	welcome, err := readControl(conn)
	if err != nil || welcome.Kind != kindWelcome {
		_ = conn.Close()
		return nil, fmt.Errorf("cluster: no welcome from the launcher: %w", err)
	}
	_ = conn.SetReadDeadline(time.Time{})
	c := &control{conn: conn}
	w := newWorker(ctx, welcome.Rank, welcome.World, c.send)
	w.say(message{Kind: kindHello, PID: os.Getpid()})

	hangUp := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { w.listen(conn, hangUp) })
	wg.Go(func() { w.beat(hangUp) })
	w.end = func() {
		close(hangUp)
		_ = conn.Close()
		wg.Wait()
	}
	if err := w.connect(cfg, welcome); err != nil {
		if cause := context.Cause(w.ctx); cause != nil {
			err = cause
		}
		return nil, w.Fail(err)
	}
	return w, nil
}

// listen handles the launcher's messages until either side hangs up.
func (w *Worker) listen(conn interface{ Read([]byte) (int, error) }, hangUp <-chan struct{}) {
	for {
		m, err := readControl(conn)
		if err == nil {
			w.take(m)
			continue
		}
		select {
		case <-hangUp:
		default:
			w.lose(ErrLauncherGone)
			time.AfterFunc(orphanGrace, func() { os.Exit(1) })
		}
		return
	}
}

// beat sends signs of life, and passes on signals.
func (w *Worker) beat(hangUp <-chan struct{}) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-hangUp:
			return
		case <-signals:
			w.RequestStop()
		case <-tick.C:
			w.say(message{Kind: kindBeat})
		}
	}
}

// connect is the rendezvous, seen from one rank.
func (w *Worker) connect(cfg JoinConfig, welcome message) error {
	l, err := comm.Listen(w.ctx, welcome.Listen)
	if err != nil {
		return err
	}
	defer l.Close()
	if err := w.link(message{Kind: kindListening, Text: comm.Address(l)}); err != nil {
		return err
	}
	var addrs []string
	select {
	case addrs = <-w.peers:
	case <-w.ctx.Done():
		return context.Cause(w.ctx)
	}
	host := welcome.Host
	if host == "" {
		host = comm.ThisHost()
	}
	t, err := comm.Connect(w.ctx, comm.MeshConfig{
		Identity: comm.Identity{Rank: w.rank, World: w.world, Digest: cfg.Digest, Class: cfg.Class, Host: host},
		Addrs:    addrs, Listener: l, Secret: welcome.Secret, Share: welcome.Share, Credentials: welcome.Credentials, Silence: welcome.Silence,
	})
	if err != nil {
		return err
	}
	w.mu.Lock()
	w.transport = t
	w.mu.Unlock()
	if err := w.link(message{Kind: kindConnected}); err != nil {
		return err
	}
	select {
	case <-w.ready:
		return nil
	case <-w.ctx.Done():
		return context.Cause(w.ctx)
	}
}
