package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
)

// DefaultKeep is how many of the newest checkpoints a Saver keeps.
const DefaultKeep = 3

// SaverConfig describes one rank's part in a run's checkpoints.
type SaverConfig struct {
	Dir  string // the run's folder of checkpoints; made if it is not there
	Keep int    // newest checkpoints to keep; 0 means DefaultKeep

	// Shard is this rank's shard number. The rank of shard 0 commits, prunes and
	// cleans up; it must make its Saver before any other rank saves.
	Shard int

	// Gather hands this rank's result to the rank of shard 0, and there returns every
	// rank's, its own included; elsewhere what it returns is not looked at. Every
	// rank calls it once for every Save, in the same order, from its Saver's own goroutine, also
	// when its shard failed. Nil means that this rank is alone.
	Gather func(ctx context.Context, mine Result) ([]Result, error)

	// InPlace writes from the tensors themselves: Save copies nothing and returns when the checkpoint is written. It is for tensors that
	// there is no memory to copy.
	InPlace bool

	// Snapshot is the number of bytes to set aside for the copy of the tensors:
	// SnapshotBytes of what will be saved. A larger save makes it grow.
	Snapshot int64

	// Done, unless nil, is told of every save when it has ended, from the Saver's
	// goroutine.
	Done func(Outcome)
}

// Result is one rank's shard, or why there is none. It can be sent as JSON.
type Result struct {
	Shard Shard  `json:"shard"`
	Error string `json:"error,omitempty"`
}

// Outcome is how one save ended.
type Outcome struct {
	Step  int64
	Path  string        // the committed checkpoint, on the rank of shard 0; else empty
	Bytes int64         // written by this rank
	Took  time.Duration // in the background
	Err   error         // a *SaveError, or nil
}

// SaveError says that a checkpoint was not saved as it should be. The run may go on.
type SaveError struct {
	Step     int64
	LastGood string // the newest checkpoint this Saver knows to be good; empty if none
	Err      error
}

func (e *SaveError) Error() string {
	last := ""
	if e.LastGood != "" {
		last = "; the last good checkpoint is " + e.LastGood
	}
	return fmt.Sprintf("checkpoint: saving step %d: %v%s", e.Step, e.Err, last)
}

func (e *SaveError) Unwrap() error { return e.Err }

// SaveRequest is one checkpoint to be saved.
type SaveRequest struct {
	Step    int64
	Tensors []Tensor // this rank's pieces; free to change as soon as Save returns
	Trainer []byte   // JSON; only the rank of shard 0 needs it
	Best    bool     // mark it as the best
}

// SnapshotBytes is the memory in which a Saver copies tensors.
func SnapshotBytes(tensors []Tensor) (n int64) {
	for _, t := range tensors {
		n += int64(len(t.Data))
	}
	return n
}

// Saver saves checkpoints in the background, one at a time. Its methods may be called
// by one goroutine at a time.
type Saver struct {
	cfg    SaverConfig
	memory []byte // of the snapshot being written, or of the last one

	jobs    chan SaveRequest
	idle    chan struct{} // holds a token while nothing is being written
	ctx     context.Context
	cancel  context.CancelFunc
	ended   sync.WaitGroup
	closing sync.Once

	mu      sync.Mutex // guards what the goroutine reports
	pending error      // not yet returned to the caller
	last    Entry      // the newest checkpoint known to be good
}

