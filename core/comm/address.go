package comm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
)

// maxSocketPath is the longest Unix socket path that every supported system takes.
const maxSocketPath = 100

// splitAddress takes "unix:/path" or "tcp:host:port" apart.
func splitAddress(addr string) (network, rest string, err error) {
	network, rest, ok := strings.Cut(addr, ":")
	switch {
	case ok && network == "unix" && rest != "":
		if len(rest) > maxSocketPath {
			return "", "", fmt.Errorf("comm: socket path %s has %d bytes, more than the %d that systems allow; choose a shorter directory (TMPDIR)", rest, len(rest), maxSocketPath)
		}
		return network, rest, nil
	case ok && network == "tcp":
		if _, _, err := net.SplitHostPort(rest); err == nil {
			return network, rest, nil
		}
	}
	return "", "", fmt.Errorf("comm: bad address %q: want unix:/path or tcp:host:port", addr)
}

// Listen opens a listener at "unix:/path" or "tcp:host:port"; port 0 takes any free one (see Address).
func Listen(ctx context.Context, addr string) (net.Listener, error) {
	network, rest, err := splitAddress(addr)
	if err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, network, rest)
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, syscall.EADDRINUSE) && network == "tcp":
		return nil, fmt.Errorf("comm: %s is taken: another process listens there; name another port, or port 0 for any free one: %w", addr, err)
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("comm: %s is taken: the socket exists already; remove it if no run uses it, or name another path: %w", addr, err)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("comm: %s is no address of this machine; name one of its own interfaces: %w", addr, err)
	}
	return nil, fmt.Errorf("comm: cannot listen on %s: %w", addr, err)
}

// Address returns where l listens, in the form that Listen and Dial take, the port really used included.
func Address(l net.Listener) string {
	return l.Addr().Network() + ":" + l.Addr().String()
}

// Dial connects to an address that Listen was given.
func Dial(ctx context.Context, addr string) (net.Conn, error) {
	network, rest, err := splitAddress(addr)
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	return d.DialContext(ctx, network, rest)
}
