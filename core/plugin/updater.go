package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"starling/sdk"
	pb "starling/sdk/proto/v1"
	"starling/sdk/shm"
)

// Memory is a piece of memory that a plugin may map.
type Memory struct {
	Bytes []byte
	File  *os.File
}

// Range is the part of a parameter that this rank renews, and where its values lie.
type Range struct {
	Name     string
	Shape    []int
	Group    int
	From, To int // elements of the parameter
	Value    Place
	Gradient Place
	State    []Place // in the order of the manifest
}

// Place is where values lie: a memory of UpdaterConfig.Memories and a byte offset.
type Place struct {
	Memory   int
	Offset   int64
	Elements int
}

// UpdaterConfig describes an optimizer to be run on one rank.
type UpdaterConfig struct {
	Use      *Use
	Hypers   map[string]any
	Memories []Memory
	Ranges   []Range
	Threads  int
	// TaskElements is the size of an element-wise task; 0: the one that is fast. It never changes a result of a plugin
	// that keeps its word.
	TaskElements int
	// Timeout is how long one task may take; 0: a minute.
	Timeout time.Duration
	// Retries is how often the plugin is started again in one step; 0: three times.
	Retries int
	Log     Log
}

// Updater runs a plugin's optimizer on one rank. Its methods are called from one goroutine.
//
// The plugin computes tasks into slots of the scratch memory, at most as many ahead as there are slots. A result is looked at and
// copied to its place as a whole: a task has either happened or not. When the plugin dies, hangs or hands over rubbish it is started again and
// goes on with the tasks that have not happened.
type Updater struct {
	cfg     UpdaterConfig
	tasks   []task
	done    []bool       // where there is no journal
	ring    *shm.Ring    // or
	journal *shm.Journal // for plugins that commit themselves
	scratch *os.File
	whole   *shm.Mapping
	first   int64 // offset of slot 0
	stride  int64
	size    int64      // most elements of a task, 0: whole tensors
	files   []*os.File // that the plugin inherits; opened are those that are ours to close
	opened  []*os.File
	// writable says which memories the plugin may map for writing.
	writable []bool
	request  *pb.SetupRequest
	process  *Process
	// Restarts counts how often the plugin was started again.
	Restarts int
}

// NewUpdater lays out the scratch memory. It starts nothing.
func NewUpdater(cfg UpdaterConfig) (*Updater, error) {
	if !shm.Supported {
		return nil, shm.ErrUnsupported
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = time.Minute
	}
	if cfg.Retries == 0 {
		cfg.Retries = 3
	}
	l := cfg.layOut()
	u := &Updater{cfg: cfg, tasks: l.tasks, size: l.size, first: l.first, stride: l.stride}
	err := u.share(l.bytes(), l.journal)
	header := func() []byte { return u.whole.Bytes[:shm.HeaderBytes] }
	if err == nil && l.journal {
		u.journal, err = shm.NewJournal(header(), int(l.count), u.whole.Bytes[l.page:l.page+4*int64(len(u.tasks))])
	} else if err == nil {
		u.done = make([]bool, len(u.tasks))
		u.ring, err = shm.NewRing(header(), int(l.count))
	}
	if err != nil {
		u.Close()
		return nil, err
	}
	u.request = u.setup(l.count)
	if l.journal {
		u.request.Scratch.Done = l.page
	}
	return u, nil
}

// share makes the scratch memory, and read-only descriptors of everything else; a plugin that commits itself gets those of
// parameters and state for writing too.
func (u *Updater) share(scratch int64, journal bool) error {
	u.writable = make([]bool, len(u.cfg.Memories))
	for i := range u.cfg.Ranges {
		r := &u.cfg.Ranges[i]
		u.writable[r.Value.Memory] = journal
		for _, s := range r.State {
			u.writable[s.Memory] = journal
		}
	}
	for i := range u.cfg.Ranges {
		if m := u.cfg.Ranges[i].Gradient.Memory; u.writable[m] {
			return fmt.Errorf("gradients share memory %d with parameters or state: they could be written", m)
		}
	}
	var err error
	if u.scratch, err = shm.Create("scratch", scratch); err != nil {
		return err
	}
	if u.whole, err = shm.Map(u.scratch.Fd(), 0, scratch, true); err != nil {
		return err
	}
	for i, m := range u.cfg.Memories {
		f := m.File
		if !u.writable[i] {
			if f, err = shm.ReadOnly(m.File); err != nil {
				return err
			}
			u.opened = append(u.opened, f)
		}
		u.files = append(u.files, f)
	}
	return nil
}

