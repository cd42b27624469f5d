package machine

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"starling/core/comm/internal/shm"
)

// ID names the machine as its processes see it: two processes with one name can hand each other memory. It is empty
// where the system has no such memory.
func ID() string {
	if !shm.Supported {
		return ""
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	network, err := os.Readlink("/proc/self/ns/net") // the sockets by which memory is handed over belong to it
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(boot)) + " " + network
}

// maxHostName is the longest name of a host, in bytes, as in the domain name system.
const maxHostName = 255

// CheckHostName says what is wrong with the name of a host, nil if nothing is: names stand in lists, file names and logs.
func CheckHostName(name string) error {
	switch {
	case name == "":
		return errors.New("a host's name must not be empty")
	case len(name) > maxHostName:
		return fmt.Errorf("the host name that begins with %.20q has %d bytes; at most %d are allowed", name, len(name), maxHostName)
	case !utf8.ValidString(name):
		return fmt.Errorf("host name %q is no UTF-8", name)
	}
	for _, c := range name {
		if c == ',' || c == '/' || unicode.IsSpace(c) || !unicode.IsPrint(c) {
			return fmt.Errorf("host name %q contains %q; spaces, commas, slashes and control characters are not allowed", name, c)
		}
	}
	return nil
}