// NewSaver makes the folder and, on the rank of shard 0, cleans up after a run that was
// killed in it. Nothing else may be writing there.
func NewSaver(cfg SaverConfig) (*Saver, error) {
	switch {
	case cfg.Dir == "":
		return nil, errors.New("checkpoint: a saver needs a folder")
	case cfg.Keep < 0:
		return nil, fmt.Errorf("checkpoint: keep = %d must be at least 1", cfg.Keep)
	case cfg.Shard < 0:
		return nil, fmt.Errorf("checkpoint: shard = %d must be at least 0", cfg.Shard)
	case cfg.Gather == nil && cfg.Shard != 0:
		return nil, fmt.Errorf("checkpoint: the saver of shard %d needs a way to reach the one of shard 0", cfg.Shard)
	}
	if cfg.Keep == 0 {
		cfg.Keep = DefaultKeep
	}
	if err := os.MkdirAll(cfg.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("checkpoint: making the folder: %w", explain(err))
	}
	if cfg.Shard == 0 {
		if err := Clean(cfg.Dir); err != nil {
			return nil, err
		}
	}
	s := &Saver{
		cfg:    cfg,
		memory: make([]byte, 0, cfg.Snapshot),
		jobs:   make(chan SaveRequest),
		idle:   make(chan struct{}, 1),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.idle <- struct{}{}
	s.ended.Go(s.work)
	return s, nil
}

// Resumed tells the saver which checkpoint the run goes on from, for its messages.
func (s *Saver) Resumed(from Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = from
}

// Last is the newest checkpoint known to be good: committed by this Saver, or resumed
// from. ok is false where there is none. Only the rank of shard 0 commits.
func (s *Saver) Last() (e Entry, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last, s.last.Path != ""
}

// Save copies the tensors and returns; they are written in the background. If the
// save before it is still being written, Save first waits for it. With InPlace it
// returns when they are written.
//
// An error that wraps a *SaveError of an earlier step is that of an earlier save: this
// one has begun all the same. Any other error means that it has not begun.
func (s *Saver) Save(ctx context.Context, r SaveRequest) error {
	for _, t := range r.Tensors {
		if err := t.Validate(); err != nil {
			return fmt.Errorf("checkpoint: saving step %d: %w", r.Step, err)
		}
	}
	if err := s.acquire(ctx); err != nil {
		return fmt.Errorf("checkpoint: saving step %d: waiting for the save before it: %w", r.Step, err)
	}
	r.Trainer = slices.Clone(r.Trainer)
	if s.cfg.InPlace {
		s.jobs <- r
		return s.Wait(ctx)
	}
	r.Tensors = s.snapshot(r.Tensors)
	earlier := s.takePending() // before this save can add its own
	s.jobs <- r
	return earlier
}

// snapshot copies the tensors into the saver's memory.
func (s *Saver) snapshot(tensors []Tensor) []Tensor {
	s.memory = slices.Grow(s.memory[:0], int(SnapshotBytes(tensors)))
	out := slices.Clone(tensors)
	for i, t := range tensors {
		at := len(s.memory)
		s.memory = append(s.memory, t.Data...)
		out[i].Data = slices.Clip(s.memory[at:])
	}
	return out
}

var errClosed = errors.New("the saver is closed")

// acquire waits until nothing is being written.
func (s *Saver) acquire(ctx context.Context) error {
	select {
	case <-s.ctx.Done():
		return errClosed
	default:
	}
	select {
	case <-s.idle:
		return nil
	case <-s.ctx.Done():
		return errClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *Saver) takePending() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.pending
	s.pending = nil
	return err
}

// Wait waits until nothing is being written, and returns the error of the last save
// unless it has been returned before.
func (s *Saver) Wait(ctx context.Context) error {
	if err := s.acquire(ctx); err != nil {
		return fmt.Errorf("checkpoint: waiting for a save: %w", err)
	}
	s.idle <- struct{}{}
	return s.takePending()
}

// Close gives up what is being written and ends the goroutine; call Wait before it to
// finish instead. What was given up is no checkpoint, and the next NewSaver removes it.
func (s *Saver) Close() {
	s.closing.Do(func() {
		s.cancel()
		s.ended.Wait()
	})
}

func (s *Saver) work() {
	for {
		select {
		case r := <-s.jobs:
			s.finish(s.run(r))
		case <-s.ctx.Done():
			return
		}
	}
}

func (s *Saver) finish(o Outcome) {
	s.mu.Lock()
	if o.Path != "" {
		s.last = Entry{o.Step, o.Path}
	}
	if o.Err != nil {
		o.Err = &SaveError{Step: o.Step, LastGood: s.last.Path, Err: o.Err}
		s.pending = errors.Join(s.pending, o.Err)
	}
	s.mu.Unlock()
	if s.cfg.Done != nil {
		s.cfg.Done(o)
	}
	s.idle <- struct{}{}
}

func (s *Saver) run(r SaveRequest) (o Outcome) {
	began := time.Now()
	o.Step = r.Step
	o.Path, o.Bytes, o.Err = s.save(r)
	o.Took = time.Since(began)
	return o
}

// save writes the shard and, on the rank of shard 0, commits.
func (s *Saver) save(r SaveRequest) (path string, written int64, err error) {
	shard, failed := WriteShard(s.ctx, s.cfg.Dir, r.Step, s.cfg.Shard, r.Tensors)
	mine := Result{Shard: shard}
	if failed != nil {
		mine.Error = failed.Error()
	}
	all := []Result{mine}
	if s.cfg.Gather != nil {
		// All ranks must come here, whatever became of their shards.
		all, err = s.cfg.Gather(s.ctx, mine)
		if err != nil {
			err = fmt.Errorf("gathering the shards: %w", err)
		}
	}
	if err := errors.Join(failed, err); err != nil || s.cfg.Shard != 0 {
		return "", shard.Size, s.discard(r.Step, err)
	}
	shards := make([]Shard, len(all))
	for i, one := range all {
		if one.Error != "" {
			return "", shard.Size, s.discard(r.Step, fmt.Errorf("another rank failed: %s", one.Error))
		}
		shards[i] = one.Shard
	}
	path, err = Commit(s.cfg.Dir, r.Step, r.Trainer, shards)
	if err != nil {
		return "", shard.Size, s.discard(r.Step, err)
	}
	if r.Best {
		// Unmarked, the old best stays marked: then it must not be deleted, nor may this
		// one, so nothing is.
		if err := MarkBest(s.cfg.Dir, r.Step); err != nil {
			return path, shard.Size, err
		}
	}
	return path, shard.Size, Prune(s.cfg.Dir, s.cfg.Keep, r.Step)
}

// discard removes what a failed save left, once no rank is writing any more: that also
// frees a full disk. It returns the reason with whatever else went wrong.
func (s *Saver) discard(step int64, reason error) error {
	if reason == nil || s.cfg.Shard != 0 {
		return reason
	}
	return errors.Join(reason, Discard(s.cfg.Dir, step))
}
