package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"starling/core/comm"
	"starling/core/device"
	"starling/core/graph"
)

// Summary is what a person asks of a plan before starting the run. Times and the memory outside the arenas are not the
// plan's business.
type Summary struct {
	// Parameters counts elements; Trained those that the optimizer updates.
	Parameters, Trained int64
	// Buffers counts the elements of buffers, which are no parameters.
	Buffers int64
	// ForwardFLOPs and BackwardFLOPs are the arithmetic of one micro-batch, StepFLOPs that of this rank in one step.
	ForwardFLOPs, BackwardFLOPs, StepFLOPs int64
	// Stage is what is sharded over the ranks: Settings.Zero, 0 on one rank.
	Stage int
	// Arenas is the memory of each space on this rank; Grads and Sums count every buffer of their stacks.
	Arenas [device.NumSpaces]int64
	// StagingBytes is what the communicator needs for subtrees of other ranks while it adds them.
	StagingBytes int64
	// PeakAt says where in a micro-batch the most activations live: the block and the operation.
	PeakAt string
	// GatheredBytes is the part of Work for parameters that are gathered while they are needed.
	GatheredBytes int64
	// LeastWorkBytes is the most that ever lives in Work at one time: no placement could need less.
	LeastWorkBytes int64
	// GradientBytes is the size of the gradient, with the padding of its buckets, and SentBytes what this rank sends in a
	// step: 2(N-1)/N of it where its lanes are one aligned range, more where they fall into several subtrees or where each
	// finished lane leaves for its owners. GatherSentBytes is the part of it that completes parameters.
	GradientBytes, SentBytes, GatherSentBytes int64
	// CrossingBytes is the part of SentBytes that leaves the host, where hosts add before gradients are compressed, else 0.
	CrossingBytes int64
	// Subtrees is how many partial sums this rank sends for each bucket.
	Subtrees int
	// MicroBatches of this rank in a step, and of the busiest rank.
	MicroBatches, MostMicroBatches int
	// Imbalance is how much longer a step takes than with an even spread: the busiest rank's share over the mean, minus 1.
	Imbalance float64

	// CompressionBytes is the memory that compressing gradients takes: what is not sent yet, and buffers.
	CompressionBytes int64
	// UnsentBytes is the part of it that a checkpoint holds.
	UnsentBytes int64

	world, buckets, rounds, sums int
	shard                        int // ranks that keep one copy of the parameters, where they are not all
	passing                      bool
	compressed                   string                 // how, or ""
	algorithms                   map[comm.Algorithm]int // outside the canonical order, how many buckets each sums over connections
	denseBytes                   int64                  // what would be sent of gradients without it, where it is compressed
	insideBytes                  int64                  // what is sent of them as it is, to ranks of the same host
}

// Summary computes the plan's figures.
func (p *Plan) Summary() Summary {
	s := Summary{world: p.Settings.World, buckets: len(p.Buckets), Arenas: p.ArenaBytes, Stage: p.Settings.stage(), rounds: len(p.Rounds), sums: p.SumBuffers, passing: p.Settings.passing()}
	for _, b := range p.Buckets {
		s.GradientBytes += b.Place.Bytes()
	}
	if p.Settings.Hybrid() {
		s.shard = p.Settings.Shard
	}
	s.Arenas[device.Grads] *= int64(p.GradBuffers)
	s.Arenas[device.Sums] *= int64(p.SumBuffers)
	for i := range p.Params {
		q := &p.Params[i]
		n := int64(q.Whole.Shape.Numel())
		switch {
		case q.Buffer:
			s.Buffers += n
			continue
		case q.Trained():
			s.Trained += n
		}
		s.Parameters += n
	}
	s.spread(p)
	s.communication(p)
	s.arithmetic(p)
	return s
}

func (s *Summary) spread(p *Plan) {
	for r := range p.Settings.World {
		n := len(p.Schedule(r))
		if r == p.Settings.Rank {
			s.MicroBatches = n
		}
		s.MostMicroBatches = max(s.MostMicroBatches, n)
	}
	mean := float64(p.Settings.MicroBatches) / float64(p.Settings.World)
	s.Imbalance = float64(s.MostMicroBatches)/mean - 1
}

