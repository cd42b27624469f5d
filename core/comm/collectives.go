package comm

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"unsafe"
)

// bytesOf views x as the bytes that travel: little-endian, which is how the supported machines store elements.
func bytesOf[T float32 | uint16](x []T) []byte {
	if len(x) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), len(x)*int(unsafe.Sizeof(x[0])))
}

func detail(v ...any) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, v...)
	return h.Sum64()
}

// badCall is a handle that has failed because of the caller's arguments: nothing was sent, the group lives on.
func badCall(op Op, label, format string, args ...any) *Handle {
	h := &Handle{}
	h.prepare(nil, Call{Op: op, Label: label})
	h.issue()
	h.finish(fmt.Errorf("comm: %s %q: %s", op, label, fmt.Sprintf(format, args...)))
	return h
}

// prepare makes a collective.
func (g *Group) prepare(call Call, body func(*run) error) *Collective {
	c := &Collective{g: g, body: body}
	c.h.prepare(c, g.agreed(call))
	return c
}

// floatsOf views n elements of b from element at on.
func floatsOf(b []byte, at, n int) []float32 {
	if n == 0 {
		return nil
	}
	return viewOf[float32](b[4*at : 4*(at+n)])
}

// StartBarrier starts a barrier: it is over when every member has entered it.
func (g *Group) StartBarrier(label string) *Handle {
	c := g.prepare(Call{Op: OpBarrier, Label: label}, func(r *run) error { return r.allEntered() })
	c.local, c.brief = barrierShared(), true
	return c.Start()
}

// Barrier returns when every member has entered it.
func (g *Group) Barrier(ctx context.Context, label string) error {
	return g.wait(ctx, g.StartBarrier(label))
}

// BarrierPatient is a barrier at which members may come late: one of them has something long to do by itself. While it
// gives signs of life it is waited for as in the group's first collective (Options.PrepareTimeout, Options.Silence).
func (g *Group) BarrierPatient(ctx context.Context, label string) error {
	c := g.prepare(Call{Op: OpBarrier, Label: label}, func(r *run) error { return r.allEntered() })
	c.local, c.brief, c.run.patient = barrierShared(), true, true
	return g.wait(ctx, c.Start())
}

// PrepareBroadcastOf prepares that root's buf (a position in the group) is sent into everybody's buf, which must have one length.
func (g *Group) PrepareBroadcastOf(label string, root int, buf []byte, e Element) (*Collective, error) {
	if err := g.checkRoot(root); err != nil {
		return nil, err
	}
	if err := checkElements(buf, e); err != nil {
		return nil, err
	}
	call := Call{Op: OpBroadcast, Element: e, Label: label, Bytes: int64(len(buf)), Detail: detail(root)}
	c := g.prepare(call, func(r *run) error { return r.broadcast(root, buf) })
	c.local = g.broadcastShared(root, buf)
	return c, nil
}

// StartBroadcast starts a broadcast of bytes.
func (g *Group) StartBroadcast(label string, root int, buf []byte) *Handle {
	c, err := g.PrepareBroadcastOf(label, root, buf, Untyped)
	if err != nil {
		return badCall(OpBroadcast, label, "%v", err)
	}
	return c.Start()
}

// Broadcast is StartBroadcast and Wait.
func (g *Group) Broadcast(ctx context.Context, label string, root int, buf []byte) error {
	return g.wait(ctx, g.StartBroadcast(label, root, buf))
}

// BroadcastFloat32 is Broadcast for float32.
func (g *Group) BroadcastFloat32(ctx context.Context, label string, root int, buf []float32) error {
	c, err := g.PrepareBroadcastOf(label, root, bytesOf(buf), Float32)
	return perform(ctx, OpBroadcast, label, c, err)
}

// StartAllGather completes buf on every member: member m's part, buf[chunks[m]], is sent to all the others. Chunks may be
// uneven or empty; each member sends its own part N-1 times.
func (g *Group) StartAllGather(label string, chunks []Range, buf []float32) *Handle {
	c, err := g.PrepareAllGather(label, chunks, buf)
	if err != nil {
		return badCall(OpAllGather, label, "%v", err)
	}
	return c.Start()
}

