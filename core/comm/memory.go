package comm

import (
	"fmt"
	"sync"
)

// Memory is memory of this rank that the other ranks of its host have mapped. Sums of vectors that lie in it are added where
// they lie: nothing is copied on its way (shared_direct.go).
type Memory struct {
	seg   *segment
	from  int
	bytes []byte
	once  sync.Once
}

// Allocate returns zeroed memory of this rank for vectors that the group's sums read and write in place, or nil where nobody
// could: no member of the group shares memory with this one. Its pages are resident at once. It outlives the group.
func (g *Group) Allocate(bytes int) (*Memory, error) {
	h, ok := g.t.(host)
	if !ok || g.shared == nil && (g.hosts == nil || g.hosts.host.shared == nil) {
		return nil, nil
	}
	if bytes < 0 {
		return nil, fmt.Errorf("comm: group %s: memory of %d bytes", g.name, bytes)
	}
	m, err := h.allocate(bytes)
	if err != nil {
		return nil, fmt.Errorf("comm: group %s: %w", g.name, err)
	}
	return m, nil
}

func (h *hostTransport) allocate(bytes int) (*Memory, error) {
	m := &Memory{seg: h.seg}
	if bytes > 0 {
		var err error
		if m.from, err = h.seg.take(bytes); err != nil {
			return nil, err
		}
		h.seg.mine.Add(int64(bytes))
		m.bytes = h.seg.mem.Bytes()[m.from:][:bytes:bytes]
	}
	h.seg.refs.Add(1)
	return m, nil
}

// Bytes returns the memory.
func (m *Memory) Bytes() []byte { return m.bytes }

// Free gives the memory back. No collective that uses it may be under way; a member that one has failed on may still write to
// where it was, which is given to nobody else.
func (m *Memory) Free() {
	m.once.Do(func() {
		if len(m.bytes) > 0 {
			m.seg.mine.Add(-int64(len(m.bytes)))
			_ = m.seg.mem.Release(m.from, pagesOf(len(m.bytes))) // else it goes with the segment
		}
		m.bytes = nil
		m.seg.drop()
	})
}

// Foreign is how many bytes of this process's resident set are other ranks' memory: what it has touched of what they allocated.
func (g *Group) Foreign() int64 {
	if h, ok := g.t.(host); ok {
		return h.foreign()
	}
	return 0
}

func (h *hostTransport) foreign() int64 {
	return max(h.seg.mem.Resident()-h.seg.mine.Load(), 0)
}
