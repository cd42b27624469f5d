package vec

import (
	"strings"
	"testing"
)

func TestChooseKernelSet(t *testing.T) {
	best := Sets()[len(Sets())-1]
	for _, c := range []struct{ want, got, err string }{
		{"", best, ""},
		{"generic", "generic", ""},
		{best, best, ""},
		{"sse9", best, `STARLING_KERNELS: vec: unknown kernel set "sse9"; this machine has generic`},
	} {
		set, err := choose(c.want)
		if setNames[set] != c.got {
			t.Errorf("choose(%q) = %s, want %s", c.want, setNames[set], c.got)
		}
		if (err == nil) != (c.err == "") || err != nil && !strings.HasPrefix(err.Error(), c.err) {
			t.Errorf("choose(%q): error %v, want %q", c.want, err, c.err)
		}
	}
}

func TestUse(t *testing.T) {
	before := Active()
	for _, name := range Sets() {
		restore, err := Use(name)
		if err != nil {
			t.Fatal(err)
		}
		if Active() != name {
			t.Errorf("after Use(%q): %q is active", name, Active())
		}
		restore()
	}
	if _, err := Use("none"); err == nil {
		t.Error("Use accepts a kernel set that does not exist")
	}
	if Active() != before {
		t.Errorf("%q is active, want %q again", Active(), before)
	}
}

func TestLengthsMustAgree(t *testing.T) {
	defer func() {
		if msg, _ := recover().(string); msg != "vec.Add: slices of lengths 3 and 2; all must be equal" {
			t.Errorf("panic %q", msg)
		}
	}()
	Add(make([]float32, 3), make([]float32, 3), make([]float32, 2))
}
