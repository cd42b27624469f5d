package main

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"starling/core/plugin"
	"starling/sdk"
)

// templates are the files of a new plugin.
//
//go:embed plugin_new
var templates embed.FS

func newPluginNew() *cobra.Command {
	var lang, sdkPath string
	c := &cobra.Command{
		Use:   "new NAME",
		Short: "Begin an optimizer plugin",
		Long: `Make a folder with a plugin that builds, passes its tests and trains: gradient descent with momentum, to be replaced. A Go plugin gets the SDK's
sources beside it; --sdk uses a checkout instead. A Python plugin needs numpy and grpcio.`,
		Args: one("name"),
		RunE: func(c *cobra.Command, args []string) error {
			path := args[0]
			name := filepath.Base(path)
			if !sdk.ValidName(name) {
				return &exitError{2, fmt.Errorf("%q is no plugin's name: it begins with a lower-case letter and holds lower-case letters, digits, - and _", name)}
			}
			if err := os.Mkdir(path, 0o755); err != nil {
				return fmt.Errorf("a new plugin needs a new folder: %w", err)
			}
			var next string
			var err error
			switch lang {
			case "go":
				next, err = newGoPlugin(path, name, sdkPath)
			case "python":
				next, err = newPythonPlugin(path, name)
			default:
				err = &exitError{2, fmt.Errorf("--lang %s: must be go or python", lang)}
			}
			if err != nil {
				os.RemoveAll(path)
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "made %s; next:\n\n%s\n", path, next)
			return err
		},
	}
	c.Flags().StringVar(&lang, "lang", "go", "`language` of the plugin: go or python")
	c.Flags().StringVar(&sdkPath, "sdk", "", "use the SDK in this `folder` instead of a copy (Go)")
	return c
}

// fill writes a template into a file.
func fill(dir, file, name, commands string) error {
	b, err := templates.ReadFile("plugin_new/" + file + ".txt")
	if err != nil {
		return err
	}
	text := strings.ReplaceAll(strings.ReplaceAll(string(b), "NAME", name), "COMMANDS", commands)
	return os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644)
}

func newGoPlugin(path, name, sdkPath string) (string, error) {
	replace := "./sdk"
	if sdkPath == "" {
		if err := unpack(filepath.Join(path, "sdk"), "."); err != nil {
			return "", err
		}
	} else {
		abs, err := filepath.Abs(sdkPath)
		if err != nil {
			return "", err
		}
		if _, err := os.Stat(filepath.Join(abs, "go.mod")); err != nil {
			return "", fmt.Errorf("--sdk: %w", err)
		}
		replace = abs
	}
	mod, err := sdk.Source.ReadFile("go.mod")
	if err != nil {
		return "", err
	}
	// The SDK's own requirements, so that a build has nothing to look up.
	_, requires, ok := strings.Cut(string(mod), "require (")
	if !ok {
		return "", errors.New("the SDK's go.mod has no requirements")
	}
	sum, err := sdk.Source.ReadFile("go.sum")
	if err != nil {
		return "", err
	}
	var indirect strings.Builder
	for line := range strings.Lines("require (" + requires) {
		if strings.HasPrefix(line, "\t") && !strings.Contains(line, "// indirect") {
			line = strings.TrimSuffix(line, "\n") + " // indirect\n"
		}
		indirect.WriteString(line)
	}
	gomod := fmt.Sprintf("module %s\n\ngo 1.26.0\n\nrequire starling/sdk v0.0.0\n\n%s\nreplace starling/sdk => %s\n", name, &indirect, replace)
	commands := fmt.Sprintf("    cd %s && go test ./...\n    runtime plugin test %s\n    runtime plugin install %s\n", path, path, path)
	err = errors.Join(fill(path, "main.go", name, ""), fill(path, "main_test.go", name, ""), fill(path, "README.md", name, commands),
		os.WriteFile(filepath.Join(path, "go.mod"), []byte(gomod), 0o644), os.WriteFile(filepath.Join(path, "go.sum"), sum, 0o644))
	return commands, err
}

func newPythonPlugin(path, name string) (string, error) {
	commands := fmt.Sprintf("    runtime plugin test %s\n    runtime plugin install %s\n", path, path)
	run := "{\n  \"command\": [\"${python}\", \"plugin.py\"]\n}\n"
	return commands, errors.Join(unpack(path, "python"), fill(path, "plugin.py", name, ""), fill(path, "README.md", name, commands),
		os.WriteFile(filepath.Join(path, plugin.FolderFile), []byte(run), 0o644))
}

// unpack writes a folder of the SDK's sources, without tests.
func unpack(to, from string) error {
	return fs.WalkDir(sdk.Source, from, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, p)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o755)
		}
		if strings.HasSuffix(p, "_test.go") {
			return nil
		}
		b, err := sdk.Source.ReadFile(p)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), b, 0o644)
	})
}
