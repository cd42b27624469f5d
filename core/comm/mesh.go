package comm

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

// MeshConfig says how a rank connects to all the others.
type MeshConfig struct {
	Identity
	Addrs     []string      // where every rank listens, by rank ("unix:/path", "tcp:host:port")
	Listener  net.Listener  // this rank's own; Connect closes it
	Secret    []byte        // of the job; every connection proves that both sides know it
	Heartbeat time.Duration // between signs of life; 0 means one second
	Silence   time.Duration // after which a peer is given up; 0 means DefaultSilence
	// Credentials, if set, encrypt the connections (TLS 1.3) and prove on both sides which rank this is; the same on all
	// ranks.
	Credentials *Credentials
	Share       Sharing // of memory among ranks with the same Identity.Host; the same on all ranks
	// Trouble, if set, is told why attempts to connect fail, each reason once and no more than a few.
	Trouble func(why string)
	// Cores is how many processors the ranks of this host have between them, where their time is limited too; 0 means those that
	// this process may run on.
	Cores int
}

// Validate reports a configuration that cannot work.
func (c MeshConfig) Validate() error {
	switch {
	case c.World < 1 || c.Rank < 0 || c.Rank >= c.World:
		return fmt.Errorf("comm: rank %d does not exist in a world of %d", c.Rank, c.World)
	case len(c.Addrs) != c.World:
		return fmt.Errorf("comm: %d addresses for %d ranks", len(c.Addrs), c.World)
	case c.World > 1 && c.Listener == nil:
		return errors.New("comm: Connect needs a listener")
	case c.World > 1 && len(c.Secret) < 16:
		return errors.New("comm: the job's secret is shorter than 16 bytes")
	case c.Heartbeat < 0 || c.Silence < 0:
		return fmt.Errorf("comm: heartbeat of %v, silence of %v", c.Heartbeat, c.Silence)
	case c.Cores < 0:
		return fmt.Errorf("comm: %d cores", c.Cores)
	case binary.NativeEndian.Uint16([]byte{1, 0}) != 1:
		return errors.New("comm: this machine is big-endian; the wire format carries memory as it lies on little-endian machines")
	}
	return nil
}

// Connect makes one connection to every other rank — dialling the lower ranks, accepting the higher ones — and returns the
// transport over them. Both ends of each connection prove that they know the job's secret and compare world size,
// recipe digest and arithmetic class. The ranks of one host then map memory that they share (Share). It returns when all are connected, when one of them is refused (*HandshakeError), or
// when ctx ends, with an error naming the ranks that did not come.
func Connect(ctx context.Context, cfg MeshConfig) (Transport, error) {
	if cfg.Listener != nil {
		defer cfg.Listener.Close()
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	var tlsConfig *tls.Config
	if cfg.Credentials != nil {
		var err error
		if tlsConfig, err = cfg.Credentials.config(); err != nil {
			return nil, err
		}
	}
	m := &meeting{cfg: cfg, tls: tlsConfig, conns: make([]net.Conn, cfg.World), theirs: make([]Identity, cfg.World), missing: cfg.World - 1, done: make(chan struct{}), open: map[net.Conn]bool{}}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	for r := range cfg.Rank {
		wg.Go(func() { m.dial(ctx, r) })
	}
	if cfg.Rank < cfg.World-1 {
		wg.Go(func() { m.accept(ctx, &wg) })
	}
	if cfg.World > 1 {
		select {
		case <-ctx.Done():
		case <-m.done:
		}
	}
	err := m.end(context.Cause(ctx))
	cancel()
	if cfg.Listener != nil {
		_ = cfg.Listener.Close()
	}
	wg.Wait()
	if err != nil {
		m.drop()
		return nil, err
	}
	beat := cfg.Heartbeat
	if beat == 0 {
		beat = time.Second
	}
	silence := cfg.Silence
	if silence == 0 {
		silence = DefaultSilence
	}
	t, err := m.transport(beat, silence)
	if err != nil {
		m.drop()
	}
	return t, err
}

// meeting is a mesh coming together.
type meeting struct {
	cfg MeshConfig
	tls *tls.Config // nil: no encryption

	mu      sync.Mutex
	conns   []net.Conn
	theirs  []Identity // by rank
	missing int
	err     error             // fatal
	notes   []string          // why attempts failed, for the error at the end
	open    map[net.Conn]bool // connections in their handshake
	over    bool
	done    chan struct{} // closed when missing is 0 or err is set
}

// end closes the meeting and returns its outcome; connections still in their handshake are cut.
func (m *meeting) end(cause error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.over = true
	for c := range m.open {
		_ = c.Close()
	}
	if m.err != nil || m.missing == 0 {
		return m.err
	}
	var ranks []int
	for r, c := range m.conns {
		if c == nil && r != m.cfg.Rank {
			ranks = append(ranks, r)
		}
	}
	err := fmt.Errorf("comm: rank %d waited at %s, and %s did not connect: %w", m.cfg.Rank, m.cfg.Addrs[m.cfg.Rank], rankList(ranks), cause)
	if len(m.notes) > 0 {
		err = fmt.Errorf("%w (%s)", err, strings.Join(m.notes, "; "))
	}
	return err
}

// drop closes all connections.
func (m *meeting) drop() {
	for _, c := range m.conns {
		if c != nil {
			_ = c.Close()
		}
	}
}

func (m *meeting) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err == nil && m.missing > 0 {
		m.err = err
		close(m.done)
	}
}

