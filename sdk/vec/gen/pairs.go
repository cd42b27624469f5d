package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// Neither avo nor Go's assembler knows AVX512_BF16: its instructions are written as bytes, as those of AMX are.

// wideRegisters are the vector registers by number.
var wideRegisters = []Register{
	Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7, Z8, Z9, Z10, Z11, Z12, Z13, Z14, Z15,
	Z16, Z17, Z18, Z19, Z20, Z21, Z22, Z23, Z24, Z25, Z26, Z27, Z28, Z29, Z30, Z31,
}

// number is a vector register's.
func number(v Register) int {
	for i, r := range wideRegisters {
		if r == v {
			return i
		}
	}
	panic("no vector register with a number")
}

// asRegisters is the same registers by their wider type.
func asRegisters(v []VecVirtual) []Register {
	all := make([]Register, len(v))
	for i := range v {
		all[i] = v[i]
	}
	return all
}

// dotPairs adds to each element of c the products of a pair of bfloat16 in a and b: of the upper ones first, then of the lower
// ones, each in a fused multiply-add.
func dotPairs(a, b, c Register) {
	x, y, z := number(a), number(b), number(c)
	code := [6]byte{
		0x62, byte(^z>>3&1<<7 | ^x>>4&1<<6 | ^x>>3&1<<5 | ^z>>4&1<<4 | 2), byte(^y&15<<3 | 4 | 2), byte(0x40 | ^y>>4&1<<3),
		0x52, byte(0xc0 | z&7<<3 | x&7),
	}
	Comment(fmt.Sprintf("VDPBF16PS %s, %s, %s", a.Asm(), b.Asm(), c.Asm()))
	Instruction(&ir.Instruction{Opcode: "LONG", Operands: []Op{U32(uint32(code[0]) | uint32(code[1])<<8 | uint32(code[2])<<16 | uint32(code[3])<<24)}})
	Instruction(&ir.Instruction{Opcode: "WORD", Operands: []Op{U16(uint16(code[4]) | uint16(code[5])<<8)}})
}

// pairPeak writes a loop of independent dot products, as peak does of multiply-adds.
func pairPeak() {
	const chains = 20 // 6 cycles of latency, two a cycle, with room
	TEXT("pairLoopAVX512", NOSPLIT, "func(n int)")
	n := Load(Param("n"), GP64())
	for _, v := range wideRegisters {
		avx512.zero(v)
	}
	Label("loop")
	for _, v := range wideRegisters[:chains] {
		dotPairs(wideRegisters[30], wideRegisters[31], v)
	}
	DECQ(n)
	JNZ(LabelRef("loop"))
	VZEROUPPER()
	RET()
}

func pairs() {
	pairPeak()
	for _, byK := range []bool{false, true} {
		for mr := 1; mr <= avx512.tileRows(); mr++ {
			avx512.gemmTile(mr, byK, true)
		}
	}
}
