package comm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"syscall"

	"starling/core/comm/machine"
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

// Listen opens a listener at "unix:/path" or "tcp:host:port"; port 0 takes any free one (see Address), and first-last the
// first free one of a range. The host may also be the name of an interface ("tcp:eth0:0"), a subnet in which this machine
// has an address ("tcp:10.0.0.0/8:29500", "tcp:[fd00::/8]:0"), or "auto", an address that other machines may reach, of the fastest interface.
func Listen(ctx context.Context, addr string) (net.Listener, error) {
	network, rest, err := splitAddress(addr)
	if err != nil {
		return nil, err
	}
	if network == "tcp" {
		if rest, err = localAddress(rest); err != nil {
			return nil, fmt.Errorf("comm: cannot listen on %s: %w", addr, err)
		}
	}
	if network == "tcp" {
		host, port, err := net.SplitHostPort(rest)
		if err != nil {
			return nil, fmt.Errorf("comm: bad address %q: %w", addr, err)
		}
		if strings.Contains(port, "-") {
			return listenInRange(ctx, addr, host, port)
		}
	}
	return listen(ctx, addr, network, rest)
}

// PortRange reads first-last.
func PortRange(s string) (first, last int, err error) {
	a, b, ok := strings.Cut(s, "-")
	first, errA := strconv.Atoi(a)
	last, errB := strconv.Atoi(b)
	if !ok || errA != nil || errB != nil || first < 1 || last < first || last > 65535 {
		return 0, 0, fmt.Errorf("port range %q: want first-last between 1 and 65535", s)
	}
	return first, last, nil
}

// listenInRange takes the first port of a range that nobody has.
func listenInRange(ctx context.Context, addr, host, ports string) (net.Listener, error) {
	first, last, err := PortRange(ports)
	if err != nil {
		return nil, fmt.Errorf("comm: bad address %q: %w", addr, err)
	}
	for port := first; port <= last; port++ {
		l, err := listen(ctx, addr, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if err == nil || !errors.Is(err, syscall.EADDRINUSE) {
			return l, err
		}
	}
	return nil, fmt.Errorf("comm: all %d ports of %s are taken; name a wider range, or port 0 for any free one: %w", last-first+1, addr, syscall.EADDRINUSE)
}

func listen(ctx context.Context, addr, network, rest string) (net.Listener, error) {
	var lc net.ListenConfig
	var unknown *net.DNSError
	l, err := lc.Listen(ctx, network, rest)
	switch {
	case err == nil:
		return l, nil
	case errors.As(err, &unknown):
		return nil, fmt.Errorf("comm: cannot listen on %s: %q is neither an interface of this machine, which has %s, nor a name that it can resolve: %w", addr, unknown.Name, strings.Join(interfaceNames(), ", "), err)
	case errors.Is(err, syscall.EADDRINUSE) && network == "tcp":
		return nil, fmt.Errorf("comm: %s is taken: another process listens there; name another port, or port 0 for any free one: %w", addr, err)
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("comm: %s is taken: the socket exists already; remove it if no run uses it, or name another path: %w", addr, err)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("comm: %s is no address of this machine; name one of its own interfaces: %w", addr, err)
	}
	return nil, fmt.Errorf("comm: cannot listen on %s: %w", addr, err)
}

// interfaceNames lists the machine's interfaces.
func interfaceNames() []string {
	devices, _ := net.Interfaces() // only for a message
	names := make([]string, len(devices))
	for i, d := range devices {
		names[i] = d.Name
	}
	return names
}

// localAddress turns an interface, a subnet or "auto" into one of this machine's addresses; others stay as they are, but
// an unspecified one, where nobody could connect to, counts as auto. IPv4 goes before IPv6, and a fast interface before a slow one.
func localAddress(hostPort string) (string, error) {
	host, port, err := net.SplitHostPort(hostPort)
	if err != nil {
		return "", err
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() || host == "" {
		host = "auto"
	}
	_, subnet, err := net.ParseCIDR(host)
	isSubnet := err == nil
	device, err := net.InterfaceByName(host)
	isDevice := err == nil && net.ParseIP(host) == nil
	if !isSubnet && !isDevice && host != "auto" {
		return hostPort, nil
	}
	devices, err := net.Interfaces()
	if err != nil {
		return "", err
	}
	var found net.IP
	fastest := 0
	var seen []string
	for _, d := range devices {
		if d.Flags&net.FlagUp == 0 || isDevice && d.Index != device.Index || host == "auto" && d.Flags&net.FlagLoopback != 0 {
			continue
		}
		addrs, err := d.Addrs()
		if err != nil {
			return "", err
		}
		for _, a := range addrs {
			n, ok := a.(*net.IPNet)
			if !ok || n.IP.IsLinkLocalUnicast() {
				continue
			}
			seen = append(seen, d.Name+" "+n.IP.String())
			if isSubnet && !subnet.Contains(n.IP) {
				continue
			}
			speed := 0
			if host == "auto" {
				speed = machine.LinkSpeed("/sys", d.Name)
			}
			if v4 := n.IP.To4() != nil; found == nil || speed > fastest || speed == fastest && found.To4() == nil && v4 {
				found, fastest = n.IP, speed
			}
		}
	}
	if found == nil {
		return "", fmt.Errorf("no address of this machine fits %s; it has %s", host, strings.Join(seen, ", "))
	}
	return net.JoinHostPort(found.String(), port), nil
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
