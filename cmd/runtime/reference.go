package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"starling/core/recipe"
)

func newReference() *cobra.Command {
	return &cobra.Command{
		Use:   "reference [WORD]",
		Short: "Print the recipe language: every function with its arguments",
		Long: `Print the recipe language: every function with its arguments and a line of help. With a word, only the functions whose line
contains it. docs/recipes.md explains the language; @std//nn.star and the models are Starlark, in recipes/std.`,
		Example: "  runtime reference schedule\n  runtime reference attention",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			w := c.OutOrStdout()
			found := false
			for line := range strings.Lines(recipe.Reference()) {
				line = strings.TrimRight(line, "\n")
				if len(args) == 1 && !strings.Contains(strings.ToLower(line), strings.ToLower(args[0])) {
					continue
				}
				found = true
				if strings.HasPrefix(line, "#") {
					fmt.Fprintln(w, "\n"+line)
					continue
				}
				call, help, _ := strings.Cut(line, "\t")
				fmt.Fprintf(w, "%s\n    %s\n", call, help)
			}
			if !found {
				return fmt.Errorf("nothing in the recipe language contains %q", args[0])
			}
			return nil
		},
	}
}
