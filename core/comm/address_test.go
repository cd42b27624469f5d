package comm

import (
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
