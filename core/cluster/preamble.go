//go:build unix

package cluster

import (
	"bytes"
	"fmt"
	"io"
)

// preamble is what a rank writes first to a control connection that is its standard output: what starts it there, a login shell
// perhaps, may have printed something before.
const preamble = "\x00starling control\n"

// maxBefore is how much may come before it.
const maxBefore = 16 << 10

// skipToPreamble reads up to the end of the preamble, and returns what came before it. The error says that it has not come; of noise without an end the beginning is returned.
func skipToPreamble(r io.Reader) (before []byte, err error) {
	var b [1]byte // nothing of what follows may be read
	for len(before) < maxBefore+len(preamble) {
		if _, err := io.ReadFull(r, b[:]); err != nil {
			return before, err
		}
		before = append(before, b[0])
		if b[0] == preamble[len(preamble)-1] && bytes.HasSuffix(before, []byte(preamble)) {
			return before[:len(before)-len(preamble)], nil
		}
	}
	return before[:512], &garbled{fmt.Sprintf("the first %d bytes that came are not this program's", len(before))}
}
