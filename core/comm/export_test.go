package comm

import (
	"net"
	"time"
)

// NewSocketTransport wraps connections that a test made itself.
func NewSocketTransport(rank int, conns []net.Conn) Transport {
	return newSocketTransport(rank, conns, "test", time.Second, time.Minute)
}
