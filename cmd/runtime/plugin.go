package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"starling/core/plugin"
	"starling/sdk"
)

// addPluginFlags gives every command the flags that say where plugins are and how they are started. They travel to the ranks in
// the environment.
func addPluginFlags(root *cobra.Command) {
	var dirs []string
	var wait bool
	f := root.PersistentFlags()
	f.StringArrayVar(&dirs, "plugin-dir", nil, "look for plugins in this `folder` first; may be repeated")
	f.BoolVar(&wait, "plugin-wait", false, "let plugins wait for a debugger before they serve")
	root.PersistentPreRunE = func(*cobra.Command, []string) error {
		if wait {
			if err := os.Setenv(sdk.EnvWait, "1"); err != nil {
				return err
			}
		}
		if len(dirs) == 0 {
			return nil
		}
		var all []string
		for _, d := range dirs {
			abs, err := filepath.Abs(d)
			if err == nil {
				_, err = os.ReadDir(abs)
			}
			if err != nil {
				return &exitError{2, fmt.Errorf("--plugin-dir %s: %w", d, err)}
			}
			all = append(all, abs)
		}
		all = append(all, filepath.SplitList(os.Getenv(plugin.EnvPath))...)
		return os.Setenv(plugin.EnvPath, strings.Join(all, string(filepath.ListSeparator)))
	}
}

func newPlugin() *cobra.Command {
	c := &cobra.Command{
		Use:   "plugin",
		Short: "Make, test and install plugins",
		Long: `Plugins are programs of their own that extend the runtime: optimizers, learning-rate schedules, compressors of gradients and sinks for metrics. A
recipe names them, with plugin.optimizer("name", …), plugin.schedule, plugin.compressor or plugin.sink. They are looked for in the folders of --plugin-dir, in the folder plugins beside the recipe, and
in the user's own folder.

On first use a plugin's checksum and manifest go into plugins.lock beside the recipe; from then on another file is refused.`,
	}
	c.AddCommand(newPluginNew(), newPluginTest(), newPluginList(), newPluginInfo(), newPluginInstall(), newPluginRemove(), newPluginPin())
	return c
}

// one is the argument rule of commands that take one argument of the given name.
func one(what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) != 1 {
			return &exitError{2, fmt.Errorf("%s takes one %s, got %d arguments\nUsage: %s", c.CommandPath(), what, len(args), c.UseLine())}
		}
		return nil
	}
}

func newPluginList() *cobra.Command {
	var recipe string
	c := &cobra.Command{
		Use:   "list",
		Short: "List the plugins that are found, and where",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			beside, err := recipeFolder(recipe)
			if err != nil {
				return err
			}
			for _, d := range plugin.Dirs(beside) {
				all, err := plugin.List([]string{d})
				if err != nil {
					return err
				}
				fmt.Fprintf(c.OutOrStdout(), "%s\n", d)
				var rows [][2]string
				for _, f := range all {
					m, err := plugin.Describe(c.Context(), f)
					if err != nil {
						first, _, more := strings.Cut(err.Error(), "\n")
						if more {
							first += "; runtime plugin info " + plugin.Quoted(f.Path) + " says more"
						}
						rows = append(rows, [2]string{f.Name, first})
						continue
					}
					rows = append(rows, [2]string{f.Name, fmt.Sprintf("%s  %s: %s", m.Version, kindOf(m), m.Doc)})
				}
				if len(rows) == 0 {
					rows = [][2]string{{"none", ""}}
				}
				io.WriteString(c.OutOrStdout(), table(rows))
			}
			return nil
		},
	}
	c.Flags().StringVar(&recipe, "recipe", "", "also look beside this `recipe` (default: the working folder)")
	return c
}

// recipeFolder is the folder of the recipe that --recipe names, the working folder where it names none.
func recipeFolder(recipe string) (string, error) {
	if recipe == "" {
		return ".", nil
	}
	switch info, err := os.Stat(recipe); {
	case err != nil:
		return "", &exitError{2, fmt.Errorf("--recipe: %w", err)}
	case info.IsDir():
		return "", &exitError{2, fmt.Errorf("--recipe %s: it is a folder; name the recipe in it", recipe)}
	}
	return filepath.Dir(recipe), nil
}

func kindOf(m sdk.Manifest) string {
	switch {
	case m.Kind() != sdk.KindOptimizer:
		return string(m.Kind())
	case m.Optimizer.Granularity == sdk.Whole:
		return "optimizer of whole tensors"
	}
	return "element-wise optimizer"
}

// locate finds a plugin by its name, or by a path that a person gives.
func locate(arg, recipe string) (plugin.Found, error) {
	if strings.ContainsRune(arg, filepath.Separator) || arg == "." {
		return plugin.Open(arg)
	}
	dir, err := recipeFolder(recipe)
	if err != nil {
		return plugin.Found{}, err
	}
	all, err := plugin.Find(arg, plugin.Dirs(dir))
	if err != nil {
		return plugin.Found{}, err
	}
	return all[0], nil
}

