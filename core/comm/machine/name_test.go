package machine

import (
	"strings"
	"testing"
)

func TestHostNames(t *testing.T) {
	for _, good := range []string{"a", "node-17.rack_3", "büro", strings.Repeat("x", 255)} {
		if err := CheckHostName(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for bad, want := range map[string]string{"": "empty", "a b": "' '", "a\n": `'\n'`, "\x1b[2J": `'\x1b'`, "a,b": "','", "../a": "'/'", "\xff": "UTF-8", strings.Repeat("x", 256): "256 bytes"} {
		if err := CheckHostName(bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", bad, err, want)
		}
	}
}
