package recipe

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"go.starlark.net/starlark"
	"go.starlark.net/syntax"

	"starling/core/graph"
	"starling/core/plugin"
	"starling/core/train"
	"starling/recipes"
)

// DefaultMaxSteps is the budget of execution steps of a recipe with everything that it loads, and again of each
// trace of its model. The quickstart takes about ten thousand.
const DefaultMaxSteps = 20_000_000

// byteOrderMark is what some editors put before UTF-8 text.
const byteOrderMark = "\ufeff"

// maxFileBytes bounds a recipe file.
const maxFileBytes = 1 << 20

// Options of Load and Params.
type Options struct {
	// Set holds values for params, each as "name=value".
	Set []string
	// MaxSteps bounds execution; 0: DefaultMaxSteps.
	MaxSteps uint64
	// Print receives what the recipe prints, line by line; nil discards it.
	Print func(string)
	// Plugins finds the plugins that the recipe names; nil looks in this machine's folders.
	Plugins plugin.Resolver
}

// dialect is Starlark with the conveniences that people know from Python; what they could do for ever, the step limit ends.
var dialect = &syntax.FileOptions{Set: true, While: true, TopLevelControl: true, GlobalReassign: true, Recursion: true}

// Load runs the recipe at path and returns the run that it describes. Nothing is read but the recipe and the files that it
// loads; the model is not traced. An error in the recipe is an *Error, or a *train.Error from the spec's own checks.
func Load(path string, o Options) (*train.Spec, error) {
	s, err := run(path, o)
	if err != nil {
		return nil, err
	}
	if err := s.unknownSets(); err != nil {
		return nil, err
	}
	if s.spec == nil {
		return nil, &Error{Pos: graph.Position{File: s.name}, Msg: "the recipe never calls train(…), which describes the run; see runtime reference train"}
	}
	s.spec.Params, s.spec.Sinks = s.params, s.sinks
	if s.spec.Positions != nil && len(s.sinks) > 0 {
		s.spec.Positions["sink"] = s.sinkAt
	}
	if err := s.spec.Validate(); err != nil {
		return nil, err
	}
	return s.spec, nil
}

// Params lists the params that the recipe declares. If the recipe fails, those seen before the failure are returned beside the error.
func Params(path string, o Options) ([]train.Param, error) {
	s, err := run(path, o)
	if s == nil {
		return nil, err
	}
	if err == nil {
		err = s.unknownSets()
	}
	return s.params, err
}

// session is one loading of a recipe.
type session struct {
	options Options
	path    string // as given
	name    string // base name of the recipe, which is what errors call it
	dir     string
	root    *os.Root // the recipe's folder, which no load leaves

	files   map[string]*syntax.File // by name in positions, for errors
	sources map[string]string       // their text, in the same way
	modules map[string]*module      // by name in load()
	library starlark.StringDict     // what files of the standard library see
	names   starlark.StringDict     // what all other files see
	texts   []string                // content of the files that are not the standard library's, for the digest

	sets     map[string]string // of Options.Set, by name
	params   []train.Param
	declared map[string]graph.Position

	spec    *train.Spec
	trained graph.Position
	groups  map[string]graph.Position // where patterns of parameters' names were written
	sinks   []plugin.SinkSpec
	sinkAt  graph.Position // of the first
}

type module struct {
	globals starlark.StringDict // nil while it runs
	err     error
}

// run executes a recipe. The session is nil only if the recipe could not be opened.
func run(path string, o Options) (*session, error) {
	if o.MaxSteps == 0 {
		o.MaxSteps = DefaultMaxSteps
	}
	s := &session{
		options: o, path: path, name: filepath.Base(path), dir: filepath.Dir(path),
		files: map[string]*syntax.File{}, sources: map[string]string{}, groups: map[string]graph.Position{}, modules: map[string]*module{}, sets: map[string]string{}, declared: map[string]graph.Position{},
	}
	for _, set := range o.Set {
		name, value, ok := strings.Cut(set, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("--set %s: write it as name=value", set)
		}
		s.sets[name] = value
	}
	var err error
	if s.root, err = os.OpenRoot(s.dir); err != nil {
		return nil, fmt.Errorf("opening the recipe's folder: %w", err)
	}
	defer s.root.Close()

	thread := s.thread(o.MaxSteps)
	defer watch(thread)()
	if err := s.builtins(thread); err != nil {
		return nil, s.explain(err, "")
	}
	text, err := s.read(s.name)
	if err != nil {
		return nil, fmt.Errorf("recipe %s: %w", path, err)
	}
	s.texts = append(s.texts, text)
	// The recipe itself counts as running, so that a file that loads it back is a cycle.
	s.modules[s.name] = &module{}
	_, err = s.exec(thread, s.name, text, s.names)
	return s, s.explain(err, "")
}

