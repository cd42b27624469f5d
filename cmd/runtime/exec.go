package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"starling/core/cluster"
	"starling/core/recipe"
	"starling/core/train"
)

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
	spec, err := recipe.Load(path, recipe.Options{Set: o.set})
	if err != nil {
		return err
	}
	if o.threads < 0 {
		return &exitError{2, fmt.Errorf("--threads %d: must be at least 1", o.threads)}
	}
	digest, err := recipe.Digest(spec)
	if err != nil {
		return err
	}
	if err := (cluster.Config{Ranks: spec.Mesh.Data, Listen: o.listen, Transport: o.transport, TLS: o.tls, Hosts: o.hosts}).Validate(); err != nil {
		return &exitError{2, fmt.Errorf("--listen, --transport, --tls, --hosts: %w", err)}
	}
	dir, err := runFolder(spec, path, &o)
	if err != nil {
		return err
	}
	if err := writeRun(dir, spec, digest, o); err != nil {
		return err
	}
	file, err := os.OpenFile(filepath.Join(dir, "log.jsonl"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("run folder: %w", err)
	}
	show := newDisplay(stderr, file, o.quiet)
	defer show.close()
	job := job{Recipe: path, Set: o.set, RunDir: dir, Resume: o.resume, Digest: digest, Threads: o.threads, World: spec.Mesh.Data, StartedUnixNano: started.UnixNano(), Timeout: spec.Mesh.TimeoutSec, Listen: o.listen, Transport: o.transport, TLS: o.tls, Hosts: o.hosts}
	show.event(train.Event{Kind: train.EventNote, Text: fmt.Sprintf("%s: %d rank%s, run folder %s", spec.Name, job.World, plural(job.World), dir)})
	result, err := launch(ctx, job, spec, o.inProcess, show)
	show.close()
	switch {
	case errors.Is(err, train.ErrInterrupted):
		return &exitError{130, fmt.Errorf("interrupted; go on with: runtime exec %s%s --run-dir %s --resume", path, setFlags(o.set), dir)}
	case err != nil:
		return fmt.Errorf("%w\n(the run's log is in %s)", err, dir)
	}
	if err := result.Write(dir); err != nil {
		return err
	}
	_, err = io.WriteString(stdout, resultTable(result, dir))
	return err
}

func setFlags(set []string) string {
	s := ""
	for _, v := range set {
		s += " --set " + v
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
