package main

import (
	"context"
	"errors"
	"os/signal"

	"github.com/spf13/cobra"
)

// stoppable lets signals end what a command does by its context, so that what it has made in the temporary directory goes with it.
// Another signal ends it at once.
func stoppable(run func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		ctx, release := signal.NotifyContext(c.Context(), stopSignals...)
		defer release()
		defer context.AfterFunc(ctx, release)()
		c.SetContext(ctx)
		err := run(c, args)
		if ctx.Err() != nil && err != nil {
			return &exitError{130, errors.New("interrupted")}
		}
		return err
	}
}
