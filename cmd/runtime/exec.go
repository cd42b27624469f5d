package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"starling/core/cluster"
	"starling/core/plugin"
	"starling/core/recipe"
	"starling/core/train"
)

// envTransport is the default of --transport.
const envTransport = "STARLING_TRANSPORT"

// envHost sets the default of --host.
const envHost = "STARLING_HOST"

// stopSignals ask for a graceful end; SIGHUP comes when the terminal or the connection goes away.
var stopSignals = []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP}

// execOptions are the flags of exec.
type execOptions struct {
	set       []string
	runDir    string
	resume    bool
	inProcess bool
	threads   int
	listen    string
	transport string
	hosts     []string
	tls       string
	quiet     bool

	cluster    string
	start      string
	rendezvous string
	host       string
	patience   time.Duration
}

func newExec(started time.Time) *cobra.Command {
	var o execOptions
	c := &cobra.Command{
		Use:        "exec RECIPE.star",
		SuggestFor: []string{"train", "run", "launch", "start"},
		Short:      "Train what a recipe describes",
		Long: `Train what a recipe describes. Each run writes a folder (runs/<recipe>-<time>, or --run-dir) with the resolved recipe,
metrics.jsonl, checkpoints, the log, and at the end result.json.

'runtime exec RECIPE.star --help' also lists the recipe's parameters, which --set changes.

Interrupt once (ctrl-C or SIGTERM) to write a checkpoint and end; twice to end at once. --resume goes on from the last checkpoint
of --run-dir, or of the newest run of this recipe, to the same weights as if nothing had happened.`,
		Example: `  runtime exec recipes/quickstart.star
  runtime exec recipes/quickstart.star --set steps=300 --set ranks=1
  runtime exec recipes/quickstart.star --resume`,
		Args: oneRecipe,
		RunE: func(c *cobra.Command, args []string) error {
			return execute(c.Context(), args[0], o, started, os.Stdout, os.Stderr)
		},
	}
	f := c.Flags()
	f.StringArrayVar(&o.set, "set", nil, "set a recipe parameter, as `name=value`; may be repeated")
	f.StringVar(&o.runDir, "run-dir", "", "`folder` of the run (default runs/<recipe>-<time>)")
	f.BoolVar(&o.resume, "resume", false, "go on from the last checkpoint of the run in --run-dir, or of the newest run of this recipe")
	f.BoolVar(&o.inProcess, "in-process", false, "run the ranks as goroutines of this process instead of processes")
	f.IntVar(&o.threads, "threads", 0, "CPU threads per rank (default: the recipe's, else the usable cores shared among the ranks)")
	o.placementFlags(f)
	f.BoolVarP(&o.quiet, "quiet", "q", false, "show no progress, only the result")
	help := c.HelpFunc()
	c.SetHelpFunc(func(c *cobra.Command, args []string) {
		help(c, args)
		for _, a := range args {
			if strings.HasSuffix(a, ".star") {
				printParams(c.OutOrStdout(), a)
			}
		}
	})
	return c
}

func hostsFlag(f *pflag.FlagSet, hosts *[]string) {
	f.StringSliceVar(hosts, "hosts", nil, "`name` of each process's host, separated by commas, to rehearse several hosts on one; ranks are given by host (default: the recipe's, else all ranks on this one)")
}

// placementFlags are those that say where ranks run and how they are connected.
func (o *execOptions) placementFlags(f *pflag.FlagSet) {
	f.StringVar(&o.listen, "listen", "", "where the ranks listen for each other: tcp:`host:port`, rank r at port + r, port 0 for any (default: Unix sockets; with --cluster the file's, and where ranks may be on several machines tcp:auto:0)")
	f.StringVar(&o.transport, "transport", os.Getenv(envTransport), "how the ranks move data: auto, shm (memory shared by the ranks of a machine), unix, tcp, or mpi between machines, which is not encrypted (default: $STARLING_TRANSPORT, else auto)")
	hostsFlag(f, &o.hosts)
	f.StringVar(&o.tls, "tls", "", "on or off: encrypt TCP between the ranks (default: on with hosts that --cluster reaches by a command and for processes that were started separately, else unless they listen at the loopback); on excludes --transport mpi")
	f.StringVar(&o.cluster, "cluster", "", "cluster `file`: the hosts on which the ranks are started, in JSON (docs/launching.md)")
	f.StringVar(&o.start, "start", "auto", "auto: be one of the processes that srun, mpirun or whatever sets RANK and WORLD_SIZE has started; here: ignore their environment")
	f.StringVar(&o.rendezvous, "rendezvous", "", "`host:port` at which processes that were started separately meet, on the host of process 0 (default: $STARLING_RENDEZVOUS, $MASTER_ADDR and $MASTER_PORT, else told by srun or a local mpirun)")
	f.StringVar(&o.host, "host", os.Getenv(envHost), "`name` of this machine among the hosts of a job whose processes were started separately (default: $STARLING_HOST, else the machine's identity)")
	f.DurationVar(&o.patience, "patience", 10*time.Minute, "how long processes that were started separately are waited for")
}

