//go:build linux

package vec

import (
	"math/rand/v2"
	"runtime/debug"
	"syscall"
	"testing"
	"unsafe"
)

// guarded is memory between two pages that fault on any access.
type guarded struct{ floats []float32 }

func newGuarded(t *testing.T) guarded {
	t.Helper()
	page := syscall.Getpagesize()
	m, err := syscall.Mmap(-1, 0, 3*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Munmap(m); err != nil {
			t.Error(err)
		}
	})
	for _, guard := range [][]byte{m[:page], m[2*page:]} {
		if err := syscall.Mprotect(guard, syscall.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	return guarded{unsafe.Slice((*float32)(unsafe.Pointer(&m[page])), page/4)}
}

// end is the last n elements before the upper guard page, start the first after
// the lower.
func (g guarded) end(n int) []float32   { return g.floats[len(g.floats)-n:] }
func (g guarded) start(n int) []float32 { return g.floats[:n:n] }

// faults reports whether f touches memory it may not.
func faults(f func()) (fault bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { fault = recover() != nil }()
	f()
	return false
}

func TestKernelsStayInTheirSlices(t *testing.T) {
	mem := make([]guarded, 6)
	for i := range mem {
		mem[i] = newGuarded(t)
	}
	if !faults(func() { mem[0].end(1)[:1][0] += *(*float32)(unsafe.Add(unsafe.Pointer(&mem[0].end(1)[0]), 4)) }) {
		t.Fatal("the guard page does not fault")
	}
	r := rand.New(rand.NewPCG(15, 16))
	eachSet(t, func(t *testing.T) {
		for _, c := range kernelCases {
			for n := 0; n <= 70; n++ {
				for _, cut := range []func(g guarded, n int) []float32{guarded.end, guarded.start} {
					in, out := make([][]float32, c.ins), make([][]float32, c.out)
					for i := range in {
						in[i] = cut(mem[i], n)
						fillWith(r, "normal", in[i])
					}
					for i := range out {
						out[i] = cut(mem[c.ins+i], n)
						fillWith(r, "normal", out[i])
					}
					if faults(func() { c.run(in, out) }) {
						t.Fatalf("%s touches memory outside slices of %d elements", c.name, n)
					}
				}
			}
		}
	})
}

// TestKernelsWriteTheirSlicesOnly looks at the elements around odd offsets.
func TestKernelsWriteTheirSlicesOnly(t *testing.T) {
	const sentinel = 12345
	r := rand.New(rand.NewPCG(17, 18))
	eachSet(t, func(t *testing.T) {
		for _, c := range kernelCases {
			for n := 0; n <= 70; n++ {
				in, out, whole := make([][]float32, c.ins), make([][]float32, c.out), make([][]float32, c.out)
				for i := range in {
					in[i] = normals(r, n+i+1)[i+1:]
				}
				for i := range out {
					whole[i] = make([]float32, 40+n+40)
					Fill(whole[i], sentinel)
					out[i] = whole[i][37+i:][:n:n]
					fillWith(r, "normal", out[i])
				}
				c.run(in, out)
				for i := range whole {
					for j, v := range whole[i] {
						if (j < 37+i || j >= 37+i+n) && v != sentinel {
							t.Fatalf("%s of %d elements wrote %d elements from its slice's start", c.name, n, j-37-i)
						}
					}
				}
			}
		}
	})
}

func TestGemmStaysInItsSlices(t *testing.T) {
	mem := []guarded{newGuarded(t), newGuarded(t), newGuarded(t), newGuarded(t)}
	r := rand.New(rand.NewPCG(19, 20))
	eachSet(t, func(t *testing.T) {
		for i := range 300 {
			m, n, k := 1+r.IntN(30), 1+r.IntN(30), 1+r.IntN(30)
			g := GemmArgs{M: m, N: n, K: k, LDA: k, LDB: n, LDC: n, TransA: i&1 != 0, TransB: i&2 != 0, Accumulate: i&4 != 0}
			if g.TransA {
				g.LDA = m
			}
			if g.TransB {
				g.LDB = k
			}
			cut := guarded.end
			if i&8 != 0 {
				cut = guarded.start
			}
			g.A, g.B, g.C = cut(mem[0], m*k), cut(mem[1], k*n), cut(mem[2], m*n)
			if i&16 != 0 {
				g.Bias = cut(mem[3], n)
			}
			scratch := make([]float32, GemmScratch(&g))
			if faults(func() { Gemm(&g, 0, m, 0, n, scratch) }) {
				t.Fatalf("%dx%dx%d, A transposed %v, B transposed %v: memory outside its slices touched", m, n, k, g.TransA, g.TransB)
			}
		}
	})
}

// TestGemmStaysInItsScratch looks at the elements around the scratch space.
func TestGemmStaysInItsScratch(t *testing.T) {
	r := rand.New(rand.NewPCG(21, 22))
	eachSet(t, func(t *testing.T) {
		for i := range 24 {
			p := newProduct(r, 100, 97+i, 3+i, i&1 != 0, i&2 != 0, false)
			need := GemmScratch(&p.GemmArgs)
			buf := make([]float32, need+64)
			Fill(buf, 12345)
			Gemm(&p.GemmArgs, 0, p.M, 0, p.N, buf[32:32+need:32+need])
			for _, s := range [][]float32{buf[:32], buf[32+need:]} {
				for _, v := range s {
					if v != 12345 {
						t.Fatalf("%dx%dx%d writes outside its scratch", p.M, p.N, p.K)
					}
				}
			}
		}
	})
}

func TestHalfFunctionsStayInTheirSlices(t *testing.T) {
	a, b, y := newGuarded(t), newGuarded(t), newGuarded(t)
	at := func(g guarded, n int, end bool) []uint16 {
		x := unsafe.Slice((*uint16)(unsafe.Pointer(&g.floats[0])), 2*len(g.floats))
		if end {
			return x[len(x)-n:]
		}
		return x[:n:n]
	}
	eachSet(t, func(t *testing.T) {
		for n := 0; n <= 70; n++ {
			for _, end := range []bool{false, true} {
				a, b, dst := at(a, n, end), at(b, n, end), at(y, n, end)
				wide := y.start(n)
				if end {
					wide = y.end(n)
				}
				for name, f := range halfFunctions {
					if faults(func() {
						if f.one != nil {
							f.one(dst, a)
						} else {
							f.two(dst, a, b)
						}
					}) {
						t.Fatalf("%s touches memory outside slices of %d elements", name, n)
					}
				}
				if faults(func() { AddWide(wide, a) }) || faults(func() { AddRound(a, wide, wide) }) {
					t.Fatalf("AddWide or AddRound touches memory outside slices of %d elements", n)
				}
			}
		}
	})
}
