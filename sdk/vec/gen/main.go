// Command gen writes package vec's generated files: the assembly of the AVX2 and
// AVX-512 kernels, their Go declarations, and the functions that choose between
// kernel sets. Each run writes one part; the go:generate lines of package vec
// list them.
package main

import (
	"flag"
	"log"

	"github.com/mmcloughlin/avo/build"
)

// parts are the assembly files, by name; avo holds one file at a time.
var parts = map[string]func(){
	"cpu": func() {
		cpuid()
		pause()
		avx512.peak()
		avx2.peak()
	},
	"gemm": func() {
		avx512.gemm()
		avx2.gemm()
	},
	"amx":   amx,
	"pairs": pairs,
	"pieces": func() {
		for _, over := range []bool{false, true} {
			avx512.packPiece(over)
			avx2.packPiece(over)
		}
		avx512.gatherUnits()
		avx2.gatherUnits()
	},
	"elementwise": func() {
		avx512.elementwise()
		avx2.elementwise()
	},
	"copy": func() {
		avx512.copyEach()
		avx2.copyEach()
	},
	"half": func() {
		avx512.halves()
		avx2.halves()
	},
	"reduce": func() {
		avx512.reductions()
		avx2.reductions()
		avx512.conversions()
		avx2.conversions()
	},
	"rows": func() {
		avx512.rows()
		avx2.rows()
	},
	"random": func() {
		avx512.dropout()
		avx2.dropout()
		avx512.draw("Uniform", "add, scale float64, limit float32", avx512.uniform)
		avx2.draw("Uniform", "add, scale float64, limit float32", avx2.uniform)
		avx512.draw("Normal", "mean, std float64", avx512.normal)
		avx2.draw("Normal", "mean, std float64", avx2.normal)
	},
	"optimizer": func() {
		avx512.optimizers()
		avx2.optimizers()
	},
}

func main() {
	log.SetFlags(0)
	part := flag.String("part", "", "what to write: dispatch, or an assembly part to the files that avo's flags -out and -stubs name")
	dir := flag.String("dir", "..", "folder of package vec, for the dispatch files")
	flag.Parse()
	if *part == "dispatch" {
		if err := writeDispatch(*dir); err != nil {
			log.Fatalf("gen: %v", err)
		}
		return
	}
	emit, ok := parts[*part]
	if !ok {
		log.Fatalf("gen: no part %q", *part)
	}
	emit()
	build.Generate()
}
