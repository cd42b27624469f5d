package shm

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Supported reports whether this system has memory files.
const Supported = true

// Create makes a memory file of the given size, zeroed. Its size can no longer be changed, so that a mapping of it cannot fault.
func Create(name string, bytes int64) (*os.File, error) {
	fd, err := unix.MemfdCreate("starling-"+name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memory file %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	if err := f.Truncate(bytes); err != nil {
		f.Close()
		return nil, fmt.Errorf("memory file %s of %d bytes: %w", name, bytes, err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		f.Close()
		return nil, fmt.Errorf("memory file %s: fixing its size: %w", name, err)
	}
	return f, nil
}

// ReadOnly opens a memory file again such that neither writes nor mappings for writing are possible through it.
func ReadOnly(f *os.File) (*os.File, error) {
	r, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.O_RDONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("memory file %s: %w", f.Name(), err)
	}
	return r, nil
}

// hugePage is the size of a huge page. Memory lies at the same place within one as in its file, without which the system gives none.
const hugePage = 2 << 20

// Map maps bytes of a memory file from offset, a multiple of the page size, with a guard page or more on either side.
func Map(fd uintptr, offset, bytes int64, write bool) (*Mapping, error) {
	if bytes == 0 {
		return &Mapping{}, nil
	}
	page := int64(os.Getpagesize())
	inner := (bytes + page - 1) / page * page
	room := inner + 2*page
	if inner >= hugePage {
		room += hugePage
	}
	whole, err := unix.Mmap(-1, 0, int(room), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("reserving %d bytes of addresses: %w", inner, err)
	}
	prot := unix.PROT_READ
	if write {
		prot |= unix.PROT_WRITE
	}
	at := page
	if inner >= hugePage {
		first := int64(uintptr(unsafe.Pointer(&whole[page])))
		at += ((offset-first)%hugePage + hugePage) % hugePage
	}
	p, err := unix.MmapPtr(int(fd), offset, unsafe.Pointer(&whole[at]), uintptr(inner), prot, unix.MAP_SHARED|unix.MAP_FIXED)
	if err != nil {
		_ = unix.Munmap(whole)
		return nil, fmt.Errorf("mapping %d bytes of a memory file: %w", bytes, err)
	}
	return &Mapping{unsafe.Slice((*byte)(p), bytes), whole}, nil
}

// Unmap gives the addresses back.
func (m *Mapping) Unmap() {
	if m.whole != nil {
		_ = unix.Munmap(m.whole)
	}
	m.Bytes, m.whole = nil, nil
}

// HugePages backs fresh memory by huge pages where the system has them: whoever maps the file then has them too. Most systems give none to memory
// files by themselves, but make them of pages that are there (MADV_COLLAPSE, since Linux 6.1): one of each is touched.
func (m *Mapping) HugePages() {
	if len(m.Bytes) == 0 {
		return
	}
	_ = unix.Madvise(m.Bytes, unix.MADV_HUGEPAGE)
	first := uintptr(unsafe.Pointer(&m.Bytes[0]))
	lo := int((hugePage - first%hugePage) % hugePage)
	n := (len(m.Bytes) - lo) / hugePage * hugePage
	if n <= 0 {
		return
	}
	probe := byte(0)
	for at := lo; at < lo+n; at += hugePage {
		probe |= m.Bytes[at]
	}
	if probe == 0 { // as fresh memory is; else it is in use
		_ = unix.Madvise(m.Bytes[lo:lo+n], unix.MADV_COLLAPSE)
	}
}
