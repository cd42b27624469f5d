package comm

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"starling/core/comm/internal/shm"
)

// Memory shared by the ranks of one host, and what a group keeps in it.
//
// A group's region has one part per member: counters, a ring of entries that say what the member entered, and a ring of
// slots. Collectives advance in rounds. In a round every member may publish one slot and read the others'; rounds are
// numbered from the group's first on, alike on all members. published counts the rounds whose slot a member has written,
// finished those it has read; a slot is written again slotCount rounds later, when everybody has finished with it. There
// are no locks: each word has one writer.
const (
	slotCount  = 4
	slotBytes  = 256 << 10
	entryCount = 8
	entryLabel = 256 - 32
	headBytes  = 4096

	segmentMost   = 1 << 40 // of addresses; pages become resident as groups and memory are made
	segmentLeast  = 4 << 30 // where addresses are limited
	segmentMagic  = 0x7374617268656164
	segmentGroups = 512
	segmentHead   = 16 << 10
	pageBytes     = 4096
)

// memberHead lies at the start of a member's part. Words with different writers or readers are on different cache lines.
type memberHead struct {
	published atomic.Uint64
	entered   atomic.Uint64 // collectives entered
	_         [48]byte
	finished  atomic.Uint64
	_         [56]byte
	bell      shm.Bell // on which the member sleeps
	_         [120]byte
	entries   [entryCount]sharedEntry
	places    [entryCount][directPlaces]uint64 // of what is summed in place, see shared_direct.go
}

var _ [headBytes - unsafe.Sizeof(memberHead{})]byte // it fits

// sharedEntry says what a member entered as its collective number i, at place i mod entryCount.
type sharedEntry struct {
	bytes   int64
	detail  uint64
	op      Op
	element Element
	combine Combine
	length  uint8 // of the label, shortened to entryLabel
	direct  bool  // this member's vectors can be read and written where they lie
	_       [11]byte
	label   [entryLabel]byte
}

// segment is the memory of one host's ranks and the table of the groups in it.
type segment struct {
	mem  *shm.Segment
	refs atomic.Int32 // the transport, its groups and this rank's memory: the last one unmaps
	mine atomic.Int64 // bytes of this rank's memory
}

type segmentTable struct {
	magic atomic.Uint64
	used  atomic.Uint64
	// 1 if there are more ranks than cores. Whoever makes the memory says so for all, since that decides in which form small
	// vectors are summed.
	crowded atomic.Uint64
	group   [segmentGroups]struct {
		id    atomic.Uint64
		where atomic.Uint64 // offset of the region, 0 while it is made, noRoom if there is none
	}
}

const noRoom = 1

func newSegment() (*segment, error) {
	mem, err := shm.Create(segmentMost)
	for size := segmentMost / 2; err != nil && size >= segmentLeast; size /= 2 {
		mem, err = shm.Create(size)
	}
	if err != nil {
		return nil, err
	}
	s := &segment{mem: mem}
	s.refs.Store(1)
	if err := mem.Reserve(0, segmentHead); err != nil {
		s.drop()
		return nil, err
	}
	s.table().used.Store(segmentHead)
	s.table().magic.Store(segmentMagic)
	return s, nil
}

// openSegment takes over memory that another rank made.
func openSegment(mem *shm.Segment) (*segment, error) {
	s := &segment{mem: mem}
	s.refs.Store(1)
	if len(mem.Bytes()) < segmentLeast || s.table().magic.Load() != segmentMagic {
		s.drop()
		return nil, fmt.Errorf("the shared memory handed over is not laid out as this version expects")
	}
	return s, nil
}

func (s *segment) table() *segmentTable {
	return (*segmentTable)(unsafe.Pointer(unsafe.SliceData(s.mem.Bytes())))
}

func (s *segment) drop() {
	if s.refs.Add(-1) == 0 {
		_ = s.mem.Close()
	}
}

// region returns the memory of a group, making it if this is the first member to ask; nil if there is no room, which all
// members then find.
func (s *segment) region(id uint64, bytes int) ([]byte, error) {
	t := s.table()
	at := id % segmentGroups
	for range segmentGroups {
		e := &t.group[at]
		if e.id.CompareAndSwap(0, id) {
			where := uint64(noRoom)
			if from, err := s.take(bytes); err == nil {
				where = uint64(from)
			}
			e.where.Store(where)
		}
		if e.id.Load() != id {
			at = (at + 1) % segmentGroups
			continue
		}
		for limit := time.Now().Add(10 * time.Second); e.where.Load() == 0; time.Sleep(50 * time.Microsecond) {
			if time.Now().After(limit) {
				return nil, fmt.Errorf("the member that makes its shared memory has stopped doing so")
			}
		}
		if w := e.where.Load(); w != noRoom {
			return s.mem.Bytes()[w:][:bytes:bytes], nil
		}
		return nil, nil
	}
	return nil, nil
}

// pagesOf rounds bytes up to whole pages.
func pagesOf(bytes int) int { return (bytes + pageBytes - 1) &^ (pageBytes - 1) }

// take reserves so many bytes that nobody has, at a page's beginning.
func (s *segment) take(bytes int) (from int, err error) {
	t, whole := s.table(), pagesOf(bytes)
	for {
		used := t.used.Load()
		if whole < bytes || whole > len(s.mem.Bytes())-int(used) {
			return 0, fmt.Errorf("%d bytes of shared memory: only %d bytes of addresses are left", bytes, len(s.mem.Bytes())-int(used))
		}
		if t.used.CompareAndSwap(used, used+uint64(whole)) {
			return int(used), s.mem.Reserve(int(used), whole)
		}
	}
}