func (s *Summary) communication(p *Plan) {
	s.Subtrees = len(p.Reduction.Nodes(p.Settings.Rank))
	if p.Settings.World == 1 {
		if p.Settings.Compress.Active() {
			s.compression(p)
		}
		return
	}
	rank := p.Settings.Rank
	var exact Summary // of buffers alone, which are not compressed
	for _, b := range p.Buckets {
		if b.Buffers {
			exact.dense(p, b)
		}
		s.dense(p, b)
	}
	if p.Settings.Compress.Active() {
		s.denseBytes, s.SentBytes, s.StagingBytes = exact.SentBytes, exact.SentBytes, exact.StagingBytes
		s.compression(p)
		s.CrossingBytes = s.SentBytes
		s.SentBytes += s.insideBytes
	}
	gathers := func(segment string) (bytes, crossing int64) {
		for i := range p.Segments[segment].Instrs {
			if in := &p.Segments[segment].Instrs[i]; in.Kind == device.Start && in.Collective == AllGather {
				u := p.Units[in.Bucket]
				switch hybrid := p.Settings.Hybrid(); {
				case hybrid && in.Group == ShardGroup:
					bytes += int64(len(p.Settings.ShardRanks())-1) * p.vector(u, u.Held.Len()).Bytes()
				case hybrid && in.Group == ReplicaGroup:
					bytes += int64(len(p.Settings.ReplicaRanks())-1) * p.vector(u, u.Chunks[rank].Len()).Bytes()
				default:
					all, between := p.gathered(u)
					bytes, crossing = bytes+all*p.vector(u, 1).Bytes(), crossing+between*p.vector(u, 1).Bytes()
				}
			}
		}
		return bytes, crossing
	}
	runs := 0
	for _, r := range p.Rounds {
		runs += r.Runs
	}
	once, crossed := gathers(SegmentUpdate)
	each, crossing := gathers(SegmentMicro)
	s.GatherSentBytes = once + int64(runs)*each
	s.SentBytes += s.GatherSentBytes
	if s.CrossingBytes += crossed + int64(runs)*crossing; p.Settings.PerHost <= 1 || !p.Settings.Compress.Active() {
		s.CrossingBytes = 0
	}
	for _, l := range p.lowered {
		s.GatheredBytes = max(s.GatheredBytes, l.gatherBytes)
	}
}

// gathered is how many elements this rank sends to complete a unit: its chunk to every other host, and to the others of its own host
// whatever comes to the ranks at its place.
func (p *Plan) gathered(u *Unit) (all, between int64) {
	h := p.Settings.Hosting()
	between = int64((h.Hosts() - 1) * u.Chunks[h.Rank].Len())
	all = between
	for host := range h.Hosts() {
		all += int64((h.Each - 1) * u.Chunks[host*h.Each+h.Place()].Len())
	}
	return all, between
}

// dense counts a bucket that is not compressed.
func (s *Summary) dense(p *Plan, b Bucket) {
	rank, red := p.Settings.Rank, p.ReductionFor(b, p.Reduction)
	if p.Settings.Fast {
		s.fast(p, b)
		return
	}
	if b.Unit < 0 {
		chunks := comm.Chunks(b.Place.Shape.Numel(), p.Settings.World, comm.ChunkAlign)
		s.SentBytes += int64(red.SentBytes(rank, chunks))
		s.stage(red, rank, chunks)
		return
	}
	chunks := p.Units[b.Unit].Chunks
	others := p.sumBytes(b) * int64(b.Place.Shape.Numel()-chunks[rank].Len())
	if p.Rounds == nil {
		s.SentBytes += int64(len(p.Reduction.Nodes(rank))) * others
		s.stage(red, rank, chunks)
	}
	for _, r := range p.Rounds {
		for _, sum := range r.Sums {
			s.stage(p.ReductionFor(b, sum.Reduction), rank, chunks)
			if lane := r.Lanes.Lo + rank; sum.Node.Lo <= lane && lane < sum.Node.Hi {
				s.SentBytes += others
			}
		}
	}
}

