package device

import (
	"fmt"
	"time"

	"starling/core/graph"
	"starling/core/tensor"
)

// Memory is the arenas that a segment is bound to. Grads is the gradient buffer that the segment writes;
// Fold additionally needs the buffers below it in the stack, Stack[0] to Stack[k], Grads being the last.
type Memory struct {
	Arenas [NumSpaces]Arena
	Stack  []Arena
}

// Communicator runs the collectives of a program. Start must not wait for other ranks.
type Communicator interface {
	Start(in *Instr) error
	Wait(in *Instr) error
}

// Env is what changes from one run of a bound segment to the next.
type Env struct {
	FirstInLane, LastInLane, LastOnRank bool
	// Merges is how many times the top of the stack of gradient buffers is added into the buffer below
	// it once this lane is finished.
	Merges int
	// Idle runs the collectives of the segment alone: this rank has no work in this run, but other ranks need its part.
	Idle bool
	Comm Communicator
	// Renew is told by Renew instructions, in an idle run too, that what a bucket completes may be updated from now on.
	Renew func(bucket int)
	// Between, if set, is called behind each instruction that has run, for what is to be done as soon as it can be.
	Between func() error
	// Trace, if set, is told when each instruction ran.
	Trace func(in *Instr, start, end time.Time)
}

// Bound is a segment with its kernels made.
type Bound struct {
	Segment *Segment
	steps   []step
	copies  map[int]*copying // by number
}

type step struct {
	in    *Instr
	first func() // the kernel, or its form for the first micro-batch of a lane
	next  func() // the accumulating form, or nil
	folds []func()
}

// Bind makes every kernel of a segment. Errors name the instruction, its block and its recipe position.
func Bind(dev Device, seg *Segment, mem Memory) (*Bound, error) {
	b := &Bound{Segment: seg, steps: make([]step, 0, len(seg.Instrs)), copies: map[int]*copying{}}
	for i := range seg.Instrs {
		in := &seg.Instrs[i]
		s, err := b.bindInstr(dev, in, mem)
		if err != nil {
			return nil, fmt.Errorf("segment %s, instruction %d%s: %w", seg.Name, i, where(in), err)
		}
		b.steps = append(b.steps, s)
	}
	return b, nil
}

func where(in *Instr) string {
	if in.Node == nil {
		return ""
	}
	s := " (" + in.Node.Op.Name
	if in.Node.Block != "" {
		s += " in block " + in.Node.Block
	}
	if p := in.Node.Pos.String(); p != "" {
		s += ", " + p
	}
	return s + ")"
}

func (b *Bound) bindInstr(dev Device, in *Instr, mem Memory) (step, error) {
	s := step{in: in}
	switch in.Kind {
	case Kernel:
		c := Call{Op: in.Op, Attrs: in.Attrs}
		for _, o := range in.In {
			t, err := mem.place(o)
			if err != nil {
				return s, err
			}
			c.In = append(c.In, t)
		}
		for _, o := range in.Out {
			t, err := mem.place(o)
			if err != nil {
				return s, err
			}
			c.Out = append(c.Out, t)
		}
		var err error
		if s.first, err = dev.Bind(c); err != nil {
			return s, err
		}
		if in.Accum {
			if !in.Op.Accumulates {
				return s, fmt.Errorf("operation %s cannot accumulate into its result", in.Op.Name)
			}
			c.Accum = true
			s.next, err = dev.Bind(c)
		}
		return s, err
	case Round:
		t, err := mem.place(in.Out[0])
		if err != nil {
			return s, err
		}
		s.first, err = bindRounding(dev, in.Rounding, t)
		return s, err
	case Fold:
		add, err := graph.Lookup("accumulate")
		if err != nil {
			return s, err
		}
		o := in.Out[0]
		for k := len(mem.Stack) - 1; k > 0; k-- {
			below := Tensor{o.Type, mem.Stack[k-1], o.Offset}
			top := Tensor{o.Type, mem.Stack[k], o.Offset}
			f, err := dev.Bind(Call{Op: add, In: []Tensor{below, top}, Out: []Tensor{below}})
			if err != nil {
				return s, err
			}
			if in.Rounding != tensor.Invalid {
				round, err := bindRounding(dev, in.Rounding, below)
				if err != nil {
					return s, err
				}
				sum := f
				f = func() { sum(); round() }
			}
			s.folds = append(s.folds, f)
		}
		return s, nil
	case Copy, Copied:
		var err error
		s.first, err = b.bindCopy(dev, in, mem)
		return s, err
	}
	return s, nil
}

// bindRounding makes what rounds a tensor in place.
func bindRounding(dev Device, to tensor.DType, t Tensor) (func(), error) {
	return dev.Bind(Call{Op: graph.OpRoundTo, Attrs: graph.RoundAttrs{To: to}, In: []Tensor{t}, Out: []Tensor{t}})
}

func (m Memory) place(o Operand) (Tensor, error) {
	a := m.Arenas[o.Space]
	if a == nil {
		return Tensor{}, fmt.Errorf("no %v arena", o.Space)
	}
	if o.Offset < 0 || o.Offset%Align != 0 || o.Offset+o.Type.Bytes() > a.Size() {
		return Tensor{}, fmt.Errorf("operand %v at %v+%d lies outside the arena of %d bytes or is not aligned", o.Type, o.Space, o.Offset, a.Size())
	}
	return Tensor{o.Type, a, o.Offset}, nil
}

// View returns the host's view of an IO place of the segment, which must exist there.
func View[T tensor.Element](mem Memory, o Operand) []T {
	return tensor.View[T](mem.Arenas[o.Space].Bytes()[o.Offset : o.Offset+o.Type.Bytes()])
}

// Run executes the segment. Only the communicator and Env.Between can fail.
func (b *Bound) Run(env *Env) error { return b.RunPart(env, 0, len(b.steps)) }

// RunPart executes the instructions from number lo up to hi.
func (b *Bound) RunPart(env *Env, lo, hi int) error {
	err := b.run(env, b.steps[lo:hi])
	if err != nil {
		b.awaitCopies() // whose memory may be freed next
	}
	return err
}

func (b *Bound) run(env *Env, steps []step) error {
	for i := range steps {
		s := &steps[i]
		if s.in.When == LastInLane && !env.LastInLane || s.in.When == LastOnRank && !env.LastOnRank {
			continue
		}
		if env.Idle && s.in.Kind != Start && s.in.Kind != Wait && s.in.Kind != Renew {
			continue
		}
		var t0 time.Time
		if env.Trace != nil {
			t0 = time.Now()
		}
		switch s.in.Kind {
		case Kernel:
			if s.next != nil && !env.FirstInLane {
				s.next()
			} else {
				s.first()
			}
		case Round, Copy, Copied:
			s.first()
		case Fold:
			for _, f := range s.folds[:env.Merges] {
				f()
			}
		case Start:
			if err := env.Comm.Start(s.in); err != nil {
				return err
			}
		case Wait:
			if err := env.Comm.Wait(s.in); err != nil {
				return err
			}
		case Renew:
			env.Renew(s.in.Bucket)
		}
		if env.Trace != nil {
			env.Trace(s.in, t0, time.Now())
		}
		if env.Between != nil {
			if err := env.Between(); err != nil {
				return err
			}
		}
	}
	return nil
}
