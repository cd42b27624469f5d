//go:build unix

package cluster

import (
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// What a shell prints first is told apart from what a rank says, however it arrives.
func TestPreamble(t *testing.T) {
	for _, before := range []string{"", "Welcome to b\n", preamble[:len(preamble)-1], "\x00\x00starling control", "\x00starling control", strings.Repeat("y\n", maxBefore/2)} {
		r := iotest.OneByteReader(strings.NewReader(before + preamble + "rest"))
		got, err := skipToPreamble(r)
		if rest, _ := io.ReadAll(r); string(got) != before || err != nil || string(rest) != "rest" {
			t.Errorf("%.40q: %.40q, %v, and then %q", before, got, err, rest)
		}
	}
	if got, err := skipToPreamble(strings.NewReader("no such account\n")); err != io.EOF || string(got) != "no such account\n" {
		t.Errorf("%q, %v at the end", got, err)
	}
	if got, err := skipToPreamble(strings.NewReader(strings.Repeat("y\n", maxBefore))); err == nil || len(got) != 512 || !strings.Contains(err.Error(), "not this program's") {
		t.Errorf("%v for noise without an end", err)
	}
}
