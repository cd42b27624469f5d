package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"starling/core/checkpoint"
	"starling/core/comm"
)

// CheckpointFolder is the folder of checkpoints in a run folder.
const CheckpointFolder = "checkpoints"

// saver writes checkpoints: rank 0 alone where parameters and state are whole on every rank and gradients are not compressed,
// else each rank its part.
// A save that fails is a warning: the run goes on with its last good checkpoint.
type saver struct {
	env     *Env
	files   *checkpoint.Saver // nil where this rank writes nothing
	label   string            // of what ranks tell each other about a save
	group   *comm.Group       // by which ranks put a checkpoint together; nil where one rank writes it
	tensors []checkpoint.Tensor
	saves   int
	lastRun int // step of the last save
}

func newSaver(s *Spec, env *Env, e *engine) (*saver, error) {
	out := &saver{env: env, lastRun: -1, label: s.label("shards of a checkpoint", "checkpoint")}
	sharded := len(e.plan.Units) > 0 || e.lossy != nil && env.World > 1
	if env.RunDir == "" || s.Transient || env.Rank != 0 && !sharded {
		return out, nil
	}
	// Without checkpoint(…) in the recipe a run still saves itself at its end, when it is interrupted, when it evaluates best
	// and when a hook asks for it.
	cfg := checkpoint.SaverConfig{Dir: filepath.Join(env.RunDir, CheckpointFolder), Keep: checkpoint.DefaultKeep}
	if s.Checkpoint != nil {
		cfg.Keep = s.Checkpoint.Keep
	}
	if sharded {
		var err error
		if out.group, err = env.NewGroup("checkpoint"); err != nil {
			return nil, err
		}
		cfg.Shard, cfg.Gather = env.Rank, out.gather
	}
	tensors, err := e.tensors()
	if err != nil {
		return nil, err
	}
	out.tensors = tensors
	cfg.InPlace = s.Mesh.Offload == OffloadDisk // what has no room in memory has no room for a copy
	if !cfg.InPlace {
		cfg.Snapshot = checkpoint.SnapshotBytes(tensors)
	}
	cfg.Done = func(o checkpoint.Outcome) {
		switch {
		case o.Err != nil:
			env.Observe(Event{Kind: EventWarning, Step: int(o.Step), Text: o.Err.Error()})
		case env.Rank == 0:
			env.Observe(Event{Kind: EventCheckpoint, Step: int(o.Step), Text: o.Path})
		}
	}
	out.files, err = checkpoint.NewSaver(cfg)
	return out, err
}

// gather hands this rank's result of a save to rank 0.
func (s *saver) gather(ctx context.Context, mine checkpoint.Result) ([]checkpoint.Result, error) {
	b, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	all, err := s.group.Gather(ctx, s.label, 0, b)
	if err != nil {
		return nil, err
	}
	out := make([]checkpoint.Result, len(all))
	for r, b := range all {
		if err := json.Unmarshal(b, &out[r]); err != nil {
			return nil, fmt.Errorf("rank %d's shard: %w", r, err)
		}
	}
	return out, nil
}

// save copies the state and lets it be written in the background.
func (s *saver) save(ctx context.Context, st *State, best bool) error {
	if s.files == nil {
		return nil
	}
	if s.lastRun == st.Step { // it is there already, but may have turned out the best since
		if best && s.env.Rank == 0 {
			if err := s.wait(ctx); err != nil {
				return err
			}
			return checkpoint.MarkBest(s.dir(), int64(st.Step))
		}
		return nil
	}
	b, err := json.Marshal(st)
	if err != nil {
		return fmt.Errorf("checkpoint: trainer's state: %w", err)
	}
	s.lastRun = st.Step
	s.saves++
	return s.tolerate(s.files.Save(ctx, checkpoint.SaveRequest{Step: int64(st.Step), Tensors: s.tensors, Trainer: b, Best: best}))
}

func (s *saver) dir() string { return filepath.Join(s.env.RunDir, CheckpointFolder) }

// tolerate drops what Done has already reported.
func (s *saver) tolerate(err error) error {
	var failed *checkpoint.SaveError
	if errors.As(err, &failed) {
		return nil
	}
	return err
}

// wait returns once nothing is being written.
func (s *saver) wait(ctx context.Context) error {
	if s.files == nil {
		return nil
	}
	return s.tolerate(s.files.Wait(ctx))
}

func (s *saver) used() bool { return s.saves > 0 }

func (s *saver) close() {
	if s.files != nil {
		s.files.Close()
	}
	if s.group != nil {
		_ = s.group.Close() // nothing is on its way any more
	}
}