// setup is the message that describes everything to the plugin.
func (u *Updater) setup(count int64) *pb.SetupRequest {
	fd := uint32(FirstFile)
	r := &pb.SetupRequest{Hypers: map[string]*pb.Value{}, Threads: int32(u.cfg.Threads)}
	for k, v := range u.cfg.Hypers {
		r.Hypers[k] = sdk.ToValue(v)
	}
	for i, m := range u.cfg.Memories {
		r.Memories = append(r.Memories, &pb.Memory{Fd: fd, Bytes: int64(len(m.Bytes)), Writable: u.writable[i]})
		fd++
	}
	r.Scratch = &pb.Scratch{Memory: &pb.Memory{Fd: fd, Bytes: int64(len(u.whole.Bytes))}, First: u.first, Stride: u.stride, Count: int32(count), TaskElements: u.size}
	place := func(p Place) *pb.Place { return &pb.Place{Memory: uint32(p.Memory), Offset: p.Offset} }
	for _, x := range u.cfg.Ranges {
		p := &pb.Parameter{Name: x.Name, Group: int32(x.Group), From: int64(x.From), To: int64(x.To), Value: place(x.Value), Gradient: place(x.Gradient)}
		for _, d := range x.Shape {
			p.Shape = append(p.Shape, int64(d))
		}
		for _, s := range x.State {
			p.State = append(p.State, place(s))
			p.StateElements = append(p.StateElements, int64(s.Elements))
		}
		r.Parameters = append(r.Parameters, p)
	}
	return r
}

// ScratchBytes is the memory that the updater has beside parameters, gradients and state.
func (u *Updater) ScratchBytes() int64 { return int64(len(u.whole.Bytes)) }

// PID is the plugin's process, 0 while none runs.
func (u *Updater) PID() int {
	if u.process == nil {
		return 0
	}
	return u.process.PID()
}

// Start starts the plugin, so that the first step does not have to.
func (u *Updater) Start(ctx context.Context) error {
	for try := 0; ; try++ {
		err := u.start(ctx)
		var killed *killedError
		if !errors.As(err, &killed) || try == u.cfg.Retries {
			return err
		}
		u.Restarts++
		u.cfg.log("warn", fmt.Sprintf("%v; it was killed and is started again", err))
	}
}

func (u *Updater) start(ctx context.Context) error {
	if err := u.cfg.Use.verify(); err != nil {
		return err
	}
	p, err := Start(ctx, u.cfg.Use.Found, StartOptions{Threads: u.cfg.Threads, Files: append(u.files[:len(u.files):len(u.files)], u.scratch), Log: u.cfg.Log})
	if err != nil {
		return err
	}
	c, cancel := context.WithTimeout(ctx, u.cfg.Timeout)
	defer cancel()
	if _, err := pb.NewOptimizerClient(p.conn).Setup(c, u.request); err != nil {
		p.child.settle()
		p.Kill()
		return p.ended(fmt.Errorf("plugin %s: setting it up: %w%s", p.Name, plain(err), p.out.quoted()))
	}
	u.process = p
	return nil
}

func (c *UpdaterConfig) log(level, line string) {
	if c.Log != nil {
		c.Log(level, line)
	}
}

func (t task) String() string {
	return fmt.Sprintf("%s[%d:%d]", t.at.Name, t.at.From+t.lo, t.at.From+t.hi)
}

// Close ends the plugin and frees the scratch memory.
func (u *Updater) Close() {
	if u.process != nil {
		u.process.Kill()
		u.process = nil
	}
	for _, f := range u.opened {
		f.Close()
	}
	if u.whole != nil {
		u.whole.Unmap()
	}
	if u.scratch != nil {
		u.scratch.Close()
	}
}