// PrepareAllGather prepares what StartAllGather starts.
func (g *Group) PrepareAllGather(label string, chunks []Range, buf []float32) (*Collective, error) {
	return g.PrepareAllGatherOf(label, chunks, bytesOf(buf), Float32)
}

// PrepareAllGatherOf prepares the same for any element type. Chunks are given in elements.
func (g *Group) PrepareAllGatherOf(label string, chunks []Range, buf []byte, e Element) (*Collective, error) {
	if err := checkElements(buf, e); err != nil {
		return nil, err
	}
	if err := checkChunks(chunks, g.Size(), len(buf)/e.Size()); err != nil {
		return nil, err
	}
	call := Call{Op: OpAllGather, Element: e, Label: label, Bytes: int64(len(buf)), Detail: detail(chunks)}
	parts := inBytes(chunks, e.Size())
	if g.hosts != nil {
		return g.hosts.prepareGather(g, call, parts, buf), nil
	}
	return g.prepareGatherOf(call, parts, buf), nil
}

// AllGather is StartAllGather and Wait.
func (g *Group) AllGather(ctx context.Context, label string, chunks []Range, buf []float32) error {
	return g.wait(ctx, g.StartAllGather(label, chunks, buf))
}

// StartReduceScatterTree sums a vector over the lanes of all members in the canonical order. own[k] is this member's sum
// over red.Nodes(rank)[k]; all have the vector's length. The chunk of the result that belongs to this member,
// chunks[rank], is written to dst (of the chunk's length, which may overlap own[k][chunk] exactly). own is left as it was. Chunks
// make up the vector, in whatever order of members.
func (g *Group) StartReduceScatterTree(label string, red *Reduction, chunks []Range, own [][]float32, dst []float32) *Handle {
	c, err := g.PrepareReduceScatterTree(label, red, chunks, own, dst)
	if err != nil {
		return badCall(OpReduceScatterTree, label, "%v", err)
	}
	return c.Start()
}

// PrepareReduceScatterTree prepares what StartReduceScatterTree starts.
func (g *Group) PrepareReduceScatterTree(label string, red *Reduction, chunks []Range, own [][]float32, dst []float32) (*Collective, error) {
	n := vectorLen(own, chunks)
	if err := g.checkTree(red, chunks, own, n); err != nil {
		return nil, err
	}
	if want := chunks[g.self].Len(); len(dst) != want {
		return nil, fmt.Errorf("the result has %d elements, this rank's chunk %d", len(dst), want)
	}
	call := Call{Op: OpReduceScatterTree, Element: Float32, Label: label, Bytes: 4 * int64(n), Detail: detail(red.digest, chunks)}
	if g.hosts != nil {
		return g.hosts.prepareScatter(g, call, red, chunks, own, dst)
	}
	return g.prepareTree(call, red, chunks, own, dst, nil), nil
}

func (g *Group) prepareTree(call Call, red *Reduction, chunks []Range, own [][]float32, mine, all []float32) *Collective {
	if red.element != Float32 {
		return g.prepareHalfTree(call, red, chunks, own, mine, all)
	}
	t := &treeReduce{red: red, chunks: chunks, own: own, mine: mine, all: all}
	c := g.prepare(call, t.reduce)
	if g.shared != nil {
		c.local, c.brief = g.treeShared(red, chunks, own, mine, all)
	}
	return c
}

// ReduceScatterTree is StartReduceScatterTree and Wait.
func (g *Group) ReduceScatterTree(ctx context.Context, label string, red *Reduction, chunks []Range, own [][]float32, dst []float32) error {
	return g.wait(ctx, g.StartReduceScatterTree(label, red, chunks, own, dst))
}

// StartAllReduceTree sums a vector over the lanes of all members in the canonical order and gives everyone the whole
// result in dst, which may be own[0]. The owner of a chunk (Chunks(n, Size, ChunkAlign)) adds it piece by piece while
// further pieces arrive, and passes each finished piece on at once.
func (g *Group) StartAllReduceTree(label string, red *Reduction, own [][]float32, dst []float32) *Handle {
	c, err := g.PrepareAllReduceTree(label, red, own, dst)
	if err != nil {
		return badCall(OpAllReduceTree, label, "%v", err)
	}
	return c.Start()
}

