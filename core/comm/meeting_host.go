package comm

import (
	"crypto/hmac"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"time"

	"starling/core/comm/internal/shm"
)

// Sharing says whether the ranks of one host move their data through shared memory.
type Sharing uint8

// The choices.
const (
	ShareNever  Sharing = iota
	ShareAuto           // where it can be had; the transport's String says why not
	ShareAlways         // fail where it cannot be had
	ShareMPI            // between hosts by MPI, within one as ShareAuto
)

// String returns the name of the transport that the choice stands for.
func (s Sharing) String() string {
	return [...]string{"sockets", "automatic", "shared memory", "MPI"}[min(s, ShareMPI)]
}

// CheckSharing reports why the processes of this machine could not share memory, or nil.
func CheckSharing() error {
	seg, err := newSegment()
	if err == nil {
		seg.drop()
	}
	return err
}

// The ranks of one host, once connected, agree on shared memory over the connections between the lowest of them, which
// makes it, and each of the others:
//
//	lowest → other   name of a socket and a token, or nothing and why there is no memory
//	other  → lowest  nothing if it has mapped the memory, or why not
//	lowest → other   nothing if all have, or why not
//
// The memory itself is handed over on that socket, in the abstract namespace of Unix sockets, to whoever shows the token.
const (
	tokenBytes   = 32
	shareTimeout = 10 * time.Second
)

// shareMemory returns the memory that this rank shares with others of its host and which they are, or why it shares none.
func (m *meeting) shareMemory() (seg *segment, local []bool, why error) {
	local = make([]bool, m.cfg.World)
	local[m.cfg.Rank] = true
	var ranks []int
	for r, id := range m.theirs {
		if r == m.cfg.Rank || id.Host == m.cfg.Host && m.cfg.Host != "" {
			local[r] = true
			ranks = append(ranks, r)
		}
	}
	if len(ranks) < 2 {
		return nil, nil, errors.New("no other rank is on this host")
	}
	limit := time.Now().Add(shareTimeout)
	for _, r := range ranks {
		if c := m.conns[r]; c != nil {
			_ = c.SetDeadline(limit)
			defer func() { _ = c.SetDeadline(time.Time{}) }()
		}
	}
	if ranks[0] == m.cfg.Rank {
		seg, why = m.offerMemory(ranks[1:], limit)
	} else {
		seg, why = m.takeMemory(m.conns[ranks[0]])
	}
	if why != nil {
		return nil, nil, why
	}
	return seg, local, nil
}

// offerMemory is the part of the lowest rank.
func (m *meeting) offerMemory(others []int, limit time.Time) (seg *segment, err error) {
	defer func() {
		if err != nil && seg != nil {
			seg.drop()
			seg = nil
		}
	}()
	var token [tokenBytes]byte
	var name [16]byte
	_, _ = rand.Read(token[:]) // never fails
	_, _ = rand.Read(name[:])
	socket := "@starling-" + hex.EncodeToString(name[:])
	if seg, err = newSegment(); err == nil && len(others) >= m.cores() {
		seg.table().crowded.Store(1)
	}
	var l *net.UnixListener
	if err == nil {
		l, err = net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	}
	offer := append(token[:], socket...)
	if err != nil {
		offer = append(make([]byte, tokenBytes), err.Error()...)
	} else {
		defer l.Close()
		_ = l.SetDeadline(limit)
	}
	for _, r := range others {
		if e := writeMessage(m.conns[r], offer); e != nil {
			return seg, fmt.Errorf("offering memory to rank %d: %w", r, e)
		}
	}
	if err == nil {
		err = handOut(seg, l, token[:], len(others))
	}
	for _, r := range others {
		answer, e := readMessage(m.conns[r])
		if e != nil {
			return seg, fmt.Errorf("waiting for rank %d to map the memory: %w", r, e)
		}
		if len(answer) > 0 && err == nil {
			err = fmt.Errorf("rank %d: %s", r, answer)
		}
	}
	verdict := ""
	if err != nil {
		verdict = err.Error()
	}
	for _, r := range others {
		if e := writeMessage(m.conns[r], []byte(verdict)); e != nil {
			return seg, fmt.Errorf("telling rank %d: %w", r, e)
		}
	}
	return seg, err
}

