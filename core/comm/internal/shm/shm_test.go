//go:build linux

package shm

import (
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestHandOver: what one end of a socket writes into a segment the other end sees in its own mapping.
func TestHandOver(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "")
		c, err := net.FileConn(f)
		_ = f.Close()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		ends[i] = c.(*net.UnixConn)
	}
	a, err := Create(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Reserve(4096, 8192); err != nil {
		t.Fatal(err)
	}
	if err := a.Send(ends[0]); err != nil {
		t.Fatal(err)
	}
	b, err := Receive(ends[1])
	if err != nil {
		t.Fatal(err)
	}
	a.Bytes()[5000] = 42
	if len(b.Bytes()) != 1<<20 || b.Bytes()[5000] != 42 || &a.Bytes()[0] == &b.Bytes()[0] {
		t.Errorf("the second mapping has %d bytes and reads %d", len(b.Bytes()), b.Bytes()[5000])
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if b.Bytes()[5000] != 42 {
		t.Error("the memory went with its maker")
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// TestBell: a sleeper wakes when the bell rings, long before its limit, and one with nothing to wait for does not sleep.
func TestBell(t *testing.T) {
	var b Bell
	var flag atomic.Bool
	begin := time.Now()
	b.Sleep(time.Minute, func() bool { return true })
	done := make(chan struct{})
	go func() {
		for !flag.Load() {
			b.Sleep(time.Minute, flag.Load)
		}
		close(done)
	}()
	time.Sleep(5 * time.Millisecond)
	flag.Store(true)
	b.Ring()
	<-done
	b.Sleep(time.Millisecond, func() bool { return false })
	if took := time.Since(begin); took > 30*time.Second {
		t.Errorf("waiting took %v", took)
	}
}

// TestReserveOutside: a segment does not grow.
func TestReserveOutside(t *testing.T) {
	s, err := Create(1 << 16)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, r := range [][2]int{{0, 1<<16 + 1}, {1 << 15, 1 << 16}, {-1, 10}, {0, 0}} {
		if err := s.Reserve(r[0], r[1]); err == nil {
			t.Errorf("%d bytes at %d of a segment of %d were reserved", r[1], r[0], 1<<16)
		}
	}
}
