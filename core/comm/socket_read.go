package comm

import (
	"io"
	"runtime"
	"sync/atomic"
	"syscall"
)

// While a caller waits for a short collective, the reader looks for what comes before it sleeps: to be woken takes longer than most of
// what is waited for where both ends are near. It looks the longer the more that has helped lately, and never where ranks outnumber the
// cores of their host, or beside a computation.
const (
	looksAtSocketLeast = 16 // a look takes some 0.4 µs
	looksAtSocketMost  = 400
)

// lookedFor is the longest vector, in bytes, whose collective is short in that sense: in longer ones there is always something to do.
const lookedFor = 2 << 20

// reading is the state of the side that reads.
type reading struct {
	attempt func(uintptr) bool
	buf     []byte
	n       int
	looks   int
}

// attention counts the runs of a transport for which its readers look.
type attention struct {
	spare bool // the host has a core for each of its ranks
	runs  atomic.Int32
	taken atomic.Bool // by a reader: one looks at a time
}

// attentive is a transport whose readers look while somebody waits.
type attentive interface{ attention() *attention }

func (t *socketTransport) attention() *attention { return &t.attends }

// expects reports whether readers are to look while r waits.
func (r *run) expects() bool {
	a := r.g.attends
	return a != nil && a.spare && r.call.Bytes <= lookedFor && r.h != nil && r.h.waiters.Load() > 0
}

// incoming reads from a peer's connection, below encryption.
type incoming struct{ *peer }

// stream is what the reader reads frames from.
func (p *peer) stream() io.Reader {
	if p.w.seal == nil {
		return incoming{p}
	}
	p.w.seal.from = incoming{p}
	return p.w.tls
}

func (p incoming) Read(b []byte) (n int, err error) {
	if a := &p.t.attends; p.w.raw != nil && a.runs.Load() > 0 && a.taken.CompareAndSwap(false, true) {
		n = p.rd.look(p.w.raw, b, a)
		a.taken.Store(false)
	}
	if n == 0 {
		n, err = p.w.conn.Read(b)
	}
	p.wireReceived.Add(int64(n))
	return n, err
}

// look reads what comes while it looks, 0 bytes if nothing does. Errors are met again by whoever reads next.
func (rd *reading) look(raw syscall.RawConn, b []byte, a *attention) int {
	rd.looks = max(rd.looks, looksAtSocketLeast)
	for i := 0; i < rd.looks && a.runs.Load() > 0; i++ {
		if n := rd.attemptOnce(raw, b); n > 0 {
			rd.looks = min(2*rd.looks, looksAtSocketMost)
			return n
		}
		runtime.Gosched()
	}
	rd.looks /= 2
	return 0
}
