package cluster

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"

	"starling/core/comm"
)

// The control protocol between a worker and its launcher: JSON messages, each preceded by its length (u32, little-endian).
//
//	launcher → worker              worker → launcher
//	welcome  rank, world, secret,  hello      pid; of one that came by itself also protocol, number, world, host, node
//	         where to listen,      listening  address, machine
//	         the caller's payload
//	peers    all addresses         connected
//	go       all are connected     trouble    text: why an attempt to connect failed
//	                               status     text
//	stop     end when convenient   event      data
//	fail     which rank, why       failed     text, whom it blames
//	part     a piece of what was    ask       data: before it listens, for what it lacks
//	         asked for, an empty
//	         one at its end, or why
//	         there is none
//	beat     (over a network)
//	                               done       data
//	                               stop       a signal came here
//	                               beat
type message struct {
	Kind        kind
	Rank        int               `json:",omitempty"`
	World       int               `json:",omitempty"`
	PID         int               `json:",omitempty"`
	Secret      []byte            `json:",omitempty"`
	Listen      string            `json:",omitempty"`
	Host        string            `json:",omitempty"`
	Machine     string            `json:",omitempty"`
	Node        string            `json:",omitempty"` // the machine's name for people
	Protocol    int               `json:",omitempty"`
	Silence     time.Duration     `json:",omitempty"`
	Credentials *comm.Credentials `json:",omitempty"`
	Share       comm.Sharing      `json:",omitempty"`
	Beats       bool              `json:",omitempty"` // the launcher gives signs of life
	Payload     []byte            `json:",omitempty"`
	Addrs       []string          `json:",omitempty"`
	Text        string            `json:",omitempty"`
	Blame       []int             `json:",omitempty"`
	Gone        bool              `json:",omitempty"` // the rank that failed has not reported that itself
	Data        []byte            `json:",omitempty"`
}

type kind string

const (
	kindWelcome   kind = "welcome"
	kindPeers     kind = "peers"
	kindGo        kind = "go"
	kindStop      kind = "stop"
	kindFail      kind = "fail"
	kindHello     kind = "hello"
	kindListening kind = "listening"
	kindConnected kind = "connected"
	kindTrouble   kind = "trouble"
	kindStatus    kind = "status"
	kindEvent     kind = "event"
	kindFailed    kind = "failed"
	kindDone      kind = "done"
	kindBeat      kind = "beat"
	kindAsk       kind = "ask"
	kindPart      kind = "part"
)

const (
	maxControl = 64 << 20 // a result as JSON
	maxText    = 16 << 10 // an error or status
)

// clip keeps a text within maxText.
func clip(s string) string {
	if len(s) > maxText {
		return s[:maxText] + " …"
	}
	return s
}

// control is one end of a control connection. Sending is safe from several goroutines.
type control struct {
	conn controlConn
	mu   sync.Mutex
}

// controlConn is a connection with deadlines: a socket, or the two pipes that a remote shell leaves to a worker.
type controlConn interface {
	io.ReadWriteCloser
	SetReadDeadline(t time.Time) error
	SetWriteDeadline(t time.Time) error
}

// sendTimeout bounds one message: a side that does not read for so long is not alive.
const sendTimeout = 10 * time.Second

func (c *control) send(m message) error {
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(body) > maxControl {
		return fmt.Errorf("cluster: a %s message of %d bytes; at most %d", m.Kind, len(body), maxControl)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.conn.SetWriteDeadline(time.Now().Add(sendTimeout))
	_, err = c.conn.Write(append(binary.LittleEndian.AppendUint32(nil, uint32(len(body))), body...))
	return err
}

// garbled is an error of what came over a control connection, not of the connection.
type garbled struct{ text string }

func (g *garbled) Error() string { return "cluster: " + g.text }

// readControl reads one message.
func readControl(r io.Reader) (message, error) {
	var m message
	var n [4]byte
	if _, err := io.ReadFull(r, n[:]); err != nil {
		return m, err
	}
	size := binary.LittleEndian.Uint32(n[:])
	if size > maxControl {
		return m, &garbled{fmt.Sprintf("a control message of %d bytes; at most %d", size, maxControl)}
	}
	var body bytes.Buffer // grows with what comes, not with what was announced
	if n, err := io.CopyN(&body, r, int64(size)); err != nil || n < int64(size) {
		return m, io.ErrUnexpectedEOF
	}
	if err := json.Unmarshal(body.Bytes(), &m); err != nil {
		return m, &garbled{fmt.Sprintf("a control message that cannot be read: %v", err)}
	}
	return m, nil
}
