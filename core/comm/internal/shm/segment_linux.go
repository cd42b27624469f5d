package shm

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Supported says whether this system has segments.
const Supported = true

// Segment is memory that several processes have mapped. Pages become resident when they are first touched or reserved.
type Segment struct {
	file *os.File
	mem  []byte
}

// Create makes a segment of so many bytes.
func Create(bytes int) (*Segment, error) {
	fd, err := unix.MemfdCreate("starling", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("making shared memory: memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), "memfd:starling")
	if err := f.Truncate(int64(bytes)); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("making shared memory of %d bytes: %w", bytes, err)
	}
	return open(f)
}

// open maps the segment behind f, which it takes over.
func open(f *os.File) (*Segment, error) {
	st, err := f.Stat()
	if err == nil && st.Size() < 1 {
		err = fmt.Errorf("it has %d bytes", st.Size())
	}
	var mem []byte
	if err == nil {
		mem, err = unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("mapping shared memory: %w", err)
	}
	_ = unix.Madvise(mem, unix.MADV_DONTDUMP) // most of it is addresses
	return &Segment{f, mem}, nil
}

// Bytes returns the memory.
func (s *Segment) Bytes() []byte { return s.mem }

// Reserve makes the pages of [from, from+n) resident, so that touching them cannot fail later.
func (s *Segment) Reserve(from, n int) error {
	if from < 0 || n < 1 || from > len(s.mem)-n {
		return fmt.Errorf("reserving %d bytes at %d of %d bytes of shared memory", n, from, len(s.mem))
	}
	for {
		err := unix.Fallocate(int(s.file.Fd()), 0, int64(from), int64(n))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("reserving %d bytes of shared memory: %w; the machine or its memory limit has no room for them", n, err)
		}
		return nil
	}
}

// Resident returns how many bytes of it this process has touched, 0 where the system does not tell.
func (s *Segment) Resident() int64 {
	b, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return 0
	}
	own := false
	for line := range bytes.Lines(b) {
		name, rest, _ := bytes.Cut(line, []byte{' '})
		if from, _, ok := bytes.Cut(name, []byte{'-'}); ok {
			at, err := strconv.ParseUint(string(from), 16, 64)
			own = err == nil && uintptr(at) == uintptr(unsafe.Pointer(unsafe.SliceData(s.mem)))
		}
		if own && string(name) == "Rss:" {
			kb, _ := strconv.ParseInt(string(bytes.Fields(rest)[0]), 10, 64)
			return kb << 10
		}
	}
	return 0
}

// Release gives the pages of [from, from+n) back; they read as zeros.
func (s *Segment) Release(from, n int) error {
	return unix.Fallocate(int(s.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(from), int64(n))
}

// Close unmaps the segment; its memory is freed when the last process has.
func (s *Segment) Close() error {
	err := unix.Munmap(s.mem)
	if e := s.file.Close(); err == nil {
		err = e
	}
	s.mem = nil
	return err
}

// Send hands the segment to the process at the other end of c.
func (s *Segment) Send(c *net.UnixConn) error {
	n, oob, err := c.WriteMsgUnix([]byte{'m'}, unix.UnixRights(int(s.file.Fd())), nil)
	if err == nil && (n != 1 || oob == 0) {
		err = fmt.Errorf("only %d and %d bytes went", n, oob)
	}
	if err != nil {
		return fmt.Errorf("handing over shared memory: %w", err)
	}
	return nil
}

// Receive takes a segment that the process at the other end of c sends.
func Receive(c *net.UnixConn) (*Segment, error) {
	var b [1]byte
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := c.ReadMsgUnix(b[:], oob)
	if err != nil {
		return nil, fmt.Errorf("taking over shared memory: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		return nil, fmt.Errorf("taking over shared memory: %d control messages: %w", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, fmt.Errorf("taking over shared memory: %d descriptors: %w", len(fds), err)
	}
	unix.CloseOnExec(fds[0])
	return open(os.NewFile(uintptr(fds[0]), "memfd:starling"))
}
