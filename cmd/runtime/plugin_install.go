package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"starling/core/plugin"
)

// built returns the plugin at a path; the folder of a Go module is built into dir first, as name, or as the folder is called.
func built(ctx context.Context, path, dir, name string) (plugin.Found, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return plugin.Found{}, err
	}
	if _, err := os.Stat(filepath.Join(abs, plugin.FolderFile)); err == nil {
		return plugin.Open(abs)
	}
	if _, err := os.Stat(filepath.Join(abs, "go.mod")); err != nil {
		return plugin.Open(abs)
	}
	if name == "" {
		name = filepath.Base(abs)
	}
	out := filepath.Join(dir, name)
	// The same source gives the same program, and so the same checksum, wherever it lies.
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-o", out, ".")
	cmd.Dir = abs
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if text, err := cmd.CombinedOutput(); err != nil {
		return plugin.Found{}, fmt.Errorf("building %s: %w\n%s", path, err, text)
	}
	return plugin.Open(out)
}

func newPluginInstall() *cobra.Command {
	var to string
	c := &cobra.Command{
		Use:   "install PATH",
		Short: "Copy a plugin into the user's folder",
		Long:  "Copy a plugin, a program or a folder with a plugin.json, into the user's folder. The folder of a Go module is built first.",
		Args:  one("path"),
		RunE: stoppable(func(c *cobra.Command, args []string) error {
			tmp, err := os.MkdirTemp("", "starling-install-")
			if err != nil {
				return err
			}
			defer os.RemoveAll(tmp)
			f, err := built(c.Context(), args[0], tmp, "")
			if err != nil {
				return err
			}
			m, err := plugin.Describe(c.Context(), f)
			if err != nil {
				return err
			}
			if to == "" {
				if to = plugin.UserDir(); to == "" {
					return errors.New("this system has no folder for a user's plugins; name one with --to")
				}
			}
			if err := os.MkdirAll(to, 0o755); err != nil {
				return fmt.Errorf("installing %s: %w; name a folder that you can write with --to, and let recipes find it with --plugin-dir", f.Name, err)
			}
			target := filepath.Join(to, f.Name)
			_, plain := os.Stat(filepath.Join(target, plugin.FolderFile))
			if _, err := os.Stat(filepath.Join(target, "go.mod")); err == nil && plain != nil {
				return fmt.Errorf("installing %s: %s holds the source of a plugin, which the program would take the place of; install it into another folder with --to", f.Name, target)
			}
			if err := replaceBy(target, f); err != nil {
				return fmt.Errorf("installing %s: %w; name a folder that you can write with --to, and let recipes find it with --plugin-dir", f.Name, err)
			}
			if f, err = plugin.Open(target); err != nil {
				return err
			}
			sha, err := f.Hash()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s %s is installed in %s\n  sha256 %s on %s\n", m.Name, m.Version, target, sha, plugin.Platform())
			return err
		}),
	}
	c.Flags().StringVar(&to, "to", "", "install into this `folder` instead")
	return c
}

// replaceBy copies a plugin beside target and then takes target's place.
func replaceBy(target string, f plugin.Found) error {
	tmp, err := os.MkdirTemp(filepath.Dir(target), ".install-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	copied := filepath.Join(tmp, "new")
	if f.Dir == "" {
		err = copyFile(copied, f.Path, 0o755)
	} else {
		err = f.Files(func(rel, path string, info fs.FileInfo) error { // no more than the checksum covers
			_, below, _ := strings.Cut(rel, "/")
			to := filepath.Join(copied, filepath.FromSlash(below))
			if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
				return err
			}
			return copyFile(to, path, info.Mode().Perm())
		})
	}
	if err != nil {
		return err
	}
	if err := os.RemoveAll(target); err != nil {
		return err
	}
	return os.Rename(copied, target)
}

func copyFile(to, from string, mode fs.FileMode) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

func newPluginRemove() *cobra.Command {
	var from string
	c := &cobra.Command{
		Use:   "remove NAME",
		Short: "Remove a plugin from the user's folder",
		Args:  one("name"),
		RunE: func(c *cobra.Command, args []string) error {
			if from == "" {
				from = plugin.UserDir()
			}
			all, err := plugin.Find(args[0], []string{from})
			if err != nil {
				return err
			}
			if err := os.RemoveAll(all[0].Path); err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "removed %s\n", all[0].Path)
			return err
		},
	}
	c.Flags().StringVar(&from, "from", "", "remove from this `folder` instead")
	return c
}
