package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// cpuid writes the two instructions that feature detection needs.
func cpuid() {
	TEXT("cpuid", NOSPLIT, "func(leaf, sub uint32) (a, b, c, d uint32)")
	Doc("cpuid executes CPUID.")
	Load(Param("leaf"), EAX)
	Load(Param("sub"), ECX)
	CPUID()
	Store(EAX, Return("a"))
	Store(EBX, Return("b"))
	Store(ECX, Return("c"))
	Store(EDX, Return("d"))
	RET()

	TEXT("xgetbv", NOSPLIT, "func() (a uint32)")
	Doc("xgetbv returns the low half of XCR0, the register states the system saves.")
	XORL(ECX, ECX)
	XGETBV()
	Store(EAX, Return("a"))
	RET()
}

// pause writes the instruction that tells the processor that a loop waits for another thread: a neighbour on the same core
// then has its units to itself.
func pause() {
	TEXT("pause", NOSPLIT, "func(n int)")
	Doc("pause executes PAUSE n times, at least once.")
	n := Load(Param("n"), GP64())
	Label("again")
	PAUSE()
	DECQ(n)
	JG(LabelRef("again"))
	RET()
}