// printParams lists a recipe's parameters under the help text.
func printParams(w io.Writer, path string) {
	params, err := recipe.Params(path, recipe.Options{})
	fmt.Fprintf(w, "\nParameters of %s:\n", path)
	if len(params) == 0 && err == nil {
		fmt.Fprintln(w, "  none")
	}
	var rows [][2]string
	for _, p := range params {
		rows = append(rows, [2]string{fmt.Sprintf("--set %s=%v", p.Name, p.Default), p.Help})
	}
	fmt.Fprint(w, table(rows))
	if err != nil {
		fmt.Fprintf(w, "the recipe does not load: %v\n", err)
	}
}

// execute trains, from the recipe's path to the table of results.
func execute(ctx context.Context, path string, o execOptions, started time.Time, stdout io.Writer, stderr *os.File) error {
	stop, release := stopOnSignals()
	defer release()
	var own *runRecord
	if o.resume {
		var err error
		if o.runDir, own, err = oldFolder(path, o.runDir); err != nil {
			return fmt.Errorf("--resume: %w", err)
		}
		o.set = mergeSets(own.Set, o.set)
	}
	one, err := o.started()
	if err != nil {
		return err
	}
	if err := o.alone(one); err != nil {
		return err
	}
	printed, local := &printer{}, &plugin.Local{}
	spec, err := recipe.Load(path, recipe.Options{Set: o.set, Print: printed.print, Plugins: local})
	if err != nil {
		if one != nil && one.Number > 0 && len(local.Failed) > 0 {
			return attendWithout(ctx, stop, one, o, path, local, stderr)
		}
		return err
	}
	if o.threads < 0 || o.threads > 1024 {
		return &exitError{2, fmt.Errorf("--threads %d: must lie between 1 and 1024, or be 0 for the default", o.threads)}
	}
	if err := o.together(); err != nil {
		return err
	}
	if o.patience <= 0 {
		return &exitError{2, fmt.Errorf("--patience %v: must be a time above 0, such as 10m", o.patience)}
	}
	digest, err := recipe.Digest(spec)
	if err != nil {
		return err
	}
	if one != nil && one.Number > 0 {
		return attend(ctx, stop, one, o, spec.Mesh.Data, path, digest)
	}
	axes := spec.Mesh.Axes()
	places, meet, err := o.far(one, axes)
	if err != nil {
		return err
	}
	hosts, notes := o.declared(spec.Mesh, len(places) > 0, one)
	if err := (cluster.Config{Ranks: spec.Mesh.Data, Mesh: axes, Listen: o.listen, Transport: o.transport, TLS: o.tls, Hosts: hosts, Places: places, Rendezvous: meet}).Validate(); err != nil {
		return o.blame(err)
	}
	dir := o.runDir
	if own == nil {
		if dir, err = newFolder(path, o.runDir); err != nil {
			return err
		}
	} else if !own.began(spec, digest) {
		return fmt.Errorf("--resume: the run in %s cannot be gone on with: %s; only placement (ranks, threads, buckets) may differ, and run.json and recipe.star there say what it was",
			dir, own.differs(dir, spec, o.set, local))
	}
	unlock, err := lockFolder(dir)
	if err != nil {
		return err
	}
	defer unlock()
	if own == nil {
		if err := writeRun(dir, spec, digest, o); err != nil {
			return err
		}
	}
	file, err := os.OpenFile(filepath.Join(dir, "log.jsonl"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("run folder: %w", err)
	}
	show := newDisplay(stderr, file, o.quiet)
	show.unit = spec.Unit()
	defer show.close()
	job := job{Recipe: path, Set: o.set, RunDir: dir, Resume: o.resume, Digest: digest, Threads: o.threads, World: spec.Mesh.Data, StartedUnixNano: started.UnixNano(), Timeout: spec.Mesh.TimeoutSec, Listen: o.listen, Transport: o.transport, TLS: o.tls, Hosts: hosts, stop: stop, mesh: axes, places: places, rendezvous: meet, patience: o.patience, Plugins: local.Handed(), local: local}
	show.event(train.Event{Kind: train.EventNote, Text: fmt.Sprintf("%s: %d rank%s, run folder %s", spec.Name, job.World, plural(job.World), dir)})
	if meet != nil {
		notes = append(notes, fmt.Sprintf("waiting for %d of %d processes at %s, for up to %v (--patience)", job.World-1, job.World, meet.At(), o.patience))
	}
	for _, text := range notes {
		show.event(train.Event{Kind: train.EventNote, Text: text})
	}
	result, err := launch(ctx, job, spec, printed, o.inProcess, show)
	show.close()
	switch {
	case (errors.Is(err, train.ErrInterrupted) || errors.Is(err, cluster.ErrStopped)) && resumable(dir):
		return &exitError{130, fmt.Errorf("interrupted; go on with: runtime exec %s%s --run-dir %s --resume", plugin.Quoted(path), o.placement(), plugin.Quoted(dir))}
	case errors.Is(err, train.ErrInterrupted) || errors.Is(err, cluster.ErrStopped):
		return &exitError{130, errors.New("interrupted before there was a checkpoint; nothing of the run is kept but its log")}
	case err != nil && resumable(dir) && (!o.resume || show.resumed): // what refuses a checkpoint refuses it again
		return fmt.Errorf("%w\n(the run's log is in %s)\ngo on from the last checkpoint with: runtime exec %s%s --run-dir %s --resume", err, dir, plugin.Quoted(path), o.placement(), plugin.Quoted(dir))
	case err != nil:
		return fmt.Errorf("%w\n(the run's log is in %s)", err, dir)
	}
	if _, err := io.WriteString(stdout, resultTable(result, spec.Unit(), dir)); err != nil {
		err = fmt.Errorf("writing the result: %w", err)
		return errors.Join(err, result.Write(dir))
	}
	return result.Write(dir)
}

// stopOnSignals answers the first signal that asks for an end by closing stop, from now on: cluster listens for signals only
// once ranks are there, and hears of earlier ones by stop.
func stopOnSignals() (stop <-chan struct{}, release func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, stopSignals...)
	asked, done := make(chan struct{}), make(chan struct{})
	go func() {
		select {
		case <-signals:
			close(asked)
		case <-done:
		}
	}()
	return asked, func() {
		signal.Stop(signals)
		close(done)
	}
}