// PrepareAllReduceTree prepares what StartAllReduceTree starts.
func (g *Group) PrepareAllReduceTree(label string, red *Reduction, own [][]float32, dst []float32) (*Collective, error) {
	chunks := Chunks(len(dst), g.Size(), ChunkAlign)
	if err := g.checkTree(red, chunks, own, len(dst)); err != nil {
		return nil, err
	}
	call := Call{Op: OpAllReduceTree, Element: Float32, Label: label, Bytes: 4 * int64(len(dst)), Detail: detail(red.digest)}
	if g.hosts != nil {
		return g.hosts.prepareTree(g, call, red, own, dst)
	}
	mine := dst[chunks[g.self].Lo:chunks[g.self].Hi]
	return g.prepareTree(call, red, chunks, own, mine, dst), nil
}

// AllReduceTree is StartAllReduceTree and Wait.
func (g *Group) AllReduceTree(ctx context.Context, label string, red *Reduction, own [][]float32, dst []float32) error {
	return g.wait(ctx, g.StartAllReduceTree(label, red, own, dst))
}

// StartAllReduce sums buf over the members in place, in the order of the canonical tree with one lane per member.
func (g *Group) StartAllReduce(label string, buf []float32) *Handle {
	red, err := NewReduction(g.Size(), Assign(g.Size(), g.Size()))
	if err != nil {
		return badCall(OpAllReduceTree, label, "%v", err)
	}
	return g.StartAllReduceTree(label, red, [][]float32{buf}, buf)
}

// AllReduce is StartAllReduce and Wait.
func (g *Group) AllReduce(ctx context.Context, label string, buf []float32) error {
	return g.wait(ctx, g.StartAllReduce(label, buf))
}

// StartReduceScatter sums buf over the members, in the order of the canonical tree with one lane per member, and leaves
// this member's chunk of the sum in place in buf[chunks[rank]]; the rest of buf is left as it was.
func (g *Group) StartReduceScatter(label string, chunks []Range, buf []float32) *Handle {
	if err := checkChunks(chunks, g.Size(), len(buf)); err != nil {
		return badCall(OpReduceScatterTree, label, "%v", err)
	}
	red, err := NewReduction(g.Size(), Assign(g.Size(), g.Size()))
	if err != nil {
		return badCall(OpReduceScatterTree, label, "%v", err)
	}
	c := chunks[g.self]
	return g.StartReduceScatterTree(label, red, chunks, [][]float32{buf}, buf[c.Lo:c.Hi])
}

// ReduceScatter is StartReduceScatter and Wait.
func (g *Group) ReduceScatter(ctx context.Context, label string, chunks []Range, buf []float32) error {
	return g.wait(ctx, g.StartReduceScatter(label, chunks, buf))
}

// AllGatherBytes returns every member's bytes, by position; lengths may differ. It is for metrics and other small things:
// the results are freshly allocated.
func (g *Group) AllGatherBytes(ctx context.Context, label string, mine []byte) ([][]byte, error) {
	return g.StartAllGatherBytes(label, mine).Values(ctx)
}

// Gather returns every member's bytes, by position, on root, and nil on the others.
func (g *Group) Gather(ctx context.Context, label string, root int, mine []byte) ([][]byte, error) {
	return g.StartGather(label, root, mine).Values(ctx)
}

// AllGatherFloat64 returns every member's values, by position; counts may differ.
func (g *Group) AllGatherFloat64(ctx context.Context, label string, mine []float64) ([][]float64, error) {
	return g.StartAllGatherFloat64(label, mine).Values(ctx)
}

// AllGatherInt64 returns every member's values, by position; counts may differ.
func (g *Group) AllGatherInt64(ctx context.Context, label string, mine []int64) ([][]int64, error) {
	return g.StartAllGatherInt64(label, mine).Values(ctx)
}

