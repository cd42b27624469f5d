// Command runtime trains the models that Starlark recipes describe.
//
//	runtime exec recipe.star     train
//	runtime check recipe.star    find every mistake that can be found without training
//	runtime plan recipe.star     memory, parameters and traffic of a run before it starts
//	runtime sample recipe.star   draw text from a run's checkpoint
//	runtime doctor               what this machine has, and the links between ranks
//	runtime bench                measure kernels, training steps and peers on this machine
//
// The package wires recipe, trainer and ranks together and shows a run to a person. It computes nothing itself.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"starling/core/plugin"
	"starling/core/recipe"
)

func main() {
	started := time.Now()
	// A log that cannot be written, on a full disk, is no reason to say so once for every event.
	zerolog.ErrorHandler = func(error) {}
	signal.Ignore(syscall.SIGPIPE) // a reader that goes away must not take a run with it
	if isReference() {
		serveReference()
	}
	if isBenchWorker() {
		os.Exit(benchWorkerMain())
	}
	if isWorker() {
		os.Exit(workerMain())
	}
	os.Exit(run(context.Background(), os.Args[1:], started))
}

// exitError carries an exit status other than 1.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// run executes a command line and returns its exit status: 0 success, 1 a failure, 2 a usage error, 130 interrupted.
func run(ctx context.Context, args []string, started time.Time) int {
	root := newRoot(started)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(root.ErrOrStderr(), "runtime:", err)
	var e *exitError
	if errors.As(err, &e) {
		return e.code
	}
	return 1
}

func newRoot(started time.Time) *cobra.Command {
	root := &cobra.Command{
		Use:   "runtime",
		Short: "Train the model that a Starlark recipe describes",
		Long: `Starling trains deep-learning models from Starlark recipes: on one process, on every core of a machine,
or on several ranks, and the trained weights are the same bits wherever the run was placed.

Start with:

    runtime exec recipes/quickstart.star          train a small GPT on the Go standard library
    runtime exec recipes/quickstart.star --help   what can be changed without editing it
    runtime plan recipes/quickstart.star          what it will need`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		hint := ""
		if name, ok := strings.CutPrefix(err.Error(), "unknown flag: --"); ok {
			if near := nearFlag(c, name); near != "" {
				hint = fmt.Sprintf("; did you mean --%s?", near)
			}
			if c.Flags().Lookup("set") != nil {
				hint += fmt.Sprintf("\nA param of the recipe is set with --set %s=…", name)
			}
		}
		return &exitError{2, fmt.Errorf("%w%s\nSee '%s --help'", err, hint, c.CommandPath())}
	})
	addPluginFlags(root)
	root.AddCommand(newExec(started), newCheck(), newPlan(), newSample(), newBench(started), newPlugin(), newDoctor(), newReference(), newVersion())
	root.Args = cobra.ArbitraryArgs // for namesOne to refuse
	namesOne(root)
	for _, c := range root.Commands() {
		if c.HasSubCommands() {
			namesOne(c)
		}
	}
	return root
}

// namesOne lets a command that only holds others refuse a word that is none of them; without a word it shows its help.
func namesOne(c *cobra.Command) {
	c.DisableFlagsInUseLine = true
	c.SuggestionsMinimumDistance = 2
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return c.Help()
		}
		hint := ""
		if near := c.SuggestionsFor(args[0]); len(near) > 0 {
			hint = fmt.Sprintf("; did you mean %q?", near[0])
		}
		return &exitError{2, fmt.Errorf("unknown command %q for %q%s\nSee '%s --help'", args[0], c.CommandPath(), hint, c.CommandPath())}
	}
}

// nearFlag returns the flag of a command whose name is nearest to a misspelt one, "" where none is near.
func nearFlag(c *cobra.Command, name string) string {
	var names []string
	c.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return recipe.Nearest(name, names)
}

// oneRecipe is the argument rule of commands that take a recipe.
func oneRecipe(c *cobra.Command, args []string) error {
	if len(args) > 1 {
		for _, a := range args[1:] {
			if name, _, ok := strings.Cut(a, "="); ok && name != "" {
				return &exitError{2, fmt.Errorf("%s takes one recipe, got %d arguments; to set a param of the recipe write --set %s", c.CommandPath(), len(args), plugin.Quoted(a))}
			}
		}
	}
	if len(args) != 1 {
		return &exitError{2, fmt.Errorf("%s takes one recipe, got %d arguments\nUsage: %s", c.CommandPath(), len(args), c.UseLine())}
	}
	return nil
}