// resume loads the newest good checkpoint of the run folder. Rank 0 verifies every byte and tells the others which one it is.
func (l *loop) resume(ctx context.Context) error {
	dir := filepath.Join(l.env.RunDir, CheckpointFolder)
	path := ""
	var c *checkpoint.Checkpoint
	if l.env.Rank == 0 {
		var skipped []checkpoint.Skipped
		var err error
		c, skipped, err = checkpoint.Latest(ctx, dir)
		for _, s := range skipped {
			l.env.Observe(Event{Kind: EventWarning, Text: "checkpoint passed over: " + s.String()})
		}
		switch {
		case errors.Is(err, checkpoint.ErrNone):
			l.env.Observe(Event{Kind: EventWarning, Text: "no checkpoint to resume from in " + dir + ": starting at step 0"})
		case err != nil:
			return err
		default:
			path = c.Path()
		}
	}
	if l.env.World > 1 {
		if err := l.together(ctx, "rank 0's verification of the checkpoint", "checkpoint"); err != nil {
			return err
		}
		all, err := l.env.Group.AllGatherBytes(ctx, l.spec.label("checkpoint to resume from", "checkpoint"), []byte(path))
		if err != nil {
			return err
		}
		path = string(all[0])
	}
	if path == "" {
		return l.engine.initialise(l.spec.Seed)
	}
	if c == nil {
		var err error
		if c, err = checkpoint.Open(path); err != nil {
			return err
		}
	}
	defer c.Close()
	if err := l.restore(ctx, c); err != nil {
		return fmt.Errorf("resuming from %s: %w", path, err)
	}
	if l.saver.files != nil {
		l.saver.files.Resumed(checkpoint.Entry{Step: c.Step(), Path: path})
		l.saver.lastRun = l.state.Step
	}
	if l.env.Rank == 0 {
		if l.state.BestStep > 0 && int64(l.state.BestStep) == c.Step() { // the run may have died before it was marked
			if err := checkpoint.MarkBest(dir, c.Step()); err != nil {
				return err
			}
		}
		text := fmt.Sprintf("resumed from %s at step %d", path, l.state.Step)
		if l.state.Step >= l.total {
			text += ": this run had taken all its steps"
		}
		l.env.Observe(Event{Kind: EventResumed, Step: l.state.Step, Text: text})
	}
	if l.state.Unfinished != nil {
		return l.complete(ctx)
	}
	return nil
}

// restore reads parameters, optimizer state and the loop's state.
func (l *loop) restore(ctx context.Context, c *checkpoint.Checkpoint) error {
	var st State
	if err := json.Unmarshal(c.Trainer(), &st); err != nil {
		return fmt.Errorf("the trainer's state: %w", err)
	}
	upgraded, err := l.upgrades(&st)
	if err != nil {
		return err
	}
	if int64(st.Step) != c.Step() {
		return fmt.Errorf("its trainer's state is of step %d, its tensors of step %d: it was put together from two checkpoints", st.Step, c.Step())
	}
	if st.Data != l.state.Data {
		return fmt.Errorf("the training data has changed since (fingerprint %.12s, now %.12s), so the run cannot go on as it began; restore the data or start a new run", st.Data, l.state.Data)
	}
	if st.Arithmetic != "" && st.Arithmetic != l.state.Arithmetic && l.env.Rank == 0 {
		l.env.Observe(Event{Kind: EventWarning, Step: st.Step, Text: fmt.Sprintf("the run has gone to step %d with the arithmetic %q and goes on with %q, that of this processor: "+
			"its weights will be those of neither alone. Resume it on a processor of the first kind to get the same bits", st.Step, st.Arithmetic, l.state.Arithmetic)})
	}
	st.Arithmetic = l.state.Arithmetic
	if err := l.engine.loadWeights(c); err != nil {
		return err
	}
	if err := l.engine.loadState(c, upgraded); err != nil {
		return err
	}
	if err := l.engine.upgradeState(ctx, c, upgraded, st.Step-st.Skipped); err != nil {
		return err
	}
	if st.Unfinished != nil {
		if err := l.engine.loadGradients(c); err != nil {
			return err
		}
	}
	if err := l.engine.lossy.load(c); err != nil {
		return err
	}
	if st.Scale.Scale == 0 { // written before there were scales
		st.Scale = l.state.Scale
	}
	st.Digest, st.Plugins = l.state.Digest, l.state.Plugins
	l.state = st
	return nil
}
