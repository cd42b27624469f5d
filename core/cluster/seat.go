package cluster

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"
)

// JoinConfig says what the ranks must agree on; a rank that differs is refused with both values.
type JoinConfig struct {
	Digest string // of the recipe
	Class  string // arithmetic class of its kernels
	Cores  int    // see comm.MeshConfig; need not agree
}

// The environment by which a launcher hands a worker its place. The secret and everything else come through the control
// connection.
const (
	envRank    = "STARLING_RANK"
	envWorld   = "STARLING_WORLD_SIZE"
	envControl = "STARLING_CONTROL" // fd:N, or stdio
)

// IsWorker reports whether this process was started by Launch and has not joined yet.
func IsWorker() bool { return os.Getenv(envControl) != "" }

// orphanGrace is how long a worker whose launcher is gone gets to end by itself.
const orphanGrace = 5 * time.Second

// Seat is a process's place in a job whose ranks it has not met yet: it is connected to the launcher alone.
type Seat struct {
	w       *Worker
	welcome message
}

// Enter connects this process, started by Launch, to its launcher over the connection it was left.
func Enter(ctx context.Context) (*Seat, error) {
	conn, err := inheritedControl()
	if err != nil {
		return nil, err
	}
	welcome, err := readControl(conn) // may take until ranks that come by themselves are there
	switch {
	case err != nil || welcome.Kind == kindWelcome:
	case welcome.Kind == kindFail: // the job has ended before this rank had its place
		_ = conn.Close()
		return nil, &failedElsewhere{rank: welcome.Rank, text: welcome.Text}
	default:
		err = fmt.Errorf("it says %q", welcome.Kind)
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("cluster: no welcome from the launcher: %w", err)
	}
	return newSeat(ctx, conn, welcome, nil), nil
}

// newSeat takes a connection over which the launcher has sent its welcome. What closes stop is passed to the launcher.
func newSeat(ctx context.Context, conn controlConn, welcome message, stop <-chan struct{}) *Seat {
	_ = conn.SetReadDeadline(time.Time{})
	c := &control{conn: conn}
	w := newWorker(ctx, welcome.Rank, welcome.World, c.send)
	w.say(message{Kind: kindHello, PID: os.Getpid()})
	hangUp := make(chan struct{})
	silence := time.Duration(0)
	if welcome.Beats {
		silence = welcome.Silence
	}
	var wg sync.WaitGroup
	wg.Go(func() { w.listen(conn, silence, hangUp) })
	wg.Go(func() { w.beat(stop, hangUp) })
	w.end = func() {
		close(hangUp)
		_ = conn.Close()
		wg.Wait()
	}
	return &Seat{w, welcome}
}

// Rank returns the rank this process is to be.
func (s *Seat) Rank() int { return s.w.rank }

// Payload returns Config.Payload.
func (s *Seat) Payload() []byte { return s.welcome.Payload }

// Fail gives the place up: the job ends with err, which is returned.
func (s *Seat) Fail(err error) error { return s.w.Fail(err) }

// Join connects this process to all other ranks and returns when every rank is connected. SIGINT and SIGTERM of this process are
// passed to the launcher as a request to stop. If the launcher disappears the worker's context ends, and the process exits
// a few seconds later if it still runs.
func (s *Seat) Join(cfg JoinConfig) (*Worker, error) {
	if err := s.w.connect(cfg, s.welcome); err != nil {
		if cause := context.Cause(s.w.ctx); cause != nil {
			err = cause
		}
		return nil, s.w.Fail(err)
	}
	return s.w, nil
}

// Join is Enter and Seat.Join.
func Join(ctx context.Context, cfg JoinConfig) (*Worker, error) {
	s, err := Enter(ctx)
	if err != nil {
		return nil, err
	}
	return s.Join(cfg)
}
