// Command gen writes package vec's generated files: the assembly of the AVX2 and
// AVX-512 kernels, their Go declarations, and the functions that choose between
// kernel sets.
package main

import (
	"flag"
	"log"
)

func main() {
	out := flag.String("out", "..", "folder of package vec")
	flag.Parse()
	if err := writeDispatch(*out); err != nil {
		log.Fatal(err)
	}
}