// fast counts a bucket that is summed outside the canonical order, over connections.
func (s *Summary) fast(p *Plan, b Bucket) {
	n, rank := b.Place.Shape.Numel(), p.Settings.Rank
	a := p.Settings.Algorithm.Over(p.Settings.World, 4*n)
	chunks := comm.Chunks(n, p.Settings.World, comm.ChunkAlign)
	if b.Unit >= 0 {
		chunks = p.Units[b.Unit].Chunks
	}
	s.SentBytes += int64(a.SentBytes(rank, chunks, b.Unit < 0))
	s.StagingBytes = max(s.StagingBytes, int64(a.StagingBytes(rank, chunks)))
	if s.algorithms == nil {
		s.algorithms = map[comm.Algorithm]int{}
	}
	s.algorithms[a]++
}

// way names the algorithms of a sum outside the canonical order.
func (s Summary) way() string {
	var parts []string
	for _, a := range slices.Sorted(maps.Keys(s.algorithms)) {
		parts = append(parts, fmt.Sprintf("%v for %d", a, s.algorithms[a]))
	}
	return strings.Join(parts, ", ")
}

func (s *Summary) stage(red *comm.Reduction, rank int, chunks []comm.Range) {
	s.StagingBytes = max(s.StagingBytes, int64(red.StagingBytes(rank, chunks, 0)))
}

func (s *Summary) arithmetic(p *Plan) {
	var folds int64
	for i := range p.Segments[SegmentMicro].Instrs {
		switch in := &p.Segments[SegmentMicro].Instrs[i]; {
		case in.Kind == device.Fold:
			folds += in.FLOPs
		case in.Node != nil && isBackward(in.Node):
			s.BackwardFLOPs += in.FLOPs
		default:
			s.ForwardFLOPs += in.FLOPs
		}
	}
	merges := 0
	for _, l := range p.LaneSteps() {
		merges += l.Merges
	}
	s.StepFLOPs = int64(s.MicroBatches)*(s.ForwardFLOPs+s.BackwardFLOPs) + int64(merges)*folds
	for _, name := range []string{SegmentNorm, SegmentClip, SegmentUpdate} {
		if seg := p.Segments[name]; seg != nil {
			for _, in := range seg.Instrs {
				s.StepFLOPs += in.FLOPs
			}
		}
	}
	for _, l := range p.lowered {
		if l.name == SegmentMicro && l.peak != nil {
			s.PeakAt = peakAt(l.peak)
		}
		s.LeastWorkBytes = max(s.LeastWorkBytes, l.leastWork)
	}
}

func peakAt(n *graph.Node) string {
	where := n.Op.Name
	if n.Block != "" {
		where = n.Block + ", " + where
	}
	if isBackward(n) {
		return where + ", in the backward pass"
	}
	return where + ", in the forward pass"
}

// MemoryBytes is the sum of the arenas and the communicator's staging memory, without what waits off the device.
func (s Summary) MemoryBytes() int64 {
	total := s.StagingBytes + s.CompressionBytes
	for sp, n := range s.Arenas {
		if device.Space(sp) != device.Offload {
			total += n
		}
	}
	return total
}

// Line is the summary in one line.
func (s Summary) Line() string {
	line := fmt.Sprintf("%s parameters, %s a step, %s of planned memory", countString(s.Parameters), flopsString(s.StepFLOPs), bytesString(s.MemoryBytes()))
	if s.world > 1 {
		line += fmt.Sprintf(", %s sent a step by each of %d ranks", bytesString(s.SentBytes), s.world)
	}
	return line
}