// handOut sends the memory to so many processes that know the token, one after another. Strangers are turned away.
func handOut(seg *segment, l *net.UnixListener, token []byte, count int) error {
	for count > 0 {
		c, err := l.AcceptUnix()
		if err != nil {
			return fmt.Errorf("handing over memory: %w", err)
		}
		_ = c.SetDeadline(time.Now().Add(time.Second))
		shown := make([]byte, tokenBytes)
		if _, err := io.ReadFull(c, shown); err == nil && hmac.Equal(shown, token) && seg.mem.Send(c) == nil {
			count--
		}
		_ = c.Close()
	}
	return nil
}

// takeMemory is the part of every other rank.
func (m *meeting) takeMemory(lowest net.Conn) (*segment, error) {
	offer, err := readMessage(lowest)
	if err != nil {
		return nil, fmt.Errorf("waiting for memory: %w", err)
	}
	if len(offer) < tokenBytes {
		return nil, errors.New("the offer of memory is malformed")
	}
	seg, err := fetchMemory(string(offer[tokenBytes:]), offer[:tokenBytes])
	answer := ""
	if err != nil {
		answer = err.Error()
	}
	if e := writeMessage(lowest, []byte(answer)); e != nil && err == nil {
		err = fmt.Errorf("answering to the offer of memory: %w", e)
	}
	verdict, e := readMessage(lowest)
	switch {
	case e != nil && err == nil:
		err = fmt.Errorf("waiting for the others to map the memory: %w", e)
	case len(verdict) > 0:
		err = errors.New(string(verdict))
	}
	if err != nil && seg != nil {
		seg.drop()
		seg = nil
	}
	return seg, err
}

func fetchMemory(socket string, token []byte) (*segment, error) {
	if !strings.HasPrefix(socket, "@") {
		return nil, errors.New(socket)
	}
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(shareTimeout))
	if _, err := c.Write(token); err != nil {
		return nil, err
	}
	mem, err := shm.Receive(c)
	if err != nil {
		return nil, err
	}
	return openSegment(mem)
}

// cores is how many processors this host's ranks have between them.
func (m *meeting) cores() int {
	if m.cfg.Cores > 0 {
		return min(m.cfg.Cores, runtime.NumCPU())
	}
	return runtime.NumCPU()
}

// transport makes the transport over the connections, with shared memory where that is wanted and can be had.
func (m *meeting) transport(beat, silence time.Duration) (Transport, error) {
	network := "no connections"
	for _, c := range m.conns {
		if c != nil {
			network = c.LocalAddr().Network()
		}
	}
	if m.tls != nil {
		network += " with TLS"
	}
	var seg *segment
	var local []bool
	if m.cfg.Share != ShareNever && m.cfg.World > 1 {
		var why error
		seg, local, why = m.shareMemory()
		if why != nil && m.cfg.Share == ShareAlways {
			return nil, fmt.Errorf("comm: rank %d: no shared memory: %w", m.cfg.Rank, why)
		}
		if why != nil {
			network += " (no shared memory: " + why.Error() + ")"
		}
	}
	t := newSocketTransport(m.cfg.Rank, m.conns, network, beat, silence)
	for r, id := range m.theirs {
		t.hosts[r] = id.Host
	}
	t.hosts[m.cfg.Rank] = m.cfg.Host
	t.attends.spare = Neighbours(t) <= m.cores()
	var out Transport = t
	if seg != nil {
		out = newHostTransport(t, seg, local)
	}
	if m.cfg.Share == ShareMPI && m.cfg.World > 1 {
		whole, err := withMPI(out)
		if err != nil {
			return nil, errors.Join(err, out.Close())
		}
		return whole, nil
	}
	return out, nil
}
