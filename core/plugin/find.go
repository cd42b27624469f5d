package plugin

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"starling/sdk"
)

// EnvPath names the environment variable that lists further folders of plugins; --plugin-dir sets it.
const EnvPath = "STARLING_PLUGIN_PATH"

// EnvPython names the environment variable that names the Python interpreter of plugins.
const EnvPython = "STARLING_PYTHON"

// FolderFile is the file that makes a folder a plugin: it says how the plugin is run.
const FolderFile = "plugin.json"

// UserDir is the user's own folder of plugins, "" if the system has no place for one.
func UserDir() string {
	d, err := os.UserConfigDir()
	if err != nil {
		return ""
	}
	return filepath.Join(d, "starling", "plugins")
}

// Dirs lists the folders in which the plugins of a recipe are looked for: those of EnvPath, plugins beside the recipe, the
// user's own.
func Dirs(recipeDir string) []string {
	dirs := filepath.SplitList(os.Getenv(EnvPath))
	dirs = append(dirs, filepath.Join(recipeDir, "plugins"))
	if u := UserDir(); u != "" {
		dirs = append(dirs, u)
	}
	var out []string
	for _, d := range dirs {
		if abs, err := filepath.Abs(d); err == nil && d != "" && !slices.Contains(out, abs) {
			out = append(out, abs)
		}
	}
	return out
}

// Found is a plugin on disk: a program, or a folder with a FolderFile.
type Found struct {
	Name string
	// Path is the program or the folder, absolute.
	Path string
	// Command is what runs it, the program first.
	Command []string
	// Dir is the working directory: the plugin's folder, "" for a program.
	Dir string
	// python says that the runtime chose the interpreter.
	python bool
}

// List returns every plugin of the given folders, by folder and name. Folders that do not exist are empty.
func List(dirs []string) ([]Found, error) {
	var out []Found
	for _, d := range dirs {
		entries, err := os.ReadDir(d)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("folder of plugins: %w", err)
		}
		for _, e := range entries {
			if !sdk.ValidName(strings.TrimSuffix(e.Name(), ".exe")) {
				continue
			}
			if f, err := Open(filepath.Join(d, e.Name())); err == nil {
				out = append(out, f)
			}
		}
	}
	return out, nil
}

// Find returns the plugins of a name, one for each folder that has it; the source of one is no plugin and is passed over. Only the name comes from a recipe: what runs always lies in one of dirs.
func Find(name string, dirs []string) ([]Found, error) {
	if !sdk.ValidName(name) {
		return nil, fmt.Errorf("%q is no plugin's name: a name begins with a lower-case letter and holds lower-case letters, digits, - and _; a recipe names plugins, it does not say where they lie", name)
	}
	var out []Found
	var source *sourceError
	for _, d := range dirs {
		path := filepath.Join(d, name)
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		f, err := Open(path)
		if errors.As(err, &source) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	if len(out) > 0 {
		return out, nil
	}
	if source != nil {
		return nil, source
	}
	return nil, missing(name, dirs)
}

// missing says what there is instead.
func missing(name string, dirs []string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "there is no plugin %q", name)
	for _, d := range dirs {
		all, err := List([]string{d})
		var names []string
		for _, f := range all {
			names = append(names, f.Name)
		}
		what := "holds " + strings.Join(names, ", ")
		switch _, serr := os.Stat(d); {
		case errors.Is(serr, fs.ErrNotExist):
			what = "does not exist"
		case err != nil:
			what = err.Error()
		case len(names) == 0:
			what = "holds no plugin"
		}
		fmt.Fprintf(&b, "\n    looked in %s: it %s", d, what)
	}
	b.WriteString("\n    runtime plugin install PATH puts one into the user's folder, runtime plugin new NAME begins one")
	return errors.New(b.String())
}

// sourceError is about a folder that holds the source of a Go plugin where a plugin is looked for.
type sourceError struct{ path string }

func (e *sourceError) Error() string {
	return fmt.Sprintf("plugin %s: the folder is a plugin's source, it holds go.mod; runtime plugin install %s builds it and puts the program into the user's folder", e.path, Quoted(e.path))
}

// folder is the content of a FolderFile.
type folder struct {
	// Command runs the plugin in its folder; "${python}" stands for the Python that STARLING_PYTHON names, python3 by default.
	Command []string `json:"command"`
}

