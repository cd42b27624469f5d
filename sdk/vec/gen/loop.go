package main

import (
	"fmt"
	"strings"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/gotypes"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// lanes is vec.Lanes, the accumulators of a reduction.
const lanes = 32

// pass is one vector's worth of a kernel's loop: its body loads, computes and
// stores through it.
type pass struct {
	*isa
	fn   *function
	disp int // bytes past the loop's offset
	lane int // which vector of the lanes
	tail bool
	k    Register // AVX-512's mask of a tail
}

// function is the kernel being written.
type function struct {
	*isa
	ptr  map[string]Register
	acc  map[string][]VecVirtual
	off  Register // bytes from the pointers to the loop's position
	left Register // elements from there on
}

func (p *pass) mem(name string) Mem {
	return Mem{Base: p.fn.ptr[name], Index: p.fn.off, Scale: 1, Disp: p.disp}
}

// tailMask is AVX2's mask of this vector of a tail.
func (p *pass) tailMask() VecVirtual {
	t, n, m := GP64(), GP64(), p.vec()
	LEAQ(tailMasks(), t)
	MOVQ(p.fn.left, n)
	NEGQ(n)
	VMOVUPS(Mem{Base: t, Index: n, Scale: 4, Disp: 4*lanes + 32*p.lane}, m)
	return m
}

// in reads a slice's vector; elements past the end are zero.
func (p *pass) in(name string) VecVirtual {
	v := p.vec()
	switch {
	case !p.tail:
		VMOVUPS(p.mem(name), v)
	case p.wide:
		VMOVUPS_Z(p.mem(name), p.k, v)
	default:
		VMASKMOVPS(p.mem(name), p.tailMask(), v)
	}
	return v
}

// out writes a slice's vector.
func (p *pass) out(name string, v VecVirtual) {
	switch {
	case !p.tail:
		VMOVUPS(v, p.mem(name))
	case p.wide:
		VMOVUPS(v, p.k, p.mem(name))
	default:
		VMASKMOVPS(v, p.tailMask(), p.mem(name))
	}
}

// kept zeroes the elements past the end, in place.
func (p *pass) kept(v VecVirtual) VecVirtual {
	switch {
	case !p.tail:
	case p.wide:
		VMOVAPS_Z(v, p.k, v)
	default:
		VANDPS(p.tailMask(), v, v)
	}
	return v
}

// keptOr sets the elements past the end to a constant.
func (p *pass) keptOr(v VecVirtual, c Mem) VecVirtual {
	switch {
	case !p.tail:
		return v
	case p.wide:
		return p.choose(mask{k: p.k}, v, p.load(c))
	default:
		return p.choose(mask{v: p.tailMask()}, v, p.load(c))
	}
}

// acc is the accumulator of this vector's lanes.
func (p *pass) acc(name string) VecVirtual { return p.fn.acc[name][p.lane] }

// scalar is a float32 parameter in every element.
func (p *pass) scalar(name string) VecVirtual {
	v := p.vec()
	VBROADCASTSS(address(name), v)
	return v
}

// item is an element of an array that a parameter points to, in every element.
func (p *pass) item(name string, i int) VecVirtual {
	v := p.vec()
	VBROADCASTSS(Mem{Base: p.fn.ptr[name], Disp: 4 * i}, v)
	return v
}

// address is where a parameter lies.
func address(param string) Mem { return memory(Param(param)) }

func memory(c gotypes.Component) Mem {
	b, err := c.Resolve()
	if err != nil {
		panic(err)
	}
	return b.Addr
}

// begin declares a kernel and loads its slices' pointers and their length.
func (s *isa) begin(k kernel) *function {
	f := &function{isa: s, ptr: map[string]Register{}, acc: map[string][]VecVirtual{}}
	ps := parse(k.params)
	result := ""
	switch {
	case k.fold != "":
		var names []string
		for _, p := range ps {
			if strings.HasPrefix(p.typ, "*[") {
				names = append(names, p.name+"Total")
			}
		}
		result = " (" + strings.Join(names, ", ") + " float32)"
	case k.result != "":
		result = " (ret " + k.result + ")"
	}
	TEXT(k.name+s.suffix, NOSPLIT, "func("+k.params+")"+result)
	Pragma("noescape")
	for _, p := range ps {
		switch {
		case strings.HasPrefix(p.typ, "[]"):
			f.ptr[p.name] = Load(Param(p.name).Base(), GP64())
			if f.left == nil {
				f.left = Load(Param(p.name).Len(), GP64())
			}
		case strings.HasPrefix(p.typ, "*["):
			f.ptr[p.name] = Load(Param(p.name), GP64())
		}
	}
	f.off = GP64()
	XORQ(f.off, f.off)
	return f
}

// step emits n passes' advance.
func (f *function) step(label string, n int) {
	ADDQ(imm(n*f.bytes()), f.off)
	SUBQ(imm(n*f.width), f.left)
	JGE(LabelRef(label))
}

// each writes an elementwise kernel: body for every vector, unroll of them in
// the main loop, and once more, masked, for what is left.
func (s *isa) each(name string, unroll int, body func(p *pass)) {
	k := find(name)
	f := s.begin(k)
	loop := func(n int) {
		label, end := fmt.Sprintf("by%d", n), fmt.Sprintf("end%d", n)
		SUBQ(imm(n*s.width), f.left)
		JL(LabelRef(end))
		Label(label)
		for i := range n {
			body(&pass{isa: s, fn: f, disp: i * s.bytes()})
		}
		f.step(label, n)
		Label(end)
		ADDQ(imm(n*s.width), f.left)
	}
	if unroll > 1 {
		loop(unroll)
	}
	loop(1)
	JZ(LabelRef("done"))
	p := &pass{isa: s, fn: f, tail: true}
	if s.wide {
		p.k = f.tailK(0)
	}
	body(p)
	Label("done")
	VZEROUPPER()
	RET()
}

// tailK is the opmask of a vector of the elements left.
func (f *function) tailK(vector int) Register {
	m, k := GP64(), K()
	MOVQ(I32(-1), m)
	BZHIQ(f.left, m, m)
	if vector > 0 {
		SHRQ(Imm(uint64(f.width*vector)), m)
	}
	KMOVW(m.As32(), k)
	return k
}

// fold writes a reduction: accs name the parameters that point to lanes, which
// begin at identity and stay in registers where the pointer is nil; f combines
// an upper lane with a lower one.
func (s *isa) fold(name string, accs []string, identity float64, f func(upper, lower VecVirtual) VecVirtual, body func(p *pass)) {
	fn := s.begin(find(name))
	vectors := lanes / s.width
	each := func(do func(v VecVirtual, m Mem)) {
		for _, a := range accs {
			for i, v := range fn.acc[a] {
				do(v, Mem{Base: fn.ptr[a], Disp: i * s.bytes()})
			}
		}
	}
	for _, a := range accs {
		fn.acc[a] = s.vecs(vectors)
	}
	kept := fn.ptr[accs[0]]
	TESTQ(kept, kept)
	JNZ(LabelRef("continued"))
	each(func(v VecVirtual, _ Mem) { VMOVUPS(f32(identity), v) })
	JMP(LabelRef("begun"))
	Label("continued")
	each(func(v VecVirtual, m Mem) { VMOVUPS(m, v) })
	Label("begun")

	SUBQ(imm(lanes), fn.left)
	JL(LabelRef("rest"))
	Label("loop")
	for i := range vectors {
		body(&pass{isa: s, fn: fn, disp: i * s.bytes(), lane: i})
	}
	fn.step("loop", vectors)
	Label("rest")
	ADDQ(imm(lanes), fn.left)
	JZ(LabelRef("done"))
	for i := range vectors {
		p := &pass{isa: s, fn: fn, disp: i * s.bytes(), lane: i, tail: true}
		if s.wide {
			p.k = fn.tailK(i)
		}
		body(p)
	}
	Label("done")

	TESTQ(kept, kept)
	JZ(LabelRef("total"))
	each(func(v VecVirtual, m Mem) { VMOVUPS(v, m) })
	Label("total")
	for _, a := range accs {
		VMOVSS(s.combine(fn.acc[a], f).AsX(), memory(Return(a+"Total")))
	}
	VZEROUPPER()
	RET()
}

// combine folds lanes by halves; the first element is the result.
func (s *isa) combine(v []VecVirtual, f func(upper, lower VecVirtual) VecVirtual) VecVirtual {
	for ; len(v) > 1; v = v[:len(v)/2] {
		for i := range len(v) / 2 {
			v[i] = f(v[i+len(v)/2], v[i])
		}
	}
	x := v[0]
	swap := func(to func(d VecVirtual)) {
		d := s.vec()
		to(d)
		x = f(d, x)
	}
	if s.wide {
		swap(func(d VecVirtual) { VSHUFF32X4(Imm(0x4e), x, x, d) })
		swap(func(d VecVirtual) { VSHUFF32X4(Imm(0xb1), x, x, d) })
	} else {
		swap(func(d VecVirtual) { VPERM2F128(Imm(1), x, x, d) })
	}
	swap(func(d VecVirtual) { VPERMILPS(Imm(0x4e), x, d) })
	swap(func(d VecVirtual) { VPERMILPS(Imm(0xb1), x, d) })
	return x
}

// find is a kernel of the table.
func find(name string) kernel {
	for _, k := range kernels {
		if k.name == name {
			return k
		}
	}
	panic("no kernel " + name)
}
