package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"starling/core/cluster"
	"starling/core/comm"
	"starling/core/comm/mesh"
	"starling/core/device/cpu"
	"starling/core/plugin"
	"starling/core/recipe"
	"starling/core/train"
	"starling/sdk/vec"
)

// job is what a worker process must know to run its rank.
type job struct {
	Recipe          string
	Set             []string
	RunDir          string
	Resume          bool
	Digest          string
	Threads         int // of each rank; 0 until launch decides: the recipe's, else the usable cores shared
	World           int
	StartedUnixNano int64
	Timeout         float64 // seconds that a collective may stall; 0: the default
	Listen          string  // see cluster.Config
	StepsOnly       int     // if not 0, so many steps and nothing else: a benchmark
	Transport       string  // see cluster.Config
	Hosts           []string
	TLS             string
	Dir             string // the working directory, in which relative paths are meant
	Links           bool   // measure the links between the ranks, and nothing else
	Apart           bool   // ranks may run on other machines: the run folder must be seen from there

	Plugins map[string]plugin.Handed // that the launcher has resolved

	local      *plugin.Local // their files, in the launcher
	mesh       mesh.Axes
	stop       <-chan struct{} // asks for a graceful end before the ranks are there
	places     []cluster.Place
	rendezvous *cluster.Rendezvous
	patience   time.Duration // with them
}

// checkpointTimeout bounds how much longer one rank's disk may take than another's to write its part of a checkpoint.
const checkpointTimeout = time.Hour

// envRunDir tells people whose a worker process is.
const envRunDir = "STARLING_RUN_DIR"

func isWorker() bool { return cluster.IsWorker() }

// systemFiles is the root of the system's files about devices; tests have one of their own.
var systemFiles = "/sys"

// report is what a rank hands back at its end.
type report struct {
	Result      *train.Result    `json:"result,omitempty"`
	Interrupted bool             `json:"interrupted,omitempty"`
	Traffic     []train.PeerLink `json:"traffic,omitempty"`
}

