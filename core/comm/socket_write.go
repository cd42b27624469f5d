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
	sealed  bool        // rest is encrypted
	parts   [3][]byte   // its memory
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

// encrypt replaces what is to be written by its encrypted form, where the connection is encrypted.
func (w *writing) encrypt() error {
	if w.tls == nil || w.sealed {
		return nil
	}
	b, err := w.seal.gather(w.tls, w.rest)
	if err == nil {
		w.rest, w.sealed = append(net.Buffers(w.parts[:0]), b), true
	}
	return err
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
	if len(w.rest) > 0 {
		return true
	}
	w.sealed = false
	w.control, p.control = p.control, w.control[:0]
	w.rest = append(net.Buffers(w.parts[:0]), w.control)
	if len(w.control) == 0 {
		w.rest = w.rest[:0]
	}
	if p.gone < len(p.ready) {
		w.out = p.ready[p.gone]
		p.ready[p.gone] = outgoing{}
		if p.gone++; p.gone == len(p.ready) {
			p.ready, p.gone = p.ready[:0], 0
		}
		w.head = appendHeader(w.head[:0], header{frameData, w.out.key, len(w.out.buf)})
		w.rest = append(w.rest, w.head)
		if len(w.out.buf) > 0 {
			w.rest = append(w.rest, w.out.buf)
		}
	}
	return len(w.rest) > 0
}

// written notes what went and completes the payload that has gone.
func (p *peer) written(n int64) {
	p.wireSent.Add(n)
	if out := p.w.out; len(p.w.rest) == 0 && out.done != nil {
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
		last := (p.bye || p.lost != nil) && p.w.out.done == nil && !p.w.sealed && len(p.control) == 0 && p.gone == len(p.ready)
		p.mu.Unlock()
		if last {
			p.w.rest = append(p.w.rest, appendHeader(nil, header{kind: frameBye}))
		}
		err := p.w.encrypt()
		var n int64
		if err == nil {
			n, err = p.w.rest.WriteTo(p.w.conn)
		}
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