func newPluginInfo() *cobra.Command {
	var recipe string
	c := &cobra.Command{
		Use:   "info NAME|PATH",
		Short: "Show what a plugin is and what can be set",
		Args:  one("plugin"),
		RunE: func(c *cobra.Command, args []string) error {
			f, err := locate(args[0], recipe)
			if err != nil {
				return err
			}
			sha, err := f.Hash()
			if err != nil {
				return err
			}
			m, err := plugin.Describe(c.Context(), f)
			if err != nil {
				return err
			}
			_, err = io.WriteString(c.OutOrStdout(), infoText(f, m, sha))
			return err
		},
	}
	c.Flags().StringVar(&recipe, "recipe", "", "also look beside this `recipe` (default: the working folder)")
	return c
}

func infoText(f plugin.Found, m sdk.Manifest, sha string) string {
	rows := [][2]string{{"path", f.Path}, {"sha256", sha}, {"kind", kindOf(m)}}
	if o := m.Optimizer; o != nil {
		var state []string
		for _, s := range o.State {
			text := s.Name
			if s.Own {
				text += "[" + strings.Join(s.Shape, ", ") + "]"
			}
			state = append(state, text)
		}
		if len(state) == 0 {
			state = []string{"none"}
		}
		rows = append(rows, [2]string{"state of each parameter", strings.Join(state, ", ")})
		if len(o.UpgradesFrom) > 0 {
			rows = append(rows, [2]string{"upgrades the state of", strings.Join(o.UpgradesFrom, ", ")})
		}
		if o.MinDims > 0 || o.MaxDims > 0 {
			most := "any number"
			if o.MaxDims > 0 {
				most = strconv.Itoa(o.MaxDims)
			}
			rows = append(rows, [2]string{"takes", fmt.Sprintf("parameters of %d to %s of dimensions", o.MinDims, most)})
		}
	}
	s := fmt.Sprintf("%s %s: %s\n%s\n", m.Name, m.Version, m.Doc, table(rows))
	s += fmt.Sprintf("plugin.%s(%q, …):\n", m.Kind(), m.Name)
	rows = nil
	for _, h := range m.Hypers {
		rows = append(rows, [2]string{h.Signature(), h.Help})
	}
	return s + table(rows)
}

func newPluginPin() *cobra.Command {
	var recipe, from string
	c := &cobra.Command{
		Use:   "pin NAME --recipe RECIPE.star",
		Short: "Accept a plugin's present file for the recipes of a folder",
		Long:  "Write a plugin's checksum and manifest into plugins.lock beside a recipe, in place of what it pins now.",
		Args:  one("name"),
		RunE: func(c *cobra.Command, args []string) error {
			if recipe == "" {
				return &exitError{2, errors.New("say for which recipe: --recipe RECIPE.star")}
			}
			dir, err := recipeFolder(recipe)
			if err != nil {
				return err
			}
			all, err := plugin.Find(args[0], plugin.Dirs(dir))
			if err != nil {
				return err
			}
			f := all[0]
			if from != "" {
				if f, err = plugin.Open(from); err != nil {
					return err
				}
			}
			sha, err := f.Hash()
			if err != nil {
				return err
			}
			m, err := plugin.Describe(c.Context(), f)
			if err != nil {
				return err
			}
			lock, err := plugin.ReadLock(dir)
			if err != nil {
				return err
			}
			lock.Set(m, sha)
			if err := lock.Write(); err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s %s is pinned in %s\n  sha256 %s on %s\n", m.Name, m.Version, filepath.Join(dir, plugin.LockFile), sha, plugin.Platform())
			return err
		},
	}
	c.Flags().StringVar(&recipe, "recipe", "", "the `recipe` whose folder holds the lock file")
	c.Flags().StringVar(&from, "from", "", "the plugin's `path`, where several folders have one of this name")
	return c
}

// hypersOf is the manifest's defaults with values from the command line in their place.
func hypersOf(m sdk.Manifest, set []string) (map[string]any, error) {
	out := map[string]any{}
	types := map[string]sdk.Type{}
	for _, h := range m.Hypers {
		types[h.Name] = h.Type
		if !h.Needed {
			out[h.Name] = h.Default
		}
	}
	for _, kv := range set {
		name, text, ok := strings.Cut(kv, "=")
		if !ok || types[name] == 0 {
			return nil, fmt.Errorf("--set %s: write it as name=value, with a hyper-parameter of the plugin", kv)
		}
		v, err := parseHyper(types[name], text)
		if err != nil {
			return nil, fmt.Errorf("--set %s: %w", kv, err)
		}
		out[name] = v
	}
	var missing []string
	for _, h := range m.Hypers {
		if _, ok := out[h.Name]; !ok {
			missing = append(missing, fmt.Sprintf("  --set %s=…\t%s", h.Name, h.Signature()))
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("plugin %s has no defaults for these; give it\n%s", m.Name, strings.Join(missing, "\n"))
	}
	return out, plugin.CheckHypers(m, out)
}

func parseHyper(t sdk.Type, text string) (any, error) {
	switch t {
	case sdk.TypeFloat:
		return strconv.ParseFloat(text, 64)
	case sdk.TypeInt:
		return strconv.ParseInt(text, 10, 64)
	case sdk.TypeBool:
		return strconv.ParseBool(strings.ToLower(text))
	case sdk.TypeFloats:
		list := []float64{}
		for _, s := range strings.Split(strings.Trim(text, "[]()"), ",") {
			f, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
			if err != nil {
				return nil, err
			}
			list = append(list, f)
		}
		return list, nil
	}
	return text, nil
}
