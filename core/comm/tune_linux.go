package comm

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// Tune prepares a TCP connection for bulk data. Where both ends are on this machine there is no link to share: an algorithm
// that paces what it sends, such as BBR, only slows it down, so the plain one that every process may choose takes its place.
func Tune(c net.Conn) {
	t, ok := c.(*net.TCPConn)
	if !ok || !sameMachine(t) {
		return
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { // without it the connection works as well, if slower
		if now, err := unix.GetsockoptString(int(fd), syscall.IPPROTO_TCP, unix.TCP_CONGESTION); err != nil || now != "cubic" {
			_ = unix.SetsockoptString(int(fd), syscall.IPPROTO_TCP, unix.TCP_CONGESTION, "reno")
		}
	})
}

// sameMachine reports whether a connection leads from an address to itself, or over the loopback.
func sameMachine(c *net.TCPConn) bool {
	here, ok := c.LocalAddr().(*net.TCPAddr)
	there, also := c.RemoteAddr().(*net.TCPAddr)
	return ok && also && (here.IP.IsLoopback() || here.IP.Equal(there.IP))
}
