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

// pipInstall gives a Python what a plugin imports. Protobuf's version is that of the generated stubs, which refuse an older one; pip does not
// know of them.
const pipInstall = `python3 -m pip install numpy grpcio "protobuf>=7.35.1"`

// pluginKind is what plugin new can make.
type pluginKind struct {
	name, article string
	use           string // in a recipe
}

var pluginKinds = []pluginKind{
	{"optimizer", "An optimizer", `optimizer = plugin.optimizer("NAME", lr = 0.01)`},
	{"whole-tensor", "A whole-tensor optimizer", `optimizer = plugin.optimizer("NAME", lr = 0.01)`},
	{"compressor", "A compressor", `parallel = parallel.mesh(data = 2, compress = plugin.compressor("NAME"))`},
	{"schedule", "A schedule", `optimizer = optim.adamw(lr = plugin.schedule("NAME", total = 1000))`},
	{"sink", "A sink", `plugin.sink("NAME")`},
}

// kindNamed finds a kind.
func kindNamed(name string) (pluginKind, error) {
	var all []string
	for _, k := range pluginKinds {
		if k.name == name {
			return k, nil
		}
		all = append(all, k.name)
	}
	return pluginKind{}, &exitError{2, fmt.Errorf("--kind %s: must be one of %s", name, strings.Join(all, ", "))}
}

func newPluginNew() *cobra.Command {
	var lang, sdkPath, kind string
	c := &cobra.Command{
		Use:   "new NAME",
		Short: "Begin a plugin",
		Long: `Make a folder with a plugin that builds, passes its tests and trains, to be replaced: gradient descent with momentum, or by --kind something as short
of another kind. A Go plugin gets the SDK's sources beside it; --sdk uses a checkout instead. A Python plugin needs numpy, grpcio and protobuf:

    ` + pipInstall,
		Args: one("name"),
		RunE: func(c *cobra.Command, args []string) error {
			path := args[0]
			name := filepath.Base(path)
			if !sdk.ValidName(name) {
				return &exitError{2, fmt.Errorf("%q is no plugin's name: it begins with a lower-case letter and holds lower-case letters, digits, - and _", name)}
			}
			if lang != "go" && lang != "python" {
				return &exitError{2, fmt.Errorf("--lang %s: must be go or python", lang)}
			}
			k, err := kindNamed(kind)
			if err != nil {
				return err
			}
			if err := os.Mkdir(path, 0o755); err != nil {
				return fmt.Errorf("a new plugin needs a new folder: %w", err)
			}
			p := newProject{path: path, name: name, kind: k}
			if lang == "go" {
				err = p.goPlugin(sdkPath)
			} else {
				err = p.pythonPlugin()
			}
			if err != nil {
				os.RemoveAll(path)
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "made %s; next:\n\n%s\n", path, p.commands)
			return err
		},
	}
	c.Flags().StringVar(&lang, "lang", "go", "`language` of the plugin: go or python")
	c.Flags().StringVar(&kind, "kind", "optimizer", "what it is: optimizer, whole-tensor, compressor, schedule or sink")
	c.Flags().StringVar(&sdkPath, "sdk", "", "use the SDK in this `folder` instead of a copy (Go)")
	return c
}

// newProject is a plugin that is being made.
type newProject struct {
	path, name string
	kind       pluginKind
	commands   string // what to do next
	note       string // of the README
}

// fill writes a template of the plugin's kind, or one that all share, into a file.
func (p *newProject) fill(file string) error {
	b, err := templates.ReadFile("plugin_new/" + p.kind.name + "/" + file + ".txt")
	if errors.Is(err, fs.ErrNotExist) {
		b, err = templates.ReadFile("plugin_new/" + file + ".txt")
	}
	if err != nil {
		return err
	}
	text := strings.NewReplacer("NAME", p.name, "COMMANDS", p.commands, "NOTE", p.note, "KIND", p.kind.article, "USE", strings.ReplaceAll(p.kind.use, "NAME", p.name)).Replace(string(b))
	return os.WriteFile(filepath.Join(p.path, file), []byte(text), 0o644)
}

// next fills in the commands that come next, all to be run where the plugin was made; PATH stands for its folder.
func (p *newProject) next(test ...string) {
	for _, c := range append(test, "runtime plugin test PATH", "runtime plugin install PATH") {
		p.commands += "    " + strings.ReplaceAll(c, "PATH", plugin.Quoted(p.path)) + "\n"
	}
}

func (p *newProject) goPlugin(sdkPath string) error {
	replace := "./sdk"
	if sdkPath == "" {
		if err := unpack(filepath.Join(p.path, "sdk"), "."); err != nil {
			return err
		}
	} else {
		abs, err := filepath.Abs(sdkPath)
		if err != nil {
			return err
		}
		if _, err := os.Stat(filepath.Join(abs, "go.mod")); err != nil {
			return fmt.Errorf("--sdk: %w", err)
		}
		replace = abs
	}
	mod, err := sdk.Source.ReadFile("go.mod")
	if err != nil {
		return err
	}
	// The SDK's own requirements, so that a build has nothing to look up.
	_, requires, ok := strings.Cut(string(mod), "require (")
	if !ok {
		return errors.New("the SDK's go.mod has no requirements")
	}
	sum, err := sdk.Source.ReadFile("go.sum")
	if err != nil {
		return err
	}
	var indirect strings.Builder
	for line := range strings.Lines("require (" + requires) {
		if strings.HasPrefix(line, "\t") && !strings.Contains(line, "// indirect") {
			line = strings.TrimSuffix(line, "\n") + " // indirect\n"
		}
		indirect.WriteString(line)
	}
	gomod := fmt.Sprintf("module %s\n\ngo 1.26.0\n\nrequire starling/sdk v0.0.0\n\n%s\nreplace starling/sdk => %s\n", p.name, &indirect, replace)
	p.next("go -C PATH test ./...")
	return errors.Join(p.fill("main.go"), p.fill("main_test.go"), p.fill("README.md"),
		os.WriteFile(filepath.Join(p.path, "go.mod"), []byte(gomod), 0o644), os.WriteFile(filepath.Join(p.path, "go.sum"), sum, 0o644))
}

func (p *newProject) pythonPlugin() error {
	p.note = " It is run by the `python3` of `PATH`, or by the interpreter that `" + plugin.EnvPython + "` names by its absolute path."
	p.next(pipInstall, "(cd PATH && python3 -m unittest plugin_test)")
	run := "{\n  \"command\": [\"${python}\", \"plugin.py\"]\n}\n"
	return errors.Join(unpack(p.path, "python"), p.fill("plugin.py"), p.fill("plugin_test.py"), p.fill("README.md"),
		os.WriteFile(filepath.Join(p.path, plugin.FolderFile), []byte(run), 0o644))
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