// Open looks at a plugin on disk without running it.
func Open(path string) (Found, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return Found{}, err
	}
	bad := func(format string, args ...any) (Found, error) {
		return Found{}, fmt.Errorf("plugin %s: "+format, append([]any{path}, args...)...)
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return bad("%w", err)
	}
	if rel, err := filepath.Rel(filepath.Dir(path), real); err != nil || strings.HasPrefix(rel, "..") {
		dir, derr := filepath.EvalSymlinks(filepath.Dir(path))
		if rel, err = filepath.Rel(dir, real); derr != nil || err != nil || strings.HasPrefix(rel, "..") {
			return bad("it is a link that leads out of its folder, to %s; copy the plugin itself", real)
		}
	}
	info, err := os.Stat(path)
	if err != nil {
		return bad("%w", err)
	}
	f := Found{Name: strings.TrimSuffix(filepath.Base(path), ".exe"), Path: path}
	switch {
	case info.IsDir():
		b, err := os.ReadFile(filepath.Join(path, FolderFile))
		if _, gerr := os.Stat(filepath.Join(path, "go.mod")); errors.Is(err, fs.ErrNotExist) && gerr == nil {
			return Found{}, &sourceError{path}
		}
		if err != nil {
			return bad("the folder is no plugin: %w", err)
		}
		var c folder
		if err := json.Unmarshal(b, &c); err != nil {
			return bad("%s: %w", FolderFile, err)
		}
		if len(c.Command) == 0 || c.Command[0] == "" {
			return bad("%s gives no command", FolderFile)
		}
		for i, word := range c.Command {
			if local := filepath.FromSlash(word); (i == 0 && strings.ContainsRune(word, '/') || strings.HasPrefix(word, "..")) && !filepath.IsAbs(local) && !filepath.IsLocal(local) {
				return bad("%s: the command %q leads out of the folder, whose checksum does not cover it; what runs a plugin lies in its folder, or is a program of the system by its name or absolute path", FolderFile, word)
			}
			for _, part := range strings.Split(filepath.ToSlash(word), "/") {
				if slices.Contains(unhashed, part) && !filepath.IsAbs(word) {
					return bad("%s: the command %q lies in %s, which the folder's checksum does not cover", FolderFile, word, part)
				}
			}
		}
		f.Command, f.Dir = c.Command, path
		if f.Command[0] == "${python}" {
			f.Command, f.python = slices.Clone(f.Command), true
			f.Command[0] = "python3"
			if p := os.Getenv(EnvPython); p != "" {
				f.Command[0] = p
			}
		}
	case !info.Mode().IsRegular():
		return bad("it is neither a file nor a folder")
	case info.Mode()&0o111 == 0:
		return bad("it cannot be run: its run bit is missing (chmod +x %s)", path)
	default:
		f.Command = []string{path}
	}
	return f, nil
}

// left out of a folder's hash: what running the plugin or looking at it leaves behind.
var unhashed = []string{"__pycache__", ".git", ".DS_Store", ".venv"}

// compiled reports whether a folder holds compiled Python, which its hash does not cover.
func (f Found) compiled() bool {
	found := false
	_ = filepath.WalkDir(f.Dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() == "__pycache__" {
			found = true
			return fs.SkipAll
		}
		return nil
	})
	return f.Dir != "" && found
}

// Hash is the SHA-256 of the program, or of all files of the folder with their names and run bits, in hexadecimal.
func (f Found) Hash() (string, error) {
	h := sha256.New()
	add := func(path string) error {
		r, err := os.Open(path)
		if err != nil {
			return err
		}
		defer r.Close()
		_, err = io.Copy(h, r)
		return err
	}
	if f.Dir == "" {
		if err := add(f.Path); err != nil {
			return "", fmt.Errorf("plugin %s: %w", f.Name, err)
		}
		return hex.EncodeToString(h.Sum(nil)), nil
	}
	err := f.Files(func(rel, path string, info fs.FileInfo) error {
		fmt.Fprintf(h, "%q %d %v\n", strings.TrimPrefix(rel, filepath.Base(f.Path)+"/"), info.Size(), info.Mode()&0o111 != 0)
		return add(path)
	})
	if err != nil {
		return "", fmt.Errorf("plugin %s: %w", f.Name, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Files lists what belongs to a plugin: the program, or all files of the folder that count for its hash. rel is the file's name below the
// plugin's folder, with slashes, the plugin's own name first.
func (f Found) Files(each func(rel, path string, info fs.FileInfo) error) error {
	if f.Dir == "" {
		info, err := os.Stat(f.Path)
		if err != nil {
			return err
		}
		return each(filepath.Base(f.Path), f.Path, info)
	}
	return filepath.WalkDir(f.Path, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if slices.Contains(unhashed, d.Name()) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if d.IsDir() {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s is no regular file", p)
		}
		rel, err := filepath.Rel(filepath.Dir(f.Path), p)
		if err != nil {
			return err
		}
		return each(filepath.ToSlash(rel), p, info)
	})
}
