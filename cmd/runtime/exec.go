package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"starling/core/cluster"
	"starling/core/recipe"
	"starling/core/train"
)

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
}

func newExec(started time.Time) *cobra.Command {
	var o execOptions
	c := &cobra.Command{
		Use:   "exec RECIPE.star",
		Short: "Train what a recipe describes",
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
	f.StringVar(&o.listen, "listen", "", "where the ranks listen for each other: tcp:`host:port`, rank r at port + r, port 0 for any (default: Unix sockets)")
	f.StringVar(&o.transport, "transport", os.Getenv("STARLING_TRANSPORT"), "how the ranks move data: auto, shm (memory shared by the ranks of a machine), unix or tcp (default: $STARLING_TRANSPORT, else auto)")
	f.StringSliceVar(&o.hosts, "hosts", nil, "`name` of each rank's host, separated by commas, to rehearse several hosts on one (default: all ranks on this one)")
	f.StringVar(&o.tls, "tls", "", "on or off: encrypt TCP between the ranks (default: on unless they listen at the loopback)")
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
	printed := &printer{}
	spec, err := recipe.Load(path, recipe.Options{Set: o.set, Print: printed.print})
	if err != nil {
		return err
	}
	if o.threads < 0 || o.threads > 1024 {
		return &exitError{2, fmt.Errorf("--threads %d: must lie between 1 and 1024, or be 0 for the default", o.threads)}
	}
	digest, err := recipe.Digest(spec)
	if err != nil {
		return err
	}
	if err := (cluster.Config{Ranks: spec.Mesh.Data, Listen: o.listen, Transport: o.transport, TLS: o.tls, Hosts: o.hosts}).Validate(); err != nil {
		return &exitError{2, fmt.Errorf("--listen, --transport, --tls, --hosts: %w", err)}
	}
	dir := o.runDir
	if own == nil {
		if dir, err = newFolder(path, o.runDir); err != nil {
			return err
		}
	} else if own.Digest != digest {
		return fmt.Errorf("--resume: the run in %s is of another recipe or other parameters (digest %.12s, now %.12s); only placement (ranks, threads, buckets) may differ; "+
			"run.json and recipe.star there say what it was", dir, own.Digest, digest)
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
	defer show.close()
	job := job{Recipe: path, Set: o.set, RunDir: dir, Resume: o.resume, Digest: digest, Threads: o.threads, World: spec.Mesh.Data, StartedUnixNano: started.UnixNano(), Timeout: spec.Mesh.TimeoutSec, Listen: o.listen, Transport: o.transport, TLS: o.tls, Hosts: o.hosts, stop: stop}
	show.event(train.Event{Kind: train.EventNote, Text: fmt.Sprintf("%s: %d rank%s, run folder %s", spec.Name, job.World, plural(job.World), dir)})
	result, err := launch(ctx, job, spec, printed, o.inProcess, show)
	show.close()
	switch {
	case (errors.Is(err, train.ErrInterrupted) || errors.Is(err, cluster.ErrStopped)) && resumable(dir):
		return &exitError{130, fmt.Errorf("interrupted; go on with: runtime exec %s%s --run-dir %s --resume", quoted(path), o.placement(), quoted(dir))}
	case errors.Is(err, train.ErrInterrupted) || errors.Is(err, cluster.ErrStopped):
		return &exitError{130, errors.New("interrupted before there was a checkpoint; nothing of the run is kept but its log")}
	case err != nil:
		return fmt.Errorf("%w\n(the run's log is in %s)", err, dir)
	}
	if _, err := io.WriteString(stdout, resultTable(result, dir)); err != nil {
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
	for _, f := range [][2]string{{"listen", o.listen}, {"transport", o.transport}, {"hosts", strings.Join(o.hosts, ",")}, {"tls", o.tls}} {
		if f[1] != "" {
			fmt.Fprintf(&b, " --%s %s", f[0], quoted(f[1]))
		}
	}
	return b.String()
}

// setFlags repeats --set flags.
func setFlags(set []string) string {
	s := ""
	for _, v := range set {
		s += " --set " + quoted(v)
	}
	return s
}

// quoted is a word as a shell takes it.
func quoted(s string) string {
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./=:,+@%", r))
	}) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func plural(n int) string {
	if n == 1 {
		return ""
	}
	return "s"
}

// resultTable closes a run.
func resultTable(r *train.Result, dir string) string {
	rows := [][2]string{
		{"steps", count(int64(r.Steps))},
		{"tokens", count(r.Tokens)},
		{"training time", fmt.Sprintf("%.1f s", r.Seconds)},
		{"tokens/s", count(int64(r.TokensPerS))},
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
	rows = append(rows, [][2]string{
		{"peak memory", fmt.Sprintf("%s planned, %s used, %s resident", bytesText(r.PlannedPeak), bytesText(r.Peak), bytesText(r.PeakRSS))},
		{"kernels", fmt.Sprintf("%s, %d rank%s of %d thread%s", r.Kernels, r.Ranks, plural(r.Ranks), r.Threads, plural(r.Threads))},
		{"weights sha256", r.WeightsSHA256},
		{"run folder", dir},
	}...)
	return table(rows)
}
