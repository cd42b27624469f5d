//go:build linux

package shm

import (
	"testing"
	"unsafe"
)

// Mappings lie at the same place within a huge page as in their file, and hold what was there; huge pages change
// nothing in memory that is in use.
func TestHugePages(t *testing.T) {
	for _, size := range []int64{0, 1, 4096, hugePage - 1, hugePage, 3*hugePage + 5000} {
		f, err := Create("test", size)
		if err != nil {
			t.Fatal(err)
		}
		a, err := Map(f.Fd(), 0, size, true)
		if err != nil {
			t.Fatal(err)
		}
		if int64(len(a.Bytes)) != size {
			t.Fatalf("%d bytes, want %d", len(a.Bytes), size)
		}
		a.HugePages()
		for i := range a.Bytes {
			if a.Bytes[i] != 0 {
				t.Fatalf("fresh memory of %d bytes holds %d at %d", size, a.Bytes[i], i)
			}
			a.Bytes[i] = byte(i*7 + 1)
		}
		a.HugePages()
		b, err := Map(f.Fd(), 0, size, false)
		if err != nil {
			t.Fatal(err)
		}
		for i := range b.Bytes {
			if b.Bytes[i] != byte(i*7+1) {
				t.Fatalf("%d bytes: %d at %d", size, b.Bytes[i], i)
			}
		}
		for _, m := range []*Mapping{a, b} {
			if size >= hugePage && uintptr(unsafe.Pointer(&m.Bytes[0]))%hugePage != 0 {
				t.Errorf("%d bytes begin at %p", size, &m.Bytes[0])
			}
		}
		if size > 2*4096 {
			c, err := Map(f.Fd(), 4096, size-4096, false)
			if err != nil {
				t.Fatal(err)
			}
			if c.Bytes[0] != byte((4096*7+1)%256) {
				t.Errorf("from the second page on: %d", c.Bytes[0])
			}
			c.Unmap()
		}
		a.Unmap()
		b.Unmap()
		f.Close()
	}
}
