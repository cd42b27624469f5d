package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// Neither avo nor Go's assembler knows AMX: its instructions are written as
// bytes, with the mnemonic beside them. The encodings are those of Intel's manual,
// volume 2; registers of the general kind go by their numbers there.

// general is the number of a general register.
var general = map[Register]int{RAX: 0, RCX: 1, RDX: 2, RBX: 3, RSI: 6, RDI: 7, R8: 8, R9: 9, R10: 10, R11: 11, R12: 12, R13: 13, R15: 15}

// raw emits an instruction as bytes.
func raw(mnemonic string, code ...byte) {
	Comment(mnemonic)
	for _, b := range code {
		Instruction(&ir.Instruction{Opcode: "BYTE", Operands: []Op{U8(b)}})
	}
}

// vex3 is the three-byte VEX prefix of a 128-bit instruction of map 0F38, W0; r, x and b extend
// the registers of the reg, index and base fields.
func vex3(x, b, vvvv, pp int) []byte {
	return []byte{0xc4, byte(0x80 | (^x&1)<<6 | (^b&1)<<5 | 2), byte((^vvvv&15)<<3 | pp)}
}

// tileMemory is an instruction between a tile and memory: rows that begin stride bytes apart.
func tileMemory(name string, pp int, tile int, base, stride Register, disp int) {
	b, i := general[base], general[stride]
	code := append(vex3(i>>3, b>>3, 0, pp), 0x4b, byte(0x84|tile<<3), byte((i&7)<<3|b&7),
		byte(disp), byte(disp>>8), byte(disp>>16), byte(disp>>24))
	raw(fmt.Sprintf("%s TMM%d, %d(%s)(%s*1)", name, tile, disp, base.Asm(), stride.Asm()), code...)
}

func tileLoad(tile int, base, stride Register, disp int) {
	tileMemory("TILELOADD", 3, tile, base, stride, disp)
}

func tileStore(tile int, base, stride Register, disp int) {
	tileMemory("TILESTORED", 2, tile, base, stride, disp)
}

// tileProduct adds the products of pairs of bfloat16 in a and b to c.
func tileProduct(c, a, b int) {
	raw(fmt.Sprintf("TDPBF16PS TMM%d, TMM%d, TMM%d", b, a, c), append(vex3(0, 0, b, 2), 0x5c, byte(0xc0|c<<3|a))...)
}

func tileZero(t int) {
	raw(fmt.Sprintf("TILEZERO TMM%d", t), append(vex3(0, 0, 0, 3), 0x49, byte(0xc0|t<<3))...)
}

