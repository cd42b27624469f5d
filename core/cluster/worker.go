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
	"starling/core/comm/machine"
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
	parts       chan message
	end         func() // after Done or Fail: hangs up and joins the goroutines

	mu        sync.Mutex
	transport comm.Transport
	ended     bool
}

func newWorker(ctx context.Context, rank, world int, link func(message) error) *Worker {
	w := &Worker{rank: rank, world: world, link: link, stop: make(chan struct{}), peers: make(chan []string, 1), ready: make(chan struct{}), parts: make(chan message), end: func() {}}
	w.ctx, w.cancel = context.WithCancelCause(ctx)
	return w
}

// Rank returns this rank, World the number of ranks.
func (w *Worker) Rank() int { return w.rank }

// World returns the number of ranks.
func (w *Worker) World() int { return w.world }

// Transport returns the connections to the other ranks; Done and Fail close it.
func (w *Worker) Transport() comm.Transport { return w.transport }

// Neighbours returns how many ranks run on this rank's host, itself included.
func (w *Worker) Neighbours() int { return comm.Neighbours(w.transport) }

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
	case kindPart:
		select {
		case w.parts <- m:
		case <-w.ctx.Done():
		}
	case kindFail:
		w.lose(&failedElsewhere{rank: m.Rank, text: m.Text, gone: m.Gone})
	}
}

// lose ends the job on this rank because of something that happened elsewhere.
func (w *Worker) lose(err error) {
	w.mu.Lock()
	t, ended := w.transport, w.ended
	w.mu.Unlock()
	if t != nil && !ended {
		t.Fail(err) // before anybody closes a group because of the context
	}
	w.cancel(err)
}

// listen handles the launcher's messages until either side hangs up.
func (w *Worker) listen(conn controlConn, silence time.Duration, hangUp <-chan struct{}) {
	for {
		if silence > 0 {
			_ = conn.SetReadDeadline(time.Now().Add(silence))
		}
		m, err := readControl(conn)
		if err == nil {
			w.take(m)
			continue
		}
		select {
		case <-hangUp:
		default:
			gone := ErrLauncherGone
			if errors.Is(err, os.ErrDeadlineExceeded) {
				gone = fmt.Errorf("%w: it gave no sign of life for %v", ErrLauncherGone, silence)
			}
			w.lose(gone)
			time.AfterFunc(orphanGrace, func() { os.Exit(1) })
		}
		return
	}
}

// beat sends signs of life, and passes on signals and what closes stop.
func (w *Worker) beat(stop, hangUp <-chan struct{}) {
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
		case <-stop:
			stop = nil
			w.RequestStop()
		case <-tick.C:
			w.say(message{Kind: kindBeat})
		}
	}
}

// connect is the meeting of the ranks, seen from one of them.
func (w *Worker) connect(cfg JoinConfig, welcome message) error {
	l, err := comm.Listen(w.ctx, welcome.Listen)
	if err != nil {
		return err
	}
	defer l.Close()
	if err := w.link(message{Kind: kindListening, Text: comm.Address(l), Machine: machine.ID()}); err != nil {
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
		host = machine.ID()
	}
	t, err := comm.Connect(w.ctx, comm.MeshConfig{
		Identity: comm.Identity{Rank: w.rank, World: w.world, Digest: cfg.Digest, Class: cfg.Class, Host: host},
		Addrs:    addrs, Listener: l, Secret: welcome.Secret, Share: welcome.Share, Credentials: welcome.Credentials, Silence: welcome.Silence, Cores: cfg.Cores,
		Trouble: func(why string) { w.say(message{Kind: kindTrouble, Text: clip(why)}) },
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