// host is a transport some of whose ranks share memory with this one.
type host interface {
	// share returns the memory of a group, nil if its members do not all share it.
	share(g *Group) (*shared, error)
	// allocate returns memory of this rank that the ranks of its host can read and write.
	allocate(bytes int) (*Memory, error)
	// foreign is how much of the resident set is other ranks' memory.
	foreign() int64
}

// hostTransport is a mesh of connections whose ranks on this host share memory: groups of such ranks move their data
// through it, and use the connections for notices, signs of life and point-to-point messages.
type hostTransport struct {
	*socketTransport
	seg     *segment
	local   []bool // by rank: it maps the same segment
	count   int    // of those
	crowded bool   // there are more of them than cores
	moved   []struct{ sent, received atomic.Int64 }
	once    sync.Once
}

func newHostTransport(t *socketTransport, seg *segment, local []bool) *hostTransport {
	h := &hostTransport{socketTransport: t, seg: seg, local: local, crowded: seg.table().crowded.Load() == 1, moved: make([]struct{ sent, received atomic.Int64 }, len(local))}
	for _, l := range local {
		if l {
			h.count++
		}
	}
	return h
}

func (h *hostTransport) share(g *Group) (*shared, error) {
	for _, r := range g.ranks {
		if !h.local[r] {
			return nil, nil
		}
	}
	n := len(g.ranks)
	if n < 2 {
		return nil, nil
	}
	part := headBytes + slotCount*slotBytes
	mem, err := h.seg.region(g.id, n*part)
	if err != nil || mem == nil {
		return nil, err
	}
	h.seg.refs.Add(1)
	x := &shared{t: h, self: g.self, patience: patience{looks: looksProbe}}
	for m := range n {
		p := mem[m*part:][:part:part]
		x.heads = append(x.heads, (*memberHead)(unsafe.Pointer(unsafe.SliceData(p))))
		x.slots = append(x.slots, p[headBytes:])
	}
	return x, nil
}

// String says how the ranks are connected.
func (h *hostTransport) String() string {
	s := fmt.Sprintf("shared memory among %d ranks of this host", h.count)
	if h.count < len(h.local) {
		s += ", " + h.network + " to the others"
	}
	return s
}

// Counters adds what went through shared memory to the payload; the wire has not seen it.
func (h *hostTransport) Counters(peer int) Counters {
	c := h.socketTransport.Counters(peer)
	if peer >= 0 && peer < len(h.moved) {
		c.PayloadSent += h.moved[peer].sent.Load()
		c.PayloadReceived += h.moved[peer].received.Load()
	}
	return c
}

func (h *hostTransport) Close() error {
	err := h.socketTransport.Close()
	h.once.Do(h.seg.drop)
	return err
}

// shared is a group's region, seen from one member. next and patience belong to whoever carries out the group's collectives, or, while
// nobody does, to the holder of the group's lock.
type shared struct {
	t        *hostTransport
	self     int
	heads    []*memberHead
	slots    [][]byte // per member, all of them
	next     uint64   // the round to publish next
	patience patience
}

// leave gives the region up. A nil receiver is a group without one.
func (x *shared) leave() {
	if x != nil {
		x.t.seg.drop()
	}
}

// rouse wakes this member out of its sleep, to look at the group's failure.
func (x *shared) rouse() {
	if x != nil {
		x.heads[x.self].bell.Ring()
	}
}

// slot returns a member's slot of a round.
func (x *shared) slot(m int, round uint64) []byte {
	at := int(round%slotCount) * slotBytes
	return x.slots[m][at : at+slotBytes : at+slotBytes]
}

// ring wakes the other members.
func (x *shared) ring() {
	for m, h := range x.heads {
		if m != x.self {
			h.bell.Ring()
		}
	}
}

// publish makes the slot of a round, and those of all earlier rounds, readable for the others.
func (x *shared) publish(round uint64) {
	x.heads[x.self].published.Store(round + 1)
	x.ring()
}

// finish says that this member has read all it needs of a round.
func (x *shared) finish(round uint64) {
	x.heads[x.self].finished.Store(round + 1)
	x.ring()
}

// enter says what this member enters as its collective number seq, and where its vectors lie.
func (x *shared) enter(seq uint64, call Call, at places) {
	h := x.heads[x.self]
	e := &h.entries[seq%entryCount]
	e.direct = at.direct
	copy(h.places[seq%entryCount][:], at.list)
	e.op, e.element, e.combine, e.bytes, e.detail = call.Op, call.Element, call.Combine, call.Bytes, call.Detail
	e.length = uint8(copy(e.label[:], call.Label))
	h.entered.Store(seq + 1)
}

// entry returns what member m entered as number seq; it has done so, and this member has not yet entered seq+entryCount.
func (x *shared) entry(m int, seq uint64) (e *sharedEntry) {
	return &x.heads[m].entries[seq%entryCount]
}

func (e *sharedEntry) is(c Call) bool {
	label := c.Label[:min(len(c.Label), entryLabel)]
	return e.op == c.Op && e.element == c.Element && e.combine == c.Combine && e.bytes == c.Bytes && e.detail == c.Detail && string(e.label[:min(int(e.length), entryLabel)]) == label
}

func (e *sharedEntry) call() Call {
	return Call{Op: e.op, Element: e.element, Combine: e.combine, Bytes: e.bytes, Detail: e.detail, Label: string(e.label[:min(int(e.length), entryLabel)])}
}

// moved counts bytes that member m of ranks has read of this member's slots, and the other way.
func (x *shared) moved(rank, sent, received int) {
	x.t.moved[rank].sent.Add(int64(sent))
	x.t.moved[rank].received.Add(int64(received))
}