// note keeps the last few reasons of failed attempts.
func (m *meeting) note(err error) {
	s := err.Error()
	m.mu.Lock()
	fresh := !slices.Contains(m.notes, s) && len(m.notes) < 4
	if fresh {
		m.notes = append(m.notes, s)
	}
	m.mu.Unlock()
	if fresh && m.cfg.Trouble != nil {
		m.cfg.Trouble(s)
	}
}

// greet runs the handshake on a fresh connection and files it. It reports whether the connection was kept.
func (m *meeting) greet(ctx context.Context, c net.Conn, expect int) bool {
	m.mu.Lock()
	if m.over {
		m.mu.Unlock()
		_ = c.Close()
		return false
	}
	m.open[c] = true
	m.mu.Unlock()
	limit := time.Now().Add(handshakeTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(limit) {
		limit = d
	}
	_ = c.SetDeadline(limit)
	raw := c
	Tune(raw)
	theirs := Identity{Rank: -1}
	c, err := secure(c, m.tls, expect)
	if err == nil {
		theirs, err = handshake(c, m.cfg.Identity, m.cfg.Share, m.cfg.Secret, expect)
	}
	_ = c.SetDeadline(time.Time{})
	rank := theirs.Rank

	m.mu.Lock()
	delete(m.open, raw)
	if err == nil && (m.over || m.conns[rank] != nil) {
		err = &HandshakeError{Rank: m.cfg.Rank, Peer: rank, Reason: "it is connected already"}
	}
	if err == nil {
		m.conns[rank], m.theirs[rank] = c, theirs
		if m.missing--; m.missing == 0 && m.err == nil {
			close(m.done)
		}
		m.mu.Unlock()
		return true
	}
	m.mu.Unlock()
	_ = c.Close()
	var refused *HandshakeError
	if errors.As(err, &refused) && refused.final {
		m.fail(err)
	} else {
		// A stranger at the door must not end the job.
		m.note(err)
	}
	return false
}

// handshakeTimeout bounds one handshake.
const handshakeTimeout = 10 * time.Second

// attemptTimeout bounds one attempt to connect: a firewall that drops what comes says nothing for minutes.
const attemptTimeout = 5 * time.Second

// dial connects to a lower rank, trying again until ctx ends: it may not accept yet.
func (m *meeting) dial(ctx context.Context, rank int) {
	wait := 5 * time.Millisecond
	for ctx.Err() == nil {
		once, cancel := context.WithTimeout(ctx, attemptTimeout)
		c, err := Dial(once, m.cfg.Addrs[rank])
		cancel()
		if err == nil {
			if m.greet(ctx, c, rank) {
				return
			}
		} else if ctx.Err() == nil {
			m.note(fmt.Errorf("rank %d at %s: %w", rank, m.cfg.Addrs[rank], err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
			wait = min(2*wait, 200*time.Millisecond)
		}
	}
}

// accept takes connections of the higher ranks until Connect closes the listener.
func (m *meeting) accept(ctx context.Context, wg *sync.WaitGroup) {
	slots := make(chan struct{}, m.cfg.World+16) // bounds what strangers can tie up
	for {
		c, err := m.cfg.Listener.Accept()
		if err != nil {
			if ctx.Err() == nil {
				m.fail(fmt.Errorf("comm: rank %d at %s: %w", m.cfg.Rank, m.cfg.Addrs[m.cfg.Rank], err))
			}
			return
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			m.greet(ctx, c, -1)
		})
	}
}