// amxTiles writes a function that multiplies up to 16·high rows of A by panels of 32
// columns of B, steps of 32 elements of k at a time.
//
// A's rows are lda bytes apart; two steps lie side by side, the next two astep bytes
// on. B's panels follow each other, each of 16·steps rows of 32 pairs (k, k+1). C is loaded first if load is not 0. The
// configuration says how many rows there are; it is loaded and released here, so
// that no tile is live where a goroutine can be moved.
func amxTiles(high int) {
	TEXT(fmt.Sprintf("amxTiles%d", high), NOSPLIT,
		"func(config *byte, panels, steps int, a *uint16, lda, astep int, b *float32, c *float32, ldc, load int)")
	Pragma("noescape")
	Load(Param("config"), RAX)
	raw("LDTILECFG (AX)", append(vex3(0, 0, 0, 0), 0x49, 0x00)...)
	Load(Param("panels"), RBX)
	Load(Param("lda"), R13)
	Load(Param("b"), RDI)
	Load(Param("c"), RDX)
	Load(Param("ldc"), R9)
	MOVQ(U32(128), R8)
	eachC := func(f func(tile int, base Register, disp int)) {
		if high == 2 {
			MOVQ(R9, R10)
			SHLQ(U8(4), R10)
			ADDQ(RDX, R10)
		}
		for t := range 2 * high {
			f(t, []Register{RDX, R10}[t/2], 64*(t%2))
		}
	}
	Label("panel")
	Load(Param("load"), R12)
	TESTQ(R12, R12)
	JZ(LabelRef("zero"))
	eachC(func(t int, base Register, disp int) { tileLoad(t, base, R9, disp) })
	JMP(LabelRef("begun"))
	Label("zero")
	for t := range 2 * high {
		tileZero(t)
	}
	Label("begun")
	Load(Param("a"), RSI)
	Load(Param("steps"), RCX)
	const a0, a1, b0, b1 = 4, 5, 6, 7
	step := func(u int) {
		tileLoad(b0, RDI, R8, 2048*u)
		tileLoad(a0, RSI, R13, 64*u)
		tileProduct(0, a0, b0)
		tileLoad(b1, RDI, R8, 2048*u+64)
		tileProduct(1, a0, b1)
		if high == 2 {
			tileLoad(a1, R15, R13, 64*u)
			tileProduct(2, a1, b0)
			tileProduct(3, a1, b1)
		}
	}
	lower := func() {
		if high == 2 {
			MOVQ(R13, R15)
			SHLQ(U8(4), R15)
			ADDQ(RSI, R15)
		}
	}
	SUBQ(U8(2), RCX)
	JL(LabelRef("rest"))
	Label("pairs")
	lower()
	step(0)
	step(1)
	ADDQ(address("astep"), RSI)
	ADDQ(U32(4096), RDI)
	SUBQ(U8(2), RCX)
	JGE(LabelRef("pairs"))
	Label("rest")
	ADDQ(U8(2), RCX)
	JZ(LabelRef("done"))
	lower()
	step(0)
	ADDQ(U32(2048), RDI)
	Label("done")
	eachC(func(t int, base Register, disp int) { tileStore(t, base, R9, disp) })
	ADDQ(U32(128), RDX)
	DECQ(RBX)
	JNZ(LabelRef("panel"))
	raw("TILERELEASE", append(vex3(0, 0, 0, 0), 0x49, 0xc0)...)
	RET()
}

// packPairs writes a function that interleaves pairs of rows of up to 32 bfloat16: row p
// of the result has x[j] from src and, above it, the one from src2, both ld bytes further for the next pair.
func packPairs() {
	TEXT("packPairs", NOSPLIT, "func(pairs int, src, src2 *uint16, ld int, dst *float32, n int)")
	Pragma("noescape")
	pairs := Load(Param("pairs"), GP64())
	src := Load(Param("src"), GP64())
	src2 := Load(Param("src2"), GP64())
	ld := Load(Param("ld"), GP64())
	dst := Load(Param("dst"), GP64())
	n := Load(Param("n"), GP64())
	m := GP64()
	MOVQ(I32(-1), m)
	BZHIQ(n, m, m)
	ks := []Register{K(), K()}
	KMOVW(m.As32(), ks[0])
	SHRQ(Imm(16), m)
	KMOVW(m.As32(), ks[1])
	Label("rows")
	for i, k := range ks {
		lo, hi := ZMM(), ZMM()
		VPMOVZXWD_Z(Mem{Base: src, Disp: 32 * i}, k, lo)
		VPMOVZXWD_Z(Mem{Base: src2, Disp: 32 * i}, k, hi)
		VPSLLD(Imm(16), hi, hi)
		VPORD(hi, lo, lo)
		VMOVUPS(lo, Mem{Base: dst, Disp: 64 * i})
	}
	PREFETCHT0(Mem{Base: src, Index: ld, Scale: 8})
	PREFETCHT0(Mem{Base: src2, Index: ld, Scale: 8})
	ADDQ(ld, src)
	ADDQ(ld, src2)
	ADDQ(imm(128), dst)
	DECQ(pairs)
	JNZ(LabelRef("rows"))
	VZEROUPPER()
	RET()
}

func amx() {
	amxTiles(1)
	amxTiles(2)
	packPairs()
}
