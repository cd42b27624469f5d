package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"starling/core/plugin"
	"starling/core/plugin/plugintest"
)

func newPluginTest() *cobra.Command {
	var set, from []string
	var recipe string
	c := &cobra.Command{
		Use:   "test NAME|PATH",
		Short: "Check that a plugin keeps what the runtime promises of it",
		Long: `Start a plugin as a rank would and check it: that it is deterministic, that an element-wise optimizer is, that it hides no state, that it survives being
killed at any moment, that it goes on from saved state and from that of earlier versions (--from), and how fast it is. PATH is a program, a folder with a plugin.json or
the folder of a Go module; NAME is a plugin that is installed.`,
		Args: one("plugin"),
		RunE: stoppable(func(c *cobra.Command, args []string) error {
			tmp, err := os.MkdirTemp("", "starling-test-")
			if err != nil {
				return err
			}
			defer os.RemoveAll(tmp)
			f, err := tested(c.Context(), args[0], recipe, tmp)
			if err != nil {
				return err
			}
			use, err := described(c.Context(), f)
			if err != nil {
				return err
			}
			hypers, err := hypersOf(use.Manifest, set)
			if err != nil {
				return &exitError{2, err}
			}
			var earlier []plugintest.Earlier
			for i, path := range from {
				old, err := earlierVersion(c.Context(), path, filepath.Join(tmp, fmt.Sprintf("earlier-%d", i)), f.Name)
				if err != nil {
					return fmt.Errorf("--from: %w", err)
				}
				e := plugintest.Earlier{Use: old}
				if e.Hypers, err = hypersOf(old.Manifest, settingsOf(old, set)); err != nil {
					return &exitError{2, fmt.Errorf("--from %s: %w", path, err)}
				}
				earlier = append(earlier, e)
			}
			report := func(k plugintest.Check) {
				mark, note := "ok  ", k.Note
				switch {
				case k.Err != nil:
					mark, note = "FAIL", k.Err.Error()
				case k.Skipped:
					mark = "skip"
				}
				if note != "" {
					note = " (" + note + ")"
				}
				fmt.Fprintf(c.OutOrStdout(), "%s %s%s\n", mark, k.Name, note)
			}
			return plugintest.Run(c.Context(), use, hypers, report, earlier...)
		}),
	}
	f := c.Flags()
	f.StringArrayVar(&set, "set", nil, "set a hyper-parameter, as `name=value`; may be repeated")
	f.StringArrayVar(&from, "from", nil, "the `path` of an earlier version, whose state this one must upgrade; may be repeated")
	f.StringVar(&recipe, "recipe", "", "also look for NAME beside this `recipe` (default: the working folder)")
	return c
}

// tested finds what is to be tested: a path, or else the name of an installed plugin.
func tested(ctx context.Context, arg, recipe, tmp string) (plugin.Found, error) {
	if _, err := os.Stat(arg); errors.Is(err, fs.ErrNotExist) && !strings.ContainsRune(arg, filepath.Separator) {
		f, err := locate(arg, recipe)
		if err != nil && isSource(".", arg) {
			err = fmt.Errorf("%w\n    the working folder is its source: runtime plugin test . checks it", err)
		}
		return f, err
	}
	return built(ctx, arg, tmp, "")
}

// isSource reports whether a folder is the source of the plugin of a name.
func isSource(dir, name string) bool {
	abs, err := filepath.Abs(dir)
	if err != nil || filepath.Base(abs) != name {
		return false
	}
	_, program := os.Stat(filepath.Join(abs, "go.mod"))
	_, folder := os.Stat(filepath.Join(abs, plugin.FolderFile))
	return program == nil || folder == nil
}

// described asks a plugin what it is.
func described(ctx context.Context, f plugin.Found) (*plugin.Use, error) {
	m, err := plugin.Describe(ctx, f)
	if err != nil {
		return nil, err
	}
	sha, err := f.Hash()
	if err != nil {
		return nil, err
	}
	return &plugin.Use{Found: f, Manifest: m, SHA256: sha}, nil
}

// earlierVersion copies another version of a plugin into dir, under the plugin's name: two versions of one name lie somewhere under
// other names.
func earlierVersion(ctx context.Context, path, dir, name string) (*plugin.Use, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := built(ctx, path, dir, name)
	if err != nil {
		return nil, err
	}
	if target := filepath.Join(dir, name); f.Path != target {
		if err := replaceBy(target, f); err != nil {
			return nil, err
		}
		if f, err = plugin.Open(target); err != nil {
			return nil, err
		}
	}
	return described(ctx, f)
}

// settingsOf are those of the command line that an earlier version has too.
func settingsOf(u *plugin.Use, set []string) (out []string) {
	for _, kv := range set {
		name, _, _ := strings.Cut(kv, "=")
		for _, h := range u.Manifest.Hypers {
			if h.Name == name {
				out = append(out, kv)
			}
		}
	}
	return out
}