// launch runs the ranks of a job: one in this process, several as worker processes or as goroutines. What the spec's recipe prints
// goes through printed.
func launch(ctx context.Context, j job, spec *train.Spec, printed *printer, inProcess bool, show *display) (*train.Result, error) {
	cfg := cluster.Config{
		Ranks:     j.World,
		Listen:    j.Listen,
		Transport: j.Transport,
		Hosts:     j.Hosts,
		Mesh:      j.mesh,
		TLS:       j.TLS,
		System:    systemFiles,
		Places:    j.places, Rendezvous: j.rendezvous,
		Signals: stopSignals,
		Stop:    j.stop,
		OnEvent: func(rank int, b []byte) {
			var e train.Event
			if json.Unmarshal(b, &e) == nil {
				show.event(e)
			}
		},
	}
	if j.Threads == 0 {
		j.Threads = spec.Mesh.Threads
	}
	j.Apart = j.rendezvous != nil || len(j.places) > 0
	if j.Threads == 0 && !j.Apart { // else each rank finds out who shares its machine
		j.Threads = max(1, cpu.Cores()/j.World)
	}
	if j.rendezvous != nil {
		cfg.JoinTimeout = j.patience
	}
	var results [][]byte
	var err error
	if inProcess || j.World == 1 {
		makeRoom(j.World * j.Threads)
		results, err = cluster.InProcess(ctx, cfg, func(ctx context.Context, w *cluster.Worker) error {
			if w.Rank() == 0 {
				return runRank(ctx, w, j, spec, printed)
			}
			own, _, err := loadForRank(j, nil, nil) // hooks and traces are of one interpreter each
			if err != nil {
				return err
			}
			return runRank(ctx, w, j, own, &printer{})
		})
	} else {
		var jerr error
		if j.Dir, jerr = os.Getwd(); jerr != nil {
			return nil, jerr
		}
		cfg.Payload, jerr = json.Marshal(j)
		if jerr != nil {
			return nil, jerr
		}
		cfg.Serve = j.hand
		self, xerr := os.Executable()
		if xerr != nil {
			return nil, fmt.Errorf("finding this program's file to start the ranks: %w", xerr)
		}
		cfg.Command = func(int) *exec.Cmd {
			c := exec.Command(self)
			c.Env = append(os.Environ(), envRunDir+"="+j.RunDir)
			return c
		}
		logs, lerr := os.OpenFile(filepath.Join(j.RunDir, "ranks.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if lerr != nil {
			return nil, fmt.Errorf("run folder: %w", lerr)
		}
		defer logs.Close()
		cfg.Stdout, cfg.Stderr = logs, logs
		results, err = cluster.Launch(ctx, cfg)
	}
	var failed *cluster.RankError
	if j.World == 1 && errors.As(err, &failed) && failed.Err != nil {
		err = failed.Err // there are no ranks to tell apart
	}
	if err != nil {
		return nil, err
	}
	return merge(results)
}

// merge takes rank 0's result; every rank must have the same weights.
func merge(results [][]byte) (*train.Result, error) {
	var first *train.Result
	var links []train.Link
	var peers []train.PeerLink
	for rank, b := range results {
		var r report
		if err := json.Unmarshal(b, &r); err != nil {
			return nil, fmt.Errorf("rank %d gave no result: %w", rank, err)
		}
		for _, l := range r.Traffic {
			links = addLink(links, l.Link)
		}
		if len(results) <= linkPeers {
			peers = append(peers, r.Traffic...)
		}
		switch {
		case r.Interrupted:
			return nil, train.ErrInterrupted
		case r.Result == nil:
			return nil, fmt.Errorf("rank %d gave no result", rank)
		case first == nil:
			first = r.Result
		case r.Result.WeightsSHA256 != first.WeightsSHA256:
			return nil, fmt.Errorf("rank %d ended with other weights (%s) than rank 0 (%s): the ranks computed differently; do not use this run",
				rank, r.Result.WeightsSHA256, first.WeightsSHA256)
		}
	}
	first.Links, first.Peers = links, peers
	return first, nil
}

// workerMain is the life of a worker process that a launcher has started.
func workerMain() int {
	seat, err := cluster.Enter(context.Background())
	if err == nil {
		_ = os.Unsetenv(envRunDir) // for nobody else: plugins inherit the environment
		err = work(seat, false)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// work runs a rank from its seat to its end. bound says that this process may have been given cores of its own.
func work(seat *cluster.Seat, bound bool) error {
	var j job
	if err := json.Unmarshal(seat.Payload(), &j); err != nil {
		return seat.Fail(fmt.Errorf("the launcher's description of the job: %w", err))
	}
	if j.Links {
		makeRoom(1)
		w, err := seat.Join(cluster.JoinConfig{Digest: "links", Class: arithmeticClass(nil), Cores: cpu.Cores()})
		if err != nil {
			return err
		}
		return runLinks(w)
	}
	if err := j.enter(seat.Rank()); err != nil {
		return seat.Fail(err)
	}
	makeRoom(max(1, j.Threads))
	// Before the ranks meet, so that they compare what each of them will compute.
	p := &printer{}
	spec, digest, err := loadForRank(j, seat, p.print)
	w, joinErr := seat.Join(cluster.JoinConfig{Digest: digest, Class: arithmeticClass(spec), Cores: cpu.Cores()})
	switch {
	case joinErr != nil:
		return joinErr
	case err != nil:
		return w.Fail(err)
	}
	if j.Threads == 0 {
		j.Threads = threadsOf(w.Neighbours(), bound)
		makeRoom(j.Threads)
	}
	if err := runRank(w.Context(), w, j, spec, p); err != nil {
		return w.Fail(err)
	}
	return nil
}

// loadForRank loads the recipe and says what it computes, which must be what the launcher saw. Plugins that are not here come through the
// seat, where there is one.
func loadForRank(j job, seat *cluster.Seat, print func(string)) (*train.Spec, string, error) {
	spec, err := recipe.Load(j.Recipe, recipe.Options{Set: j.Set, Print: print, Plugins: j.resolver(seat)})
	if err != nil {
		return nil, j.Digest, err
	}
	j.bare(spec)
	digest, err := recipe.Digest(spec)
	if err == nil && digest != j.Digest {
		err = fmt.Errorf("%s has changed since the run was started", j.Recipe)
	}
	return spec, j.Digest, err
}

// printer passes on what a recipe prints: kept until there is somewhere to send it.
type printer struct {
	mu   sync.Mutex
	kept []string
	to   func(string)
}

func (p *printer) print(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.to == nil {
		p.kept = append(p.kept, text)
		return
	}
	p.to(text)
}

// send passes on what was printed so far, and from now on.
func (p *printer) send(to func(string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.to = to
	for _, text := range p.kept {
		to(text)
	}
	p.kept = nil
}

// arithmeticClass names what else decides a run's bits: in fp32 nothing, every kernel set gives the same ones; in bf16 how the
// processor multiplies. The recipe may be missing, where it did not load.
func arithmeticClass(spec *train.Spec) string {
	if spec != nil && spec.Precision == "bf16" {
		return "bf16 " + vec.BF16Class()
	}
	return "fp32"
}

// makeRoom lets goroutines that communicate and load data run beside the given number of compute threads: the system
// shares the cores among them, where the Go scheduler would keep them waiting for a computing one to be preempted.
func makeRoom(compute int) {
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), compute+2))
}

// runRank trains one rank and reports its result.
func runRank(ctx context.Context, w *cluster.Worker, j job, spec *train.Spec, printed *printer) error {
	here := w.Neighbours()
	if !j.Apart { // whatever hosts are declared
		here = j.World
	}
	dev, err := cpu.Open(cpu.Config{Threads: j.Threads, Ranks: here})
	if err != nil {
		return err
	}
	defer dev.Close()
	observe := func(e train.Event) {
		e.Rank = w.Rank()
		if b, err := json.Marshal(e); err == nil {
			_ = w.Event(b) // a lost connection to the launcher ends the rank by itself
		}
	}
	printed.send(func(text string) {
		if w.Rank() == 0 { // every rank prints the same
			observe(train.Event{Kind: train.EventNote, Text: text})
		}
	})
	env := train.Env{
		Rank: w.Rank(), World: j.World, Device: dev, Threads: dev.Threads(), RunDir: j.RunDir, Resume: j.Resume, Digest: j.Digest, Arithmetic: arithmeticClass(spec),
		DigestAs: func(was plugin.Versions) (string, error) { return recipe.DigestAs(spec, was) },
		Started:  time.Unix(0, j.StartedUnixNano), Stop: w.StopRequested(), Observe: observe, Status: w.Status,
		Quiesce: func(err error) { _ = w.Fail(err) },
	}
	if j.World > 1 {
		if w.Rank() == 0 {
			observe(train.Event{Kind: train.EventNote, Text: "ranks connected by " + w.Transport().String()})
			if note := splitNote(spec.Mesh, hostNames(w.Transport())); note != "" {
				observe(train.Event{Kind: train.EventNote, Text: note})
			}
		}
		var recorder *comm.Recorder
		if env.Group, recorder, err = dataGroup(w, spec.Mesh.Flat(), time.Duration(j.Timeout*float64(time.Second)), j.RunDir); err != nil {
			return err
		}
		env.NewGroup = func(name string) (*comm.Group, error) {
			return comm.NewGroup(w.Transport(), name, env.Group.Ranks(), comm.Options{Timeout: checkpointTimeout})
		}
		env.Waited = recorder.Waited
		env.SentTo = func(rank int) comm.Traffic { return comm.SentTo(w.Transport(), rank) }
		env.SentBytes = func() int64 { return comm.Sum(w.Transport()).PayloadSent }
	}
	result, err := train.Run(ctx, spec, env)
	out := report{Result: result}
	if errors.Is(err, train.ErrInterrupted) {
		out.Interrupted, err = true, nil
	}
	if env.Group != nil {
		if err == nil {
			err = env.Group.BarrierPatient(ctx, "end of the run")
		}
		out.Traffic = trafficOf(w.Transport())
		err = errors.Join(err, env.Group.Close())
	}
	if err != nil {
		return err
	}
	b, err := json.Marshal(out)
	if err != nil {
		return err
	}
	return w.Done(b)
}
