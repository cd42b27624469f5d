package train

import (
	"context"
	"fmt"
	"math"
	"slices"

	"starling/core/comm"
	"starling/core/compress"
	"starling/core/device"
	"starling/core/optim"
	"starling/core/plan"
	"starling/core/plugin"
	"starling/core/tensor"
	"starling/sdk/vec"
)

// compressible refuses a compression of gradients that cannot work with the rest of the spec, and says why.
func (s *Spec) compressible() error {
	c := s.Mesh.Compress
	if !c.Active() {
		return nil
	}
	name := "compress." + string(c.Kind)
	if x, ok := c.External.(*plugin.Compressor); ok {
		name = fmt.Sprintf("plugin.compressor(%q)", x.Use.Name)
	}
	if err := c.Validate(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if _, fast, err := s.Mesh.algorithm(); fast && err == nil {
		return fmt.Errorf("%s with parallel.mesh(reduction = %q): compressed gradients have a way of their own, by the owners of chunks; leave reduction away", name, s.Mesh.Reduction)
	}
	if s.Reduce != "" {
		return fmt.Errorf("%s with reduce_dtype = %q: compressed gradients are added in float32 by their owners; use one of the two", name, s.Reduce)
	}
	switch {
	case c.Kind == compress.PowerSGD && s.Mesh.Zero >= 2:
		return fmt.Errorf("compress.powersgd with parallel.mesh(zero = %d): it adds factors of whole matrices on every rank, and gradients that are sharded are whole on none; use zero = 1 or 0, or compress.int8()", s.Mesh.Zero)
	case c.Kind == compress.DGC && s.Mesh.Zero >= 2:
		return fmt.Errorf("compress.dgc with parallel.mesh(zero = %d): its momentum takes a rank's whole gradient once a step, and gradients that are sharded leave lane by lane; use zero = 1 or 0, or compress.int8()", s.Mesh.Zero)
	case c.Kind == compress.TopK && s.Mesh.Zero >= 2:
		return fmt.Errorf("compress.topk with parallel.mesh(zero = %d): sharded gradients leave lane by lane, before anybody knows how many targets the step has, and what is left of earlier steps would be scaled by that; use zero = 1 or 0, or compress.int8()", s.Mesh.Zero)
	case c.Kind != compress.DGC:
		return nil
	}
	o, ok := s.Optimizer.(optim.SGD)
	switch {
	case !ok || o.Momentum == 0:
		return fmt.Errorf("compress.dgc works with momentum SGD alone, optim.sgd(…, momentum = 0.9): each rank accumulates the momentum itself and sends the largest elements of it; for another optimizer use compress.topk(…) or compress.int8()")
	case o.Dampening != 0:
		return fmt.Errorf("compress.dgc with optim.sgd(dampening = %v): its momentum has no dampening; use dampening = 0", o.Dampening)
	case s.ClipNorm != 0 || s.ClipValue != 0:
		return fmt.Errorf("compress.dgc with clip_norm or clip_value: what ranks send are sums of many steps' gradients, which clipping would cut short; use compress.dgc(clip = %v), which clips each rank's gradient first", max(s.ClipNorm, s.ClipValue))
	}
	return nil
}

// compression is the spec's, with what it takes from the optimizer and the loss scale.
func (s *Spec) compression() compress.Config {
	c := s.Mesh.Compress
	if o, ok := s.Optimizer.(optim.SGD); ok && c.Kind == compress.DGC {
		c.Momentum, c.Nesterov = o.Momentum, o.Nesterov
	}
	c.Transactional = c.Active() && s.LossScale.Active()
	return c
}

// applied is the optimizer as it runs. Under DGC the momentum is in the gradient already; weight decay, which is not, gets the
// strength to which momentum would amplify it.
func (s *Spec) applied() optim.Optimizer {
	o, ok := s.Optimizer.(optim.SGD)
	if !ok || s.Mesh.Compress.Kind != compress.DGC {
		return s.Optimizer
	}
	amplify := 1 / (1 - o.Momentum)
	o.WeightDecay *= amplify
	list := o.ParamGroups
	o.ParamGroups = nil
	for _, g := range list {
		if g.WeightDecay != nil {
			d := *g.WeightDecay * amplify
			g.WeightDecay = &d
		}
		o.ParamGroups = append(o.ParamGroups, g)
	}
	o.Momentum, o.Nesterov = 0, false
	return o
}

// compression is what a rank keeps to compress its gradients, of all buckets. A nil one compresses nothing.
type compression struct {
	env     *Env
	cfg     compress.Config
	buckets []lossyBucket
	of      []int         // the place in buckets of each of the plan's, -1 for one that travels as it is
	rounds  bool          // gradients leave in rounds of lanes
	coder   *plugin.Coder // of a foreign method, or nil
	held    []exchange
	room    []float32

	// weight is that of this rank's micro-batches so far; its sum over the ranks makes a gradient a mean, and is exchanged ahead of the
	// first bucket: elements 2r and 2r+1 of weights are the float64 of rank r.
	weight  func() float64
	weights []float32
	weigh   *comm.Collective
	weighed *comm.Handle
	divided bool
	seed    float64 // of the backward pass
	by      float64 // what the gradient is divided by
}

// lossyBucket is one bucket's.
type lossyBucket struct {
	bucket plan.Bucket
	grads  []plan.GradientPlace
	empty  [][2]int    // the elements of the bucket that belong to no gradient
	own    [][]float32 // this rank's sums over its subtrees of lanes
	at     comm.Compressing
	stored comm.Range // of what at.Parts make up, what a checkpoint has from this rank: ranks of a host may hold the same
	state  lossyState
	stream *compress.Stream // one of the two is nil
	factor *compress.Factors
	// total is where the sum of at.Chunk is after a step.
	total []float32
}

// lossyState is what a stream and factors have in common.
type lossyState interface {
	Begin(update int, by float64)
	Divide(by float64)
	Commit()
	Absorb(own []float32)
	Restore(sum []float32, lo int)
	Rest() []float32
}

func newCompression(s *Spec, env *Env, p *plan.Plan, grads []device.Arena, weight func() float64) (*compression, error) {
	if !p.Settings.Compress.Active() {
		return nil, nil
	}
	z := &compression{env: env, cfg: p.Settings.Compress, rounds: p.Rounds != nil, weight: weight}
	if err := z.openCoder(p, s.pluginTimeout()); err != nil {
		return nil, err
	}
	if env.World > 1 && !z.rounds {
		var chunks []comm.Range
		for r := range env.World {
			chunks = append(chunks, comm.Range{Lo: 2 * r, Hi: 2*r + 2})
		}
		z.weights = make([]float32, 2*env.World)
		var err error
		if z.weigh, err = env.Group.PrepareAllGather(s.label("weights of the step", "mesh"), chunks, z.weights); err != nil {
			return nil, err
		}
	}
	nodes := len(p.Reduction.Nodes(env.Rank))
	if p.Rounds != nil {
		nodes = 1
	}
	z.of = make([]int, len(p.Buckets))
	for i, b := range p.Buckets {
		z.of[i] = len(z.buckets)
		if b.Buffers {
			z.of[i] = -1
			continue
		}
		k := lossyBucket{bucket: b, grads: p.GradientPlaces(b)}
		for i := range nodes {
			m := device.Memory{}
			m.Arenas[device.Grads] = grads[i]
			k.own = append(k.own, device.View[float32](m, b.Place))
		}
		n := len(k.own[0])
		k.empty = k.gaps(comm.Range{Hi: n})
		k.at = p.Compressing(b)
		k.stored = comm.Range{Hi: k.at.Len()}
		owned := 0
		switch h := p.Settings.Hosting(); {
		case z.cfg.Kind == compress.PowerSGD:
			k.stored = comm.Chunks(n, h.Each, comm.ChunkAlign)[h.Place()]
		case b.Unit < 0 && env.World > 1:
			owned = k.at.Chunk.Len()
		}
		k.total = k.own[0][k.at.Chunk.Lo:k.at.Chunk.Hi]
		switch {
		case z.cfg.Kind == compress.PowerSGD:
			k.factor = compress.NewFactors(z.cfg, n, p.Matrices(b))
			k.state = k.factor
		case z.cfg.Kind == compress.Foreign:
			k.stream = compress.NewForeign(z.cfg, z.coder, k.at.Len(), owned, k.at.At(), k.gaps(k.at.Parts...))
			k.state = k.stream
		default:
			k.stream = compress.NewStream(z.cfg, k.at.Len(), owned)
			k.state = k.stream
		}
		z.buckets = append(z.buckets, k)
	}
	return z, nil
}

// weighing is a stream that learns what to divide by before it sends.
type weighing struct {
	*compress.Stream
	z *compression
}

func (w weighing) Send(dst []byte, own [][]float32, at int) error {
	w.z.divide()
	return w.Stream.Send(dst, own, at)
}

// divide makes the gradient a mean, once the weights are here.
func (z *compression) divide() {
	if z.divided || z.rounds {
		return
	}
	total := 0.0
	for r := range z.env.World {
		total += tensor.View[float64](tensor.Bytes(z.weights))[r]
	}
	z.divideBy(float64(z.seed * total))
}

func (z *compression) divideBy(by float64) {
	z.divided = true
	if !(by > 0) || math.IsInf(by, 0) { // nothing counts, or the run is about to end
		by = 1
	}
	z.by = by
	for i := range z.buckets {
		z.buckets[i].state.Divide(by)
	}
}

// hosted reports whether ranks of a host add before anything is compressed.
func (z *compression) hosted() bool { return z.buckets[0].at.Contributors < z.env.World }

// takes reports whether a bucket's gradient is compressed.
func (z *compression) takes(bucket int) bool { return z != nil && z.of[bucket] >= 0 }

// start hands a bucket over, behind the step's weights.
func (z *compression) start(bucket int, x exchange, round int) {
	z.buckets[z.of[bucket]].clearGaps()
	if z.weigh != nil && z.weighed == nil {
		tensor.View[float64](tensor.Bytes(z.weights))[z.env.Rank] = z.weight()
		z.weighed = z.weigh.Start()
	}
	if z.cfg.Clip == 0 {
		x.start(round)
		return
	}
	z.held = append(z.held, x)
}

// sum prepares compressed sums of a bucket.
func (z *compression) sum(g *comm.Group, b plan.Bucket, parts bucketParts) preparer {
	k := &z.buckets[z.of[b.Index]]
	if parts.sums != nil {
		k.total = parts.sums[0]
	}
	return func(label string, red *comm.Reduction, chunks []comm.Range, own [][]float32, dst []float32) (*comm.Collective, error) {
		switch {
		case k.factor != nil:
			dst := own[0]
			return g.PrepareSums(label, red, own, func(own [][]float32, sum func([]float32) error) error {
				z.divide()
				return k.factor.Sum(own, dst, sum)
			})
		case chunks == nil:
			return g.PrepareAllReduceCompressed(label, red, own, dst, weighing{k.stream, z})
		}
		return g.PrepareReduceScatterCompressed(label, red, chunks, own, dst, weighing{k.stream, z})
	}
}

// begin starts a step that tries to be update number update. The backward pass is seeded with the loss's scale over the nominal
// weight.
func (z *compression) begin(update int, scale, seed float64) {
	if z == nil {
		return
	}
	z.held, z.weighed, z.divided, z.seed, z.by = z.held[:0], nil, false, seed, scale
	for i := range z.buckets {
		z.buckets[i].state.Begin(update, scale)
	}
}

// remaining is what is left of a factor that the sum of the gradient is to be multiplied by.
func (z *compression) remaining(factor float64) float64 {
	if z.rounds {
		return float64(factor * z.by)
	}
	return 1
}

// commit makes a step's effects last: it was taken.
func (z *compression) commit() {
	if z == nil {
		return
	}
	for i := range z.buckets {
		z.buckets[i].state.Commit()
	}
}

// takeBack returns what a step has delivered to what is not sent: no parameter is updated with it.
func (z *compression) takeBack() {
	if z == nil {
		return
	}
	for i := range z.buckets {
		k := &z.buckets[i]
		if z.env.World > 1 {
			k.state.Restore(k.total, k.at.At())
		}
	}
	z.commit()
}

// alone is the compression of a rank that has no others: nothing is left out, and what more ranks had left is added. weight is
// the step's.
func (z *compression) alone(weight float64) {
	if z == nil || z.env.World > 1 {
		return
	}
	z.divideBy(float64(z.seed * weight))
	z.clip()
	for i := range z.buckets {
		z.buckets[i].state.Absorb(z.buckets[i].own[0])
	}
}

// clearGaps zeroes what lies between a bucket's gradients and behind them. Memory that held something else before (with zero = 3 the
// blocks' gradients share theirs) leaves anything there, which would coarsen the scales of neighbours, take the place of elements that
// are sent, and stay in what is not sent, of which checkpoints have the gradients' elements alone.
func (k *lossyBucket) clearGaps() {
	for _, g := range k.empty {
		for _, own := range k.own {
			clear(own[g[0]:g[1]])
		}
	}
}

// gaps lists the elements of parts of a bucket that belong to no gradient, counted through the parts one behind the other.
func (k *lossyBucket) gaps(parts ...comm.Range) (out [][2]int) {
	from := 0 // where the part begins in that count
	for _, part := range parts {
		gap := func(lo, hi int) {
			if lo, hi = max(lo, part.Lo), min(hi, part.Hi); lo < hi {
				out = append(out, [2]int{from + lo - part.Lo, from + hi - part.Lo})
			}
		}
		at := 0
		for _, g := range k.grads {
			gap(at, g.At)
			at = g.At + g.Size
		}
		gap(at, part.Hi)
		from += part.Len()
	}
	return out
}

// release clips and starts the buckets that wait for each other, once all are here: to clip a gradient takes all of it.
func (z *compression) release(ctx context.Context) error {
	if z == nil || len(z.held) < len(z.buckets) {
		return nil
	}
	if err := z.weighed.Wait(ctx); err != nil {
		return err
	}
	z.divide()
	z.clip()
	for _, x := range z.held {
		x.start(0)
	}
	z.held = z.held[:0]
	return nil
}

// clip bounds the norm of this rank's part of the gradient.
func (z *compression) clip() {
	if z.cfg.Clip == 0 {
		return
	}
	norm := math.Sqrt(z.squares()) / z.by
	limit := z.cfg.Clip / math.Sqrt(float64(z.env.World))
	if !(norm > limit) || math.IsInf(norm, 0) {
		return
	}
	for _, k := range z.buckets {
		for _, g := range k.own {
			vec.Scale(g, g, float32(limit/norm))
		}
	}
}

// squares adds the squares of this rank's part of the gradient; the uses of a parameter count as their sum.
func (z *compression) squares() float64 {
	total := 0.0
	for i := range z.buckets {
		for _, g := range z.buckets[i].grads {
			if g.Use > 0 {
				continue
			}
			uses := len(g.Param.Uses)
			if uses == 1 && len(z.buckets[i].own) == 1 {
				total += vec.SumSq64(z.buckets[i].own[0][g.At : g.At+g.Size])
				continue
			}
			z.room = slices.Grow(z.room[:0], g.Size)[:g.Size]
			clear(z.room)
			for use := range uses {
				for _, v := range z.uses(plan.Gradient{Param: g.Gradient.Param, Use: use}) {
					vec.AddTo(z.room, v)
				}
			}
			total += vec.SumSq64(z.room)
		}
	}
	return total
}

// uses returns this rank's sums of one use of a parameter.
func (z *compression) uses(want plan.Gradient) [][]float32 {
	var out [][]float32
	for _, k := range z.buckets {
		for _, g := range k.grads {
			if g.Gradient == want {
				for _, own := range k.own {
					out = append(out, own[g.At:g.At+g.Size])
				}
			}
		}
	}
	return out
}
