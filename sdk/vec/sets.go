package vec

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

type kernelSet int

const (
	setGeneric kernelSet = iota
	setAVX2
	setAVX512
)

var setNames = [...]string{setGeneric: "generic", setAVX2: "avx2", setAVX512: "avx512"}

// active is the set that every kernel call dispatches on; it is written at
// start-up and by Use alone.
var active, initErr = choose(os.Getenv("STARLING_KERNELS"))

// choose returns the best set the machine has, or the one that want names.
func choose(want string) (kernelSet, error) {
	have := supportedSets()
	best := have[len(have)-1]
	if want == "" {
		return best, nil
	}
	set, err := lookup(want)
	if err != nil {
		return best, fmt.Errorf("STARLING_KERNELS: %w", err)
	}
	return set, nil
}

func lookup(name string) (kernelSet, error) {
	for _, s := range supportedSets() {
		if setNames[s] == name {
			return s, nil
		}
	}
	for _, n := range setNames {
		if n == name {
			return 0, fmt.Errorf("vec: this processor or operating system lacks kernel set %q; it has %s", name, strings.Join(Sets(), ", "))
		}
	}
	return 0, fmt.Errorf("vec: unknown kernel set %q; this machine has %s", name, strings.Join(Sets(), ", "))
}

// Active is the name of the kernel set in use: "avx512", "avx2" or "generic".
func Active() string { return setNames[active] }

// Sets lists the kernel sets of this machine, slowest first.
func Sets() []string {
	var names []string
	for _, s := range supportedSets() {
		names = append(names, setNames[s])
	}
	return names
}

// Init reports whether the environment variable STARLING_KERNELS named a kernel
// set, or STARLING_BF16 a class of bfloat16 products, that this machine lacks or that does not exist. The best is in use
// then; a program that means to obey the variables ends with the error.
func Init() error { return errors.Join(initErr, bf16Err) }

// Use switches to the named kernel set and returns a function that switches
// back. It is for tests and benchmarks: no kernel may be running meanwhile.
func Use(name string) (restore func(), err error) {
	set, err := lookup(name)
	if err != nil {
		return nil, err
	}
	old := active
	active = set
	return func() { active = old }, nil
}
