package comm

import (
	"fmt"
	"net"
	"strings"
	"testing"
)

// TestLocalAddress: an interface or a subnet stands for an address of this machine, and automatic choice never takes the
// loopback.
func TestLocalAddress(t *testing.T) {
	for host, want := range map[string]string{
		"[127.0.0.0/8]:29500": "127.0.0.1:29500",
		"127.0.0.0/8:0":       "127.0.0.1:0",
		"127.0.0.1:5":         "127.0.0.1:5",
		"localhost:5":         "localhost:5",
	} {
		if got, err := localAddress(host); err != nil || got != want {
			t.Errorf("%s gives %q (%v), want %q", host, got, err, want)
		}
	}
	if _, err := localAddress("203.0.113.0/24:0"); err == nil || !strings.Contains(err.Error(), "it has ") || !strings.Contains(err.Error(), "127.0.0.1") {
		t.Errorf("a foreign subnet gives %v", err)
	}
	if got, err := localAddress("auto:0"); err == nil {
		host, _, _ := net.SplitHostPort(got)
		if ip := net.ParseIP(host); ip == nil || ip.IsLoopback() {
			t.Errorf("auto gives %s", got)
		}
	}
	devices, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range devices {
		if d.Flags&net.FlagLoopback != 0 {
			if got, err := localAddress(d.Name + ":7"); err != nil || got != "127.0.0.1:7" {
				t.Errorf("%s gives %q, %v", d.Name, got, err)
			}
		}
	}
}

// TestPortRange: the first free port of a range is taken, and a range that is full or no range is said.
func TestPortRange(t *testing.T) {
	first, err := Listen(t.Context(), "tcp:127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	port := first.Addr().(*net.TCPAddr).Port
	full := fmt.Sprintf("tcp:127.0.0.1:%d-%d", port, port)
	if _, err := Listen(t.Context(), full); err == nil || !strings.Contains(err.Error(), "all 1 ports") {
		t.Errorf("a full range: %v", err)
	}
	l, err := Listen(t.Context(), fmt.Sprintf("tcp:127.0.0.1:%d-%d", port, min(port+50, 65535)))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if got := l.Addr().(*net.TCPAddr).Port; got <= port || got > port+50 {
		t.Errorf("port %d, outside the range after %d", got, port)
	}
	for _, bad := range []string{"5-4", "0-3", "a-b", "-", "70000-70001"} {
		if _, err := Listen(t.Context(), "tcp:127.0.0.1:"+bad); err == nil || !strings.Contains(err.Error(), "port range") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	// Where all interfaces are meant, others must be able to come: the address is a real one.
	for _, any := range []string{"tcp:0.0.0.0:0", "tcp:[::]:0", "tcp::0"} {
		l, err := Listen(t.Context(), any)
		if err != nil {
			t.Logf("%s: %v", any, err) // a machine without a network
			continue
		}
		if l.Addr().(*net.TCPAddr).IP.IsUnspecified() {
			t.Errorf("%s listens at %s, where nobody can connect to", any, l.Addr())
		}
		_ = l.Close()
	}
}
