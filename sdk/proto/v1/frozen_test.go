package pluginv1

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
)

var update = flag.Bool("update", false, "add what is new to the record of the protocol")

// Version 1 is served for ever: everything in the record, which is one line for each field, value and method, must still be there as it is.
// New things may be added, and are added to the record.
func TestVersion1IsFrozen(t *testing.T) {
	path := filepath.Join("testdata", "v1.txt")
	var now []string
	add := func(format string, args ...any) { now = append(now, fmt.Sprintf(format, args...)) }
	var message func(m protoreflect.MessageDescriptor)
	message = func(m protoreflect.MessageDescriptor) {
		for i := range m.Fields().Len() {
			f := m.Fields().Get(i)
			kind := f.Kind().String()
			switch {
			case f.IsMap():
				kind = "map"
			case f.Message() != nil:
				kind = string(f.Message().FullName())
			case f.Enum() != nil:
				kind = string(f.Enum().FullName())
			}
			add("field %s = %d %v %s presence %v", f.FullName(), f.Number(), f.Cardinality(), kind, f.HasPresence())
		}
		for i := range m.Messages().Len() {
			message(m.Messages().Get(i))
		}
		for i := range m.Enums().Len() {
			e := m.Enums().Get(i)
			for k := range e.Values().Len() {
				add("value %s = %d", e.Values().Get(k).FullName(), e.Values().Get(k).Number())
			}
		}
	}
	file := File_plugin_proto
	for i := range file.Messages().Len() {
		message(file.Messages().Get(i))
	}
	for i := range file.Services().Len() {
		s := file.Services().Get(i)
		for k := range s.Methods().Len() {
			m := s.Methods().Get(k)
			add("method %s(%s) %s", m.FullName(), m.Input().FullName(), m.Output().FullName())
		}
	}
	slices.Sort(now)
	b, err := os.ReadFile(path)
	if err != nil && !*update {
		t.Fatal(err)
	}
	recorded := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	for _, line := range recorded {
		if line != "" && !slices.Contains(now, line) {
			t.Errorf("version 1 of the protocol has changed; this is gone: %s", line)
		}
	}
	if !slices.Equal(now, recorded) && !t.Failed() {
		if !*update {
			t.Error("the protocol has grown: run the test with -update to record it")
		} else if err := os.WriteFile(path, []byte(strings.Join(now, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
