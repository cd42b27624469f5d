package vec

import (
	"fmt"
	"os"
	"strings"
)

// The classes of arithmetic in which products of bfloat16 are computed.
const (
	BF16Tiles = "amx"         // pairs of products in tile registers, where the processor has them
	BF16Pairs = "avx512_bf16" // pairs of products in vector registers
	BF16FMA   = "fma"         // as a product of float32
)

// bf16Arith is a class.
type bf16Arith int

const (
	arithFMA bf16Arith = iota
	arithPairs
	arithTiles
)

var arithNames = [...]string{arithFMA: BF16FMA, arithPairs: BF16Pairs, arithTiles: BF16Tiles}

// most is the class that the environment variable STARLING_BF16 names, beyond which arith does not go.
var most, bf16Err = chooseBF16(os.Getenv("STARLING_BF16"))

// chooseBF16 returns the class that want names, or the last.
func chooseBF16(want string) (bf16Arith, error) {
	if want == "" {
		return arithTiles, nil
	}
	class, err := lookupBF16(want)
	if err != nil {
		return arithTiles, fmt.Errorf("STARLING_BF16: %w", err)
	}
	return class, nil
}

func lookupBF16(name string) (bf16Arith, error) {
	for _, c := range supportedBF16() {
		if arithNames[c] == name {
			return c, nil
		}
	}
	have := strings.Join(BF16Classes(), ", ")
	for _, n := range arithNames {
		if n == name {
			return 0, fmt.Errorf("vec: kernel set %q on this processor does not multiply bfloat16 in class %q; it has %s", Active(), name, have)
		}
	}
	return 0, fmt.Errorf("vec: unknown class of bfloat16 products %q; this machine has %s", name, have)
}

// supportedBF16 are the classes of the active kernel set, slowest first.
func supportedBF16() []bf16Arith {
	classes := []bf16Arith{arithFMA}
	if active == setAVX512 && hasPairs {
		classes = append(classes, arithPairs)
	}
	if active == setAVX512 && hasTiles {
		classes = append(classes, arithTiles)
	}
	return classes
}

// arith is the class in use.
func arith() bf16Arith {
	switch {
	case active != setAVX512:
		return arithFMA
	case hasTiles && most >= arithTiles:
		return arithTiles
	case hasPairs && most >= arithPairs:
		return arithPairs
	}
	return arithFMA
}

// BF16Class names the arithmetic that GemmBF16 uses on this machine with the active kernel set: the best it has, or the one that
// the environment variable STARLING_BF16 names. In each, an element of C is one chain over ascending k, beginning at +0 or at the
// element of C added to, whose bits depend neither on how C is cut nor on threads.
//
//   - BF16FMA is the chain of fused multiply-adds of [Gemm].
//   - In BF16Pairs a link is what the instruction VDPBF16PS makes of steps 2p and 2p+1: a fused multiply-add with step 2p+1, then one
//     with step 2p, each rounded to nearest even. Subnormal numbers count as zero: of operands, of C, and of what a multiply-add, rounded as if
//     exponents had no end, would leave. Intel's manual defines it so and AMD's processors do it; one that did otherwise would not
//     be said to have the class.
//   - In BF16Tiles a link is what the instruction TDPBF16PS makes of 32 products; subnormal numbers count as zero.
func BF16Class() string { return arithNames[arith()] }

// BF16Classes lists the classes that the active kernel set has on this machine, slowest first.
func BF16Classes() []string {
	var names []string
	for _, c := range supportedBF16() {
		names = append(names, arithNames[c])
	}
	return names
}

// UseBF16 switches to the named class and returns a function that switches back. It is for tests and benchmarks: no kernel may
// be running meanwhile.
func UseBF16(name string) (restore func(), err error) {
	class, err := lookupBF16(name)
	if err != nil {
		return nil, err
	}
	old := most
	most = class
	return func() { most = old }, nil
}
