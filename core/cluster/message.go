package cluster

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"starling/core/comm"
)

// The control protocol between a worker and its launcher: JSON messages, each preceded by its length (u32, little-endian).
//
//	launcher → worker              worker → launcher
//	welcome  rank, world, secret,  hello      pid
//	         where to listen       listening  address
//	peers    all addresses         connected
//	go       all are connected     status     text
//	stop     end when convenient   event      data
//	fail     which rank, why       failed     text, whom it blames
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
	Silence     time.Duration     `json:",omitempty"`
	Credentials *comm.Credentials `json:",omitempty"`
	Share       comm.Sharing      `json:",omitempty"`
	Addrs       []string          `json:",omitempty"`
	Text        string            `json:",omitempty"`
	Blame       []int             `json:",omitempty"`
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
	kindStatus    kind = "status"
	kindEvent     kind = "event"
	kindFailed    kind = "failed"
	kindDone      kind = "done"
	kindBeat      kind = "beat"
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
	conn net.Conn
	mu   sync.Mutex
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

// readControl reads one message.
func readControl(r io.Reader) (message, error) {
	var m message
	var n [4]byte
	if _, err := io.ReadFull(r, n[:]); err != nil {
		return m, err
	}
	size := binary.LittleEndian.Uint32(n[:])
	if size > maxControl {
		return m, fmt.Errorf("cluster: a control message of %d bytes; at most %d", size, maxControl)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(r, body); err != nil {
		return m, io.ErrUnexpectedEOF
	}
	if err := json.Unmarshal(body, &m); err != nil {
		return m, fmt.Errorf("cluster: a control message that cannot be read: %w", err)
	}
	return m, nil
}
