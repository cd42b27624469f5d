package main

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"starling/core/device/cpu"
	"starling/core/recipe"
	"starling/core/train"
)

func newSample() *cobra.Command {
	var (
		set         []string
		dir, prompt string
		tokens      int
		temperature float64
		topK        int
		seed        uint64
		best        bool
	)
	c := &cobra.Command{
		Use:   "sample RECIPE.star",
		Short: "Draw text from a run's checkpoint",
		Long: `Draw text from the newest good checkpoint of a run (--run-dir, by default the newest run of this recipe). The recipe must
declare a sample, which says what the model and its tokenizer are.`,
		Example: `  runtime sample recipes/quickstart.star --prompt "func Test" --tokens 400`,
		Args:    oneRecipe,
		RunE: func(c *cobra.Command, args []string) error {
			dir, own, err := oldFolder(args[0], dir)
			if err != nil {
				return fmt.Errorf("%w (sample reads a run's checkpoint)", err)
			}
			spec, err := recipe.Load(args[0], recipe.Options{Set: mergeSets(own.Set, set)})
			if err != nil {
				return err
			}
			if len(spec.Samples) == 0 {
				return fmt.Errorf("%s declares no sample; add sample = sample(model, prompt = …, tokens = …) to its train()", args[0])
			}
			x := spec.Samples[0]
			f := c.Flags()
			if f.Changed("prompt") {
				x.Prompt = prompt
			}
			if f.Changed("tokens") {
				x.Tokens = tokens
			}
			if f.Changed("temperature") {
				x.Temperature = temperature
			}
			if f.Changed("top-k") {
				x.TopK = topK
			}
			if f.Changed("seed") {
				spec.Seed = seed
			}
			if x.Tokens < 1 || !(x.Temperature >= 0) || x.TopK < 0 {
				return &exitError{2, fmt.Errorf("--tokens %d must be at least 1, --temperature %v and --top-k %d at least 0", x.Tokens, x.Temperature, x.TopK)}
			}
			dev, err := cpu.Open(cpu.Config{})
			if err != nil {
				return err
			}
			defer dev.Close()
			text, step, err := train.Generate(c.Context(), spec, dev, filepath.Join(dir, train.CheckpointFolder), best, x)
			if err != nil {
				return err
			}
			fmt.Fprintf(c.ErrOrStderr(), "%s after step %d:\n", dir, step)
			_, err = fmt.Fprintln(c.OutOrStdout(), printable(text))
			return err
		},
	}
	f := c.Flags()
	f.StringArrayVar(&set, "set", nil, "set a recipe parameter, as `name=value` (default: as in the run)")
	f.StringVar(&dir, "run-dir", "", "`folder` of the run (default: the newest of this recipe)")
	f.StringVar(&prompt, "prompt", "", "`text` to go on from (default: the recipe's)")
	f.IntVar(&tokens, "tokens", 0, "how many tokens to draw (default: the recipe's)")
	f.Float64Var(&temperature, "temperature", 0, "0 takes the likeliest token, larger is more varied (default: the recipe's)")
	f.IntVar(&topK, "top-k", 0, "draw among this many likeliest tokens, 0 among all (default: the recipe's)")
	f.Uint64Var(&seed, "seed", 0, "seed of the draws (default: the recipe's)")
	f.BoolVar(&best, "best", false, "use the checkpoint that evaluated best instead of the newest")
	return c
}