// exec parses and runs one file. Its globals are frozen afterwards.
func (s *session) exec(thread *starlark.Thread, name, text string, predeclared starlark.StringDict) (starlark.StringDict, error) {
	s.sources[name] = text
	f, err := dialect.Parse(name, text, 0)
	if err != nil {
		return nil, err
	}
	s.files[name] = f
	p, err := starlark.FileProgram(f, predeclared.Has)
	if err != nil {
		return nil, err
	}
	globals, err := p.Init(thread, predeclared)
	globals.Freeze()
	return globals, err
}

// load runs load("name", …) on the thread of the file that loads, so that steps and call stacks go on.
func (s *session) load(thread *starlark.Thread, name string) (starlark.StringDict, error) {
	if !strings.HasPrefix(name, stdPrefix) {
		name = path.Clean(name)
	}
	if m := s.modules[name]; m != nil {
		if m.globals == nil && m.err == nil {
			return nil, &loadError{name, "the file is still being loaded: files that load each other have no order; move what both need into a third"}
		}
		return m.globals, m.err
	}
	m := &module{}
	s.modules[name] = m
	m.globals, m.err = s.open(thread, name)
	return m.globals, m.err
}

func (s *session) open(thread *starlark.Thread, name string) (starlark.StringDict, error) {
	if file, ok := strings.CutPrefix(name, stdPrefix); ok {
		return s.openLibrary(thread, file)
	}
	switch {
	case strings.HasPrefix(name, "@"):
		return nil, &loadError{name, "only @std//… starts with @; other files are named relative to the recipe's folder"}
	case path.IsAbs(name) || filepath.IsAbs(name):
		return nil, &loadError{name, "the path is absolute; files are named relative to the recipe's folder"}
	}
	text, err := s.read(name)
	if err != nil {
		return nil, &loadError{name, err.Error()}
	}
	s.texts = append(s.texts, text)
	return s.exec(thread, name, text, s.names)
}

func (s *session) openLibrary(thread *starlark.Thread, file string) (starlark.StringDict, error) {
	text, err := recipes.Std.ReadFile("std/" + file)
	if err != nil {
		var names []string
		_ = fs.WalkDir(recipes.Std, "std", func(p string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				names = append(names, stdPrefix+strings.TrimPrefix(p, "std/"))
			}
			return nil
		})
		return nil, &loadError{stdPrefix + file, fmt.Sprintf("the standard library has no such file; it has %s%s", strings.Join(names, ", "), didYouMean(stdPrefix+file, names))}
	}
	return s.exec(thread, stdPrefix+file, string(text), s.library)
}

// read returns the text of a file of the recipe's folder. Paths and symbolic links that leave it are refused.
func (s *session) read(name string) (string, error) {
	name = filepath.FromSlash(name)
	// Looked at before it is opened: opening a pipe waits for whoever writes to it.
	info, err := s.root.Stat(name)
	if err == nil && !info.Mode().IsRegular() {
		return "", fmt.Errorf("it is no regular file")
	}
	var f *os.File
	if err == nil {
		f, err = s.root.Open(name)
	}
	if err != nil {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return "", fmt.Errorf("there is no such file in the recipe's folder %s", s.dir)
		case strings.Contains(err.Error(), "escapes"):
			return "", fmt.Errorf("it leads out of the recipe's folder %s; a recipe loads only @std//… and files of its own folder", s.dir)
		}
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return "", err
	}
	if len(text) > maxFileBytes {
		return "", fmt.Errorf("it is larger than %d bytes", maxFileBytes)
	}
	return strings.TrimPrefix(string(text), byteOrderMark), nil
}

// loadError is a load() that found nothing to run.
type loadError struct{ name, msg string }

func (e *loadError) Error() string { return fmt.Sprintf("load %q: %s", e.name, e.msg) }