// String is the summary as a short table.
func (s Summary) String() string {
	var b strings.Builder
	row := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-20s %s\n", name, fmt.Sprintf(format, args...))
	}
	row("parameters", "%s (%d), %d trained", countString(s.Parameters), s.Parameters, s.Trained)
	if s.Buffers > 0 {
		row("buffers", "%d elements, averaged over steps", s.Buffers)
	}
	row("arithmetic", "%s a micro-batch (%s forward, %s backward), %s a step of this rank",
		flopsString(s.ForwardFLOPs+s.BackwardFLOPs), flopsString(s.ForwardFLOPs), flopsString(s.BackwardFLOPs), flopsString(s.StepFLOPs))
	row("memory of a rank", "%s planned", bytesString(s.MemoryBytes()))
	for sp := range device.NumSpaces {
		extra := ""
		if s.Arenas[sp] == 0 && (sp == device.Sums || sp == device.Offload) {
			continue
		}
		if sp == device.Offload {
			extra = "  (activations that wait off the device; not counted)"
		}
		if sp == device.Sums {
			extra = fmt.Sprintf("  (this rank's part of the gradient, %d deep)", s.sums)
		}
		if sp == device.Grads && s.passing {
			extra = "  (two buckets at a time on their way to their owners)"
		}
		if sp == device.Work && s.GatheredBytes > 0 {
			extra = fmt.Sprintf("  (%s of it parameters gathered while they are used)", bytesString(s.GatheredBytes))
		}
		if n := s.Arenas[sp]; sp == device.Grads && s.GradientBytes > 0 && n > s.GradientBytes {
			extra = fmt.Sprintf("  (%d buffers of %s, to add lanes in tree order)", n/s.GradientBytes, bytesString(s.GradientBytes))
		}
		row("  "+sp.String(), "%s%s", bytesString(s.Arenas[sp]), extra)
	}
	if s.CompressionBytes > 0 {
		row("  compression", "%s  (gradients that are not sent yet, and buffers)", bytesString(s.CompressionBytes))
	}
	if s.world > 1 {
		row("  staging", "%s", bytesString(s.StagingBytes))
		row("sent by a rank", "%s a step: a gradient of %s in %d buckets, %s", bytesString(s.SentBytes), bytesString(s.GradientBytes), s.buckets, s.price())
		row("spread", "%d micro-batches on this rank, %d on the busiest of %d ranks, imbalance %.1f%%", s.MicroBatches, s.MostMicroBatches, s.world, 100*s.Imbalance)
	}
	return b.String()
}

func (s Summary) price() string {
	switch {
	case s.compressed != "":
		inside, between := "", ""
		if s.insideBytes > 0 {
			inside, between = fmt.Sprintf("added among the ranks of a host with %s, ", bytesString(s.insideBytes)), " between hosts"
		}
		sent := s.SentBytes - s.GatherSentBytes - s.insideBytes
		return fmt.Sprintf("%scompressed%s by %s to %s (%.1f%% of what it would be)%s", inside, between, s.compressed, bytesString(sent),
			100*float64(sent)/float64(s.denseBytes), s.completed())
	case s.algorithms != nil:
		return fmt.Sprintf("over connections by %s of them (%.2f times the gradient)%s", s.way(), float64(s.SentBytes-s.GatherSentBytes)/float64(s.GradientBytes), s.completed())
	case s.rounds > 1:
		return fmt.Sprintf("each of %d rounds of lanes sent to its owners (%.2f times the gradient), parameters completed with %s%s",
			s.rounds, float64(s.SentBytes-s.GatherSentBytes)/float64(s.GradientBytes), bytesString(s.GatherSentBytes), s.within())
	case s.Stage > 0:
		return fmt.Sprintf("sent to its owners (%.2f times the gradient), parameters completed with %s%s",
			float64(s.SentBytes-s.GatherSentBytes)/float64(s.GradientBytes), bytesString(s.GatherSentBytes), s.within())
	}
	if s.Subtrees == 1 {
		return fmt.Sprintf("2(N-1)/N of it with N = %d", s.world)
	}
	return fmt.Sprintf("%.2f times that, because this rank's lanes fall into %d subtrees of the sum (one subtree on each rank would need %.2f)",
		float64(s.SentBytes)/float64(s.GradientBytes), s.Subtrees, 2*float64(s.world-1)/float64(s.world))
}

// completed says what completing parameters sends, where it does.
func (s Summary) completed() string {
	if s.GatherSentBytes == 0 {
		return ""
	}
	return ", parameters completed with " + bytesString(s.GatherSentBytes)
}

// within says among how many ranks parameters are completed, where they are not all.
func (s Summary) within() string {
	if s.shard == 0 {
		return ""
	}
	return fmt.Sprintf(", inside groups of %d ranks but for what each has updated", s.shard)
}

// countString prints a number of elements with a unit.
func countString(n int64) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%.2f B", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.2f M", float64(n)/1e6)
	case n >= 1e3:
		return fmt.Sprintf("%.1f k", float64(n)/1e3)
	}
	return fmt.Sprint(n)
}
