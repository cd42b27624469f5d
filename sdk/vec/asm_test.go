package vec

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestAssemblyKeepsToVEX reads the generated assembly: an SSE instruction that
// is not VEX-encoded amid 256-bit code costs up to a hundred cycles, and so does
// one after a return without VZEROUPPER.
func TestAssemblyKeepsToVEX(t *testing.T) {
	files, err := filepath.Glob("asm_*.s")
	if err != nil || len(files) == 0 {
		t.Fatalf("no assembly found (%v)", err)
	}
	vector := regexp.MustCompile(`\b[XYZ][0-9]+\b`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, function := range strings.Split(string(text), "TEXT ·")[1:] {
			name, _, _ := strings.Cut(function, "(")
			wide, before := false, ""
			for _, line := range strings.Split(function, "\n")[1:] {
				op, operands, _ := strings.Cut(strings.TrimSpace(line), " ")
				switch {
				case op == "//": // the mnemonic of an instruction written as bytes
					wide = wide || vector.MatchString(operands)
					continue
				case op == "RET" && wide && before != "VZEROUPPER":
					t.Errorf("%s: %s returns without VZEROUPPER", file, name)
				case vector.MatchString(operands):
					wide = true
					if !strings.HasPrefix(op, "V") && op != "KMOVW" {
						t.Errorf("%s: %s has %s %s", file, name, op, operands)
					}
				}
				before = op
			}
		}
	}
}