// placement repeats the flags that a resumed run wants again. Params are in the run's record.
func (o execOptions) placement() string {
	var b strings.Builder
	if o.threads > 0 {
		fmt.Fprintf(&b, " --threads %d", o.threads)
	}
	if o.inProcess {
		b.WriteString(" --in-process")
	}
	for _, f := range [][2]string{{"listen", o.listen}, {"transport", o.transport}, {"hosts", strings.Join(o.hosts, ",")}, {"tls", o.tls}, {"cluster", o.cluster}, {"rendezvous", o.rendezvous}} {
		if f[1] != "" {
			fmt.Fprintf(&b, " --%s %s", f[0], plugin.Quoted(f[1]))
		}
	}
	return b.String()
}

// setFlags repeats --set flags.
func setFlags(set []string) string {
	s := ""
	for _, v := range set {
		s += " --set " + plugin.Quoted(v)
	}
	return s
}

func plural(n int) string {
	if n == 1 {
		return ""
	}
	return "s"
}

// resultTable closes a run.
func resultTable(r *train.Result, unit, dir string) string {
	rows := [][2]string{
		{"steps", count(int64(r.Steps))},
		{unit, count(r.Tokens)},
		{"training time", fmt.Sprintf("%.1f s", r.Seconds)},
		{unit + "/s", count(int64(r.TokensPerS))},
		{"first step after", fmt.Sprintf("%.2f s (reading data %.2f s)", r.FirstStepS, r.DataIndexS)},
		{"train loss", fmt.Sprintf("%.4f", r.TrainLoss)},
	}
	if r.EvalLoss != nil {
		rows = append(rows, [2]string{"eval loss", fmt.Sprintf("%.4f", *r.EvalLoss)})
	}
	for _, k := range sortedKeys(r.Eval) {
		if k != "eval_loss" {
			rows = append(rows, [2]string{k, fmt.Sprintf("%.4f", r.Eval[k])})
		}
	}
	if r.BestEvalLoss != nil {
		rows = append(rows, [2]string{"best eval", fmt.Sprintf("%.4f", *r.BestEvalLoss)})
	}
	if r.Ranks > 1 {
		rows = append(rows, [2]string{"communication hidden", fmt.Sprintf("%.0f%% of what the backward pass could hide", 100*r.Overlap)})
	}
	rows = append(rows, [][2]string{
		{"traffic", trafficText(r.Links)},
		{"peak memory", peakText(r)},
		{"kernels", fmt.Sprintf("%s, %d rank%s of %d thread%s", r.Kernels, r.Ranks, plural(r.Ranks), r.Threads, plural(r.Threads))},
		{"weights sha256", r.WeightsSHA256},
		{"run folder", dir},
	}...)
	return table(slices.DeleteFunc(rows, func(r [2]string) bool { return r[1] == "" }))
}

// peakText is the memory of the rank that took most.
func peakText(r *train.Result) string {
	apart := ""
	if r.PlannedHost > 0 {
		apart = fmt.Sprintf(" (%s of it off the device)", bytesText(r.PlannedHost))
	}
	return fmt.Sprintf("%s planned%s, %s used, %s resident", bytesText(r.PlannedPeak), apart, bytesText(r.Peak), bytesText(r.PeakRSS))
}
