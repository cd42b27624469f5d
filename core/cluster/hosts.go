package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"

	"starling/core/comm/machine"
	"starling/core/comm/mesh"
)

// Place is where a rank runs.
type Place struct {
	Host   string   // its name; ranks with one name are neighbours and share memory
	Listen string   // where it listens for the others; "" for Config.Listen
	Start  []string // how a command is run there, such as ssh and its arguments; empty on this machine
	// Program is the path of the program there, where it is not that of this one.
	Program string
}

// program is the path of the program there, as the place says it or as it lies here.
func (p Place) program() string {
	if p.Program != "" {
		return p.Program
	}
	self, err := os.Executable()
	if err != nil {
		return "runtime"
	}
	return self
}

// byHand is a command that tries out what starts the program there.
func (p Place) byHand() string { return strings.Join(p.Start, " ") + " " + p.program() + " version" }

// Hosts is a cluster file: the machines of a job, in JSON.
//
//	{
//	  "listen": "tcp:10.0.0.0/8:0",
//	  "start":  ["ssh", "-oBatchMode=yes", "{address}"],
//	  "hosts":  [
//	    {"name": "a", "ranks": 4, "start": []},
//	    {"name": "b", "address": "10.0.0.2", "ranks": 4, "listen": "tcp:ib0:29500-29600"}
//	  ]
//	}
//
// A host's start and listen go before those of the file. In start, {address} and {name} stand for the host's; an empty start means this
// machine. Ranks fill the hosts in the order of the file, or another in which more of the ranks that talk most share a host.
type Hosts struct {
	Listen  string   `json:"listen"`
	Start   []string `json:"start"`
	Program string   `json:"program"` // path of the program on the other hosts, where it differs
	Hosts   []Host   `json:"hosts"`
}

// Host is a machine of a cluster file.
type Host struct {
	Name    string    `json:"name"`
	Address string    `json:"address"` // by which it is reached; the name, if it has none
	Ranks   int       `json:"ranks"`   // how many it takes; if no host says, they are shared evenly
	Listen  string    `json:"listen"`
	Start   *[]string `json:"start"`
}

// defaultStart runs a command on another host. BatchMode: nobody is there to answer questions.
var defaultStart = []string{"ssh", "-oBatchMode=yes", "{address}"}

// ReadHosts reads a cluster file.
func ReadHosts(path string) (*Hosts, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cluster file: %w", err)
	}
	defer f.Close()
	d := json.NewDecoder(f)
	d.DisallowUnknownFields()
	h := &Hosts{}
	if err := d.Decode(h); err != nil {
		line := 1
		if b, e := os.ReadFile(path); e == nil {
			line += strings.Count(string(b[:min(int(d.InputOffset()), len(b))]), "\n")
		}
		return nil, fmt.Errorf("cluster file %s, near line %d: %w", path, line, inPlainWords(err))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("cluster file %s: there is something after the end of the object", path)
	}
	if err := h.validate(); err != nil {
		return nil, fmt.Errorf("cluster file %s: %w", path, err)
	}
	return h, nil
}

// inPlainWords says what is wrong with JSON without the names of this program's types.
func inPlainWords(err error) error {
	var kind *json.UnmarshalTypeError
	const keys = `a host has "name", "address", "ranks", "listen", "start", the file "hosts", "listen", "start", "program"`
	switch {
	case errors.As(err, &kind) && kind.Type == reflect.TypeFor[Host]():
		return fmt.Errorf(`there is a %s in "hosts" where a host should be, as in {"name": "a"}`, kind.Value)
	case errors.As(err, &kind) && kind.Field != "":
		return fmt.Errorf("%q has a %s, which it does not take; see docs/launching.md", kind.Field, kind.Value)
	case strings.HasPrefix(err.Error(), "json: unknown field"):
		return fmt.Errorf("%s; %s", strings.Replace(err.Error(), "json: unknown field", "unknown key", 1), keys)
	}
	return err
}

func (h *Hosts) validate() error {
	if len(h.Hosts) == 0 {
		return errors.New(`it names no "hosts"`)
	}
	if _, err := listenAddress(h.Listen, "", 0); err != nil {
		return err
	}
	names, counted := map[string]bool{}, 0
	for i, x := range h.Hosts {
		if x.Name == "" {
			return fmt.Errorf(`host %d has no "name"`, i)
		}
		if err := machine.CheckHostName(x.Name); err != nil {
			return fmt.Errorf("host %d: %w", i, err)
		}
		switch {
		case names[x.Name]:
			return fmt.Errorf("host %s is named twice", x.Name)
		case x.Ranks < 0:
			return fmt.Errorf("host %s takes %d ranks", x.Name, x.Ranks)
		}
		if _, err := listenAddress(x.Listen, "", 0); err != nil {
			return fmt.Errorf("host %s: %w", x.Name, err)
		}
		names[x.Name] = true
		if x.Ranks > 0 {
			counted++
		}
	}
	if counted != 0 && counted != len(h.Hosts) {
		return errors.New(`give every host its "ranks", or none`)
	}
	return nil
}

// Ranks is how many ranks the hosts take, one each where the file does not say.
func (h *Hosts) Ranks() int {
	n := 0
	for _, x := range h.Hosts {
		n += max(x.Ranks, 1)
	}
	return n
}

// Places puts the ranks of a mesh onto the hosts.
func (h *Hosts) Places(axes mesh.Axes) ([]Place, error) {
	ranks, room := axes.Ranks(), 0
	for _, x := range h.Hosts {
		room += x.Ranks
	}
	switch {
	case room > 0 && room != ranks:
		return nil, fmt.Errorf("the hosts of the cluster file take %d ranks, and the job has %d; change their \"ranks\", or the number of ranks with --set where the recipe has a param for it", room, ranks)
	case room == 0 && ranks < len(h.Hosts):
		return nil, fmt.Errorf("the cluster file names %d hosts for %d ranks; leave some out", len(h.Hosts), ranks)
	}
	takes := make([]int, len(h.Hosts))
	for i, x := range h.Hosts {
		takes[i] = x.Ranks
		if room == 0 { // the first hosts take what is left over
			takes[i] = ranks / len(h.Hosts)
			if i < ranks%len(h.Hosts) {
				takes[i]++
			}
		}
	}
	var out []Place
	for _, i := range axes.OrderHosts(takes, false) {
		x := h.Hosts[i]
		start := h.Start
		if start == nil {
			start = defaultStart
		}
		if x.Start != nil {
			start = *x.Start
		}
		address := x.Address
		if address == "" {
			address = x.Name
		}
		p := Place{Host: x.Name, Listen: x.Listen}
		if len(start) > 0 {
			p.Program = h.Program
		}
		if p.Listen == "" {
			p.Listen = h.Listen
		}
		for _, word := range start {
			p.Start = append(p.Start, strings.NewReplacer("{address}", address, "{name}", x.Name).Replace(word))
		}
		for range takes[i] {
			out = append(out, p)
		}
	}
	return out, nil
}
