package plan

import (
	"math/rand/v2"

	"starling/core/comm"
	"starling/core/device"
	"starling/core/device/ref"
	"starling/core/graph"
	"starling/core/tensor"
)

// world runs a plan's ranks in turn, with the communicator's sums done here, in the canonical order.
type world struct {
	t     failer
	ranks []*rank
}

type rank struct {
	plan    *Plan
	mem     device.Memory
	grads   []device.Arena
	started []int // buckets, in order
	waited  []int
}

func (r *rank) Start(in *device.Instr) error { r.started = append(r.started, in.Bucket); return nil }
func (r *rank) Wait(in *device.Instr) error  { r.waited = append(r.waited, in.Bucket); return nil }

func newWorld(t failer, g *graph.Graph, s Settings) *world {
	w := &world{t: t}
	for i := range s.World {
		s.Rank = i
		p := mustBuild(t, g, s)
		r := &rank{plan: p}
		for sp := range device.NumSpaces {
			r.mem.Arenas[sp] = w.alloc(p.ArenaBytes[sp])
			// Memory that a program reads must have been written by it: make anything else show.
			if sp == device.Work || sp == device.IO {
				poison(r.mem.Arenas[sp])
			}
		}
		for range p.GradBuffers {
			r.grads = append(r.grads, w.alloc(p.ArenaBytes[device.Grads]))
		}
		r.bindGrads(0)
		for _, q := range p.Params {
			graph.InitValues(q.ParamAttrs, 7, 0, device.View[float32](r.mem, q.Place))
		}
		w.ranks = append(w.ranks, r)
	}
	return w
}

func (w *world) alloc(n int64) device.Arena {
	a, err := ref.Open().Alloc("test", n)
	if err != nil {
		w.t.Fatal(err)
	}
	return a
}

func poison(a device.Arena) {
	for i := range a.Bytes() {
		a.Bytes()[i] = 0xff // NaN in every float type
	}
}

func (r *rank) bindGrads(k int) {
	r.mem.Arenas[device.Grads] = r.grads[k]
	r.mem.Stack = r.grads[:k+1]
}

func (w *world) bind(r *rank, segment string) *device.Bound {
	w.t.Helper()
	b, err := device.Bind(ref.Open(), r.plan.Segments[segment], r.mem)
	if err != nil {
		w.t.Fatal(err)
	}
	return b
}

func (w *world) run(r *rank, segment string, env device.Env) {
	w.t.Helper()
	env.Comm = r
	if err := w.bind(r, segment).Run(&env); err != nil {
		w.t.Fatal(err)
	}
}

// step runs one whole step. batch fills the inputs of micro-batch m.
func (w *world) step(batch func(m int) ref.Feeds, hyper [][]float64, seed float64) {
	w.t.Helper()
	for _, r := range w.ranks {
		r.started, r.waited = nil, nil
		w.microBatches(r, batch, seed)
	}
	w.reduce()
	for _, r := range w.ranks {
		r.bindGrads(0)
		w.run(r, SegmentNorm, device.Env{})
		table := device.View[float64](r.mem, r.plan.Segments[SegmentUpdate].Inputs[InputHyper])
		for g, row := range hyper {
			copy(table[g*HyperLen:], row)
		}
		w.run(r, SegmentUpdate, device.Env{})
	}
}

func (w *world) microBatches(r *rank, batch func(m int) ref.Feeds, seed float64) {
	w.t.Helper()
	lanes := r.plan.LaneSteps()
	micro := r.plan.Segments[SegmentMicro]
	for k, l := range lanes {
		r.bindGrads(l.Buffer)
		bound := w.bind(r, SegmentMicro)
		for m := l.MicroBatches.Lo; m < l.MicroBatches.Hi; m++ {
			feeds := batch(m)
			feeds[InputSeed] = scalar(seed)
			for name, o := range micro.Inputs {
				ref.Write(device.Tensor{Type: o.Type, Arena: r.mem.Arenas[device.IO], Offset: o.Offset}, feeds[name])
			}
			last := m == l.MicroBatches.Hi-1
			env := device.Env{FirstInLane: m == l.MicroBatches.Lo, LastInLane: last, LastOnRank: last && k == len(lanes)-1, Merges: l.Merges, Comm: r}
			if err := bound.Run(&env); err != nil {
				w.t.Fatal(err)
			}
			poison(r.mem.Arenas[device.Work])
		}
	}
}

// reduce adds the ranks' subtrees in tree order, in float32, and gives every rank the sum.
func (w *world) reduce() {
	if len(w.ranks) == 1 {
		return
	}
	red := w.ranks[0].plan.Reduction
	sums := map[comm.Range][]float32{}
	for i, r := range w.ranks {
		for k, n := range red.Nodes(i) {
			sums[n] = tensor.View[float32](r.grads[k].Bytes())
		}
	}
	var sum func(n comm.Range) []float32
	sum = func(n comm.Range) []float32 {
		if s, ok := sums[n]; ok {
			return s
		}
		left, right, _ := comm.Tree{Lanes: red.Lanes()}.Children(n)
		a, b := sum(left), sum(right)
		out := make([]float32, len(a))
		for i := range out {
			out[i] = a[i] + b[i]
		}
		return out
	}
	total := append([]float32(nil), sum(comm.Tree{Lanes: red.Lanes()}.Root())...)
	for _, r := range w.ranks {
		copy(tensor.View[float32](r.grads[0].Bytes()), total)
	}
}

// read returns a copy of a place's values.
func (r *rank) read(o device.Operand) *graph.Array {
	return ref.Read(device.Tensor{Type: o.Type, Arena: r.mem.Arenas[o.Space], Offset: o.Offset})
}

func scalar(v float64) *graph.Array {
	return &graph.Array{Type: graph.Type{DType: tensor.F32, Shape: tensor.Shape{}}, Data: []float64{v}}
}

// randomBatch makes values for the inputs of a graph: tokens below limit, features around 0.
func randomBatch(g *graph.Graph, m, limit int) ref.Feeds {
	r := rand.New(rand.NewPCG(11, uint64(m)))
	feeds := ref.Feeds{}
	for _, n := range g.Inputs() {
		a := graph.NewArray(n.Out[0].Type)
		for i := range a.Data {
			switch a.DType {
			case tensor.F32:
				a.Data[i] = float64(float32(r.NormFloat64()))
			case tensor.U32:
				a.Data[i] = []float64{3, 4, 5, float64(m)}[i%4]
			default:
				a.Data[i] = float64(r.IntN(limit))
			}
		}
		feeds[n.Attrs.(graph.InputAttrs).Name] = a
	}
	return feeds
}
