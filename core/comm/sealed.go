package comm

import (
	"bufio"
	"io"
	"net"
	"sync"
)

// sealedConn lies between TLS and the connection. What is encrypted it gathers, so that many records leave in one system call, when
// and as far as the connection takes them; what comes it reads many records at a time.
type sealedConn struct {
	net.Conn
	from io.Reader // what in reads: the connection, or who looks before it waits
	in   *bufio.Reader

	mu      sync.Mutex
	gathers bool
	out     []byte
}

// sealedRead is how much is read at a time: four records.
const sealedRead = 64 << 10

func newSealedConn(c net.Conn) *sealedConn {
	s := &sealedConn{Conn: c, from: c}
	s.in = bufio.NewReaderSize(sealedSource{s}, sealedRead)
	return s
}

type sealedSource struct{ *sealedConn }

func (s sealedSource) Read(b []byte) (int, error) { return s.from.Read(b) }

func (s *sealedConn) Read(b []byte) (int, error) { return s.in.Read(b) }

func (s *sealedConn) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.gathers { // a handshake, an alert
		return s.Conn.Write(b)
	}
	s.out = append(s.out, b...)
	return len(b), nil
}

// gather encrypts what is in front of parts, most bytes of it, by t, whose connection this is, and returns what is to be written. It is
// good until the next call.
func (s *sealedConn) gather(t io.Writer, parts *net.Buffers, most int) ([]byte, error) {
	s.mu.Lock()
	s.gathers, s.out = true, s.out[:0]
	s.mu.Unlock()
	var err error
	for most > 0 && len(*parts) > 0 && err == nil {
		b := (*parts)[0]
		b = b[:min(len(b), most)]
		if _, err = t.Write(b); err == nil { // else parts remain, and with them who meets the error again
			most -= len(b)
			if (*parts)[0] = (*parts)[0][len(b):]; len((*parts)[0]) == 0 {
				*parts = (*parts)[1:]
			}
		}
	}
	s.mu.Lock() // the reader may be sending an alert
	defer s.mu.Unlock()
	s.gathers = false
	return s.out, err
}