// StartSend sends buf to the member at position to. Calls towards one member are matched with its receives in order.
func (g *Group) StartSend(label string, to int, buf []byte) *Handle {
	return g.startPair(StreamSend, label, to, buf, Untyped)
}

// StartSendOf is StartSend for elements of a type, on which both sides must agree.
func (g *Group) StartSendOf(label string, to int, buf []byte, e Element) *Handle {
	return g.startPair(StreamSend, label, to, buf, e)
}

// Send is StartSend and Wait.
func (g *Group) Send(ctx context.Context, label string, to int, buf []byte) error {
	return g.wait(ctx, g.StartSend(label, to, buf))
}

// StartRecv receives into buf from the member at position from; buf has the length of what is sent.
func (g *Group) StartRecv(label string, from int, buf []byte) *Handle {
	return g.startPair(StreamRecv, label, from, buf, Untyped)
}

// StartRecvOf is StartRecv for elements of a type.
func (g *Group) StartRecvOf(label string, from int, buf []byte, e Element) *Handle {
	return g.startPair(StreamRecv, label, from, buf, e)
}

// Recv is StartRecv and Wait.
func (g *Group) Recv(ctx context.Context, label string, from int, buf []byte) error {
	return g.wait(ctx, g.StartRecv(label, from, buf))
}

// ReserveStaging allocates staging memory in advance, so that no collective within Reduction.StagingBytes of it allocates.
func (g *Group) ReserveStaging(bytes int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.growStaging(bytes)
}

// StagingPeak returns the high-water mark of staging memory used by the collectives so far, in bytes.
func (g *Group) StagingPeak() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stagingPeak
}

// Bytes32 views float32 values as the bytes that StartBroadcast, Send and Recv move.
func Bytes32(x []float32) []byte { return bytesOf(x) }

// perform carries a prepared collective out, unless preparing it has failed.
func perform(ctx context.Context, op Op, label string, c *Collective, err error) error {
	if err != nil {
		return fmt.Errorf("comm: %s %q: %w", op, label, err)
	}
	return c.Run(ctx)
}

func (g *Group) checkRoot(root int) error {
	if root < 0 || root >= g.Size() {
		return fmt.Errorf("root %d is no member of a group of %d", root, g.Size())
	}
	return nil
}

func checkChunks(chunks []Range, size, n int) error {
	if len(chunks) != size {
		return fmt.Errorf("there are %d chunks for %d members", len(chunks), size)
	}
	at := 0
	for m, c := range chunks {
		if c.Lo != at || c.Hi < c.Lo {
			return fmt.Errorf("chunk %d is %v; chunks must be contiguous and in order, and the next element is %d", m, c, at)
		}
		at = c.Hi
	}
	if at != n {
		return fmt.Errorf("the chunks cover %d elements of %d", at, n)
	}
	return nil
}

func vectorLen(own [][]float32, chunks []Range) int {
	if len(own) > 0 {
		return len(own[0])
	}
	return extent(chunks)
}

// extent is the length of the vector that chunks make up.
func extent(chunks []Range) int {
	n := 0
	for _, c := range chunks {
		n = max(n, c.Hi)
	}
	return n
}

// checkParts checks that chunks make up a vector of n elements, in any order.
func checkParts(chunks []Range, size, n int) error {
	sorted := slices.Clone(chunks)
	slices.SortFunc(sorted, func(a, b Range) int { return cmp.Or(a.Lo-b.Lo, a.Hi-b.Hi) })
	return checkChunks(sorted, size, n)
}

func (g *Group) checkTree(red *Reduction, chunks []Range, own [][]float32, n int) error {
	if red.Ranks() != g.Size() {
		return fmt.Errorf("the reduction is planned for %d ranks, the group has %d", red.Ranks(), g.Size())
	}
	if want := len(red.Nodes(g.self)); len(own) != want {
		return fmt.Errorf("rank %d contributes %d partial sums, the plan wants %d (%v)", g.ranks[g.self], len(own), want, red.Nodes(g.self))
	}
	for k, o := range own {
		if len(o) != n {
			return fmt.Errorf("partial sum %d has %d elements, the vector %d", k, len(o), n)
		}
	}
	return checkParts(chunks, g.Size(), n)
}
