package comm

import (
	"crypto/tls"
	"net"
	"syscall"
	"time"
)

// Whoever hands something over writes it himself, as far as the connection takes it at once: that spares waking another
// goroutine, and on a busy host a thread. What is left, or is much, is the writer's, which may wait.

// attemptMost is the largest payload, in bytes, that is written so: more is better written beside what else there is to do.
const attemptMost = 512 << 10

// writing is the state of the side that writes, kept from one call to the next.
type writing struct {
	conn    net.Conn        // what is written to: below encryption
	raw     syscall.RawConn // of it, nil where nothing can be written without waiting
	tls     *tls.Conn       // nil without encryption
	seal    *sealedConn     // between the two
	attempt func(uintptr) bool
	control []byte // frames on their way: the other half of a double buffer
	head    []byte
	out     outgoing
	rest    net.Buffers // what of them has not been written
	clear   net.Buffers // what comes after rest and has not been encrypted; empty without encryption
	parts   [3][]byte   // its memory: of clear, or without encryption of rest
	cipher  [1][]byte   // that of rest with encryption
	moved   int64
}

func newWriting(c net.Conn) (w writing) {
	w.conn = c
	if t, ok := c.(*tls.Conn); ok {
		w.tls, w.seal = t, t.NetConn().(*sealedConn)
		w.conn = w.seal.Conn
	}
	if s, ok := w.conn.(syscall.Conn); ok && canAttempt {
		w.raw, _ = s.SyscallConn()
	}
	return w
}

// sealedMost is how much is encrypted at a time, in bytes: it is written while it is in the processor's cache.
const sealedMost = 256 << 10

// put gives parts to be written, which are all there is.
func (w *writing) put(parts net.Buffers) {
	if w.tls == nil {
		w.rest = parts
	} else {
		w.clear = parts
	}
}

// over reports whether everything has been written.
func (w *writing) over() bool { return len(w.rest) == 0 && len(w.clear) == 0 }

// next makes rest hold what is to be written next, if anything is.
func (w *writing) next() error {
	if len(w.rest) > 0 || len(w.clear) == 0 {
		return nil
	}
	b, err := w.seal.gather(w.tls, &w.clear, sealedMost)
	if err == nil {
		w.rest = append(net.Buffers(w.cipher[:0]), b)
	}
	return err
}

// writeAll waits until everything is written.
func (w *writing) writeAll() (n int64, err error) {
	for !w.over() {
		if err := w.next(); err != nil {
			return n, err
		}
		k, err := w.rest.WriteTo(w.conn)
		if n += k; err != nil {
			return n, err
		}
	}
	return n, nil
}

func (p *peer) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// take makes p.w hold all control frames and the first payload that are queued, unless something is left of the last ones. It returns
// false if there is nothing. The caller holds p.mu and has set p.busy.
func (p *peer) take() bool {
	w := &p.w
	if !w.over() {
		return true
	}
	w.control, p.control = p.control, w.control[:0]
	parts := append(net.Buffers(w.parts[:0]), w.control)
	if len(w.control) == 0 {
		parts = parts[:0]
	}
	if p.gone < len(p.ready) {
		w.out = p.ready[p.gone]
		p.ready[p.gone] = outgoing{}
		if p.gone++; p.gone == len(p.ready) {
			p.ready, p.gone = p.ready[:0], 0
		}
		w.head = appendHeader(w.head[:0], header{frameData, w.out.key, len(w.out.buf)})
		parts = append(parts, w.head)
		if len(w.out.buf) > 0 {
			parts = append(parts, w.out.buf)
		}
	}
	w.put(parts)
	return len(parts) > 0
}

// written notes what went and completes the payload that has gone.
func (p *peer) written(n int64) {
	p.wireSent.Add(n)
	if out := p.w.out; p.w.over() && out.done != nil {
		p.w.out = outgoing{}
		p.payloadSent.Add(int64(len(out.buf)))
		out.complete(nil)
	}
}

// flush writes what is queued, as far as it can without waiting.
func (p *peer) flush() {
	p.mu.Lock()
	if p.busy { // who writes looks again before he ends
		p.mu.Unlock()
		return
	}
	for {
		p.busy = p.take()
		if !p.busy || p.w.raw == nil || len(p.w.out.buf) > attemptMost || p.lost != nil {
			break
		}
		p.mu.Unlock()
		n, all := p.w.attemptAll()
		p.written(n)
		p.mu.Lock()
		if !all {
			break
		}
	}
	if p.busy || p.bye {
		p.handed = p.busy
		p.poke()
	}
	p.mu.Unlock()
}

// writeLoop writes what flush leaves, and says goodbye.
func (p *peer) writeLoop() {
	defer p.t.wg.Done()
	for {
		p.mu.Lock()
		for p.busy && !p.handed || !p.take() && !p.bye {
			p.mu.Unlock()
			<-p.wake
			p.mu.Lock()
		}
		p.busy, p.handed = true, false
		last := (p.bye || p.lost != nil) && p.w.out.done == nil && p.w.over() && len(p.control) == 0 && p.gone == len(p.ready)
		p.mu.Unlock()
		if last {
			p.w.put(net.Buffers{appendHeader(nil, header{kind: frameBye})})
		}
		n, err := p.w.writeAll()
		if err != nil {
			p.wireSent.Add(n)
			p.writeFailed(p.w.out)
			return
		}
		p.written(n)
		if last {
			if c, ok := p.conn.(interface{ CloseWrite() error }); ok {
				_ = c.CloseWrite()
			}
			return
		}
		p.mu.Lock()
		p.busy = false
		p.mu.Unlock()
	}
}

// writeFailed ends the writer. What the peer said before it went may still be unread, and names the cause better than a
// broken pipe: the reader finishes first, and its error completes what is queued.
func (p *peer) writeFailed(out outgoing) {
	_ = p.conn.SetReadDeadline(time.Now().Add(linger / 2))
	p.mu.Lock()
	if out.done != nil {
		p.ready = append(p.ready, out)
	}
	p.broken = true
	var open []outgoing
	if p.lost != nil {
		open, p.ready, p.gone = p.ready[p.gone:], nil, 0
	}
	p.mu.Unlock()
	for _, m := range open {
		m.complete(p.lost)
	}
}
