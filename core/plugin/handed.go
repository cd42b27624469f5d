package plugin

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"starling/sdk"
)

// A job's launcher resolves the plugins of a recipe; its ranks, which may run on other machines, take exactly those: the file with
// the pinned checksum from a folder of their own machine, else from what was handed over before, else from the launcher.

// Resolver finds the plugins that a recipe names.
type Resolver interface {
	// Resolve finds the plugin that the recipe at a path calls name.
	Resolve(ctx context.Context, name, recipe string) (*Use, error)
}

// Local resolves plugins from the folders of this machine and the recipe's lock file, and remembers which.
type Local struct {
	// Uses are the plugins that were resolved, by name, and Failed those that were not.
	Uses   map[string]*Use
	Failed map[string]error
}

// Resolve implements Resolver.
func (l *Local) Resolve(ctx context.Context, name, recipe string) (*Use, error) {
	u, err := Resolve(ctx, name, recipe)
	if err != nil {
		if l.Failed == nil {
			l.Failed = map[string]error{}
		}
		l.Failed[name] = err
		return nil, err
	}
	if l.Uses == nil {
		l.Uses = map[string]*Use{}
	}
	l.Uses[name] = u
	return u, nil
}

// Handed is what a launcher tells the ranks of a plugin.
type Handed struct {
	Manifest sdk.Manifest      `json:"manifest"`
	SHA256   map[string]string `json:"sha256"` // by platform
}

// UnmarshalJSON gives defaults the types that JSON loses.
func (h *Handed) UnmarshalJSON(b []byte) error {
	type plain Handed
	if err := json.Unmarshal(b, (*plain)(h)); err != nil {
		return err
	}
	h.Manifest = restored(h.Manifest)
	return nil
}

// Handed lists what was resolved, for the ranks.
func (l *Local) Handed() map[string]Handed {
	out := map[string]Handed{}
	for name, u := range l.Uses {
		out[name] = Handed{u.Manifest, u.Pinned}
	}
	return out
}

// Request asks a launcher for a plugin's files.
type Request struct {
	Name   string `json:"name"`
	SHA256 string `json:"sha256"`
}

// Pack writes the files of a plugin that was resolved, as a tar archive, if they are the ones asked for.
func (l *Local) Pack(w io.Writer, r Request) error {
	u := l.Uses[r.Name]
	switch {
	case u == nil:
		return fmt.Errorf("the recipe uses no plugin %q", r.Name)
	case u.SHA256 != r.SHA256:
		return fmt.Errorf("the launcher, on %s, has plugin %s with SHA-256 %s only", Platform(), r.Name, u.SHA256)
	}
	files, bytes := 0, int64(0)
	err := u.Files(func(_, _ string, info fs.FileInfo) error {
		files, bytes = files+1, bytes+info.Size()
		return tooLarge(files, bytes)
	})
	if err != nil {
		return fmt.Errorf("handing over plugin %s: %w", r.Name, err)
	}
	t := tar.NewWriter(w)
	err = u.Files(func(rel, path string, info fs.FileInfo) error {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		mode := int64(0o644)
		if info.Mode()&0o111 != 0 {
			mode = 0o755
		}
		if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: rel, Size: info.Size(), Mode: mode}); err != nil {
			return err
		}
		_, err = io.CopyN(t, f, info.Size())
		return err
	})
	if err := errors.Join(err, t.Close()); err != nil {
		return fmt.Errorf("handing over plugin %s: %w", r.Name, err)
	}
	return nil
}

// Receiver resolves the plugins that a launcher has named.
type Receiver struct {
	Plugins map[string]Handed
	// Fetch asks the launcher for files; nil where there is none to ask.
	Fetch func(context.Context, Request) (io.ReadCloser, error)
	// Log is told what was handed over.
	Log func(string)
}

// Resolve implements Resolver. The recipe's lock file is not read: the launcher has.
func (r *Receiver) Resolve(ctx context.Context, name, recipe string) (*Use, error) {
	h, ok := r.Plugins[name]
	if !ok {
		return nil, fmt.Errorf("the launcher found no plugin %q in this recipe: it is not the same here", name)
	}
	want := h.SHA256[Platform()]
	if want == "" {
		return nil, fmt.Errorf("plugin %s %s is pinned for %s, and this machine is %s: install it here and run %s, on a recipe folder that the launcher sees too, or leave machines of this platform out",
			name, h.Manifest.Version, strings.Join(slices.Sorted(maps.Keys(h.SHA256)), ", "), Platform(), PinCommand(name, recipe))
	}
	local, ferr := Find(name, Dirs(filepath.Dir(recipe)))
	for _, f := range local {
		if sha, err := f.Hash(); err == nil && sha == want {
			return &Use{f, h.Manifest, want, h.SHA256}, nil
		}
	}
	if f, ok := kept(name, want); ok {
		return &Use{f, h.Manifest, want, h.SHA256}, nil
	}
	if r.Fetch == nil {
		return nil, errors.Join(fmt.Errorf("plugin %s with SHA-256 %s is not here any more", name, want), ferr)
	}
	f, n, err := r.receive(ctx, name, want)
	if err != nil {
		return nil, fmt.Errorf("plugin %s, which this machine lacks, from the launcher: %w", name, err)
	}
	if r.Log != nil && n > 0 {
		r.Log(fmt.Sprintf("plugin %s %s is not installed here; the launcher has handed it over: %.1f MB, SHA-256 %s, kept at %s", name, h.Manifest.Version, float64(n)/1e6, want, f.Path))
	}
	return &Use{f, h.Manifest, want, h.SHA256}, nil
}

// cacheDir is the private folder for plugins that were handed over. Each lies in a folder of its checksum.
func cacheDir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil { // no home: a batch system's bare environment, and a folder where anybody may have been first
		base = filepath.Join(os.TempDir(), fmt.Sprintf("starling-%d", os.Getuid()))
		if err := os.Mkdir(base, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
		if err := private(base); err != nil {
			return "", err
		}
	}
	dir := filepath.Join(base, "starling", "plugins")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := private(d); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// kept finds a plugin that was handed over before, and is what it was.
func kept(name, sha string) (Found, bool) {
	dir, err := cacheDir()
	if err != nil {
		return Found{}, false
	}
	f, err := Open(filepath.Join(dir, sha, name))
	if err != nil {
		return Found{}, false
	}
	is, err := f.Hash()
	return f, err == nil && is == sha
}

// What a launcher hands over for one plugin, and a rank takes: bytes, and files.
const (
	mostHanded      = 4 << 30
	mostHandedFiles = 100_000
)

// incoming begins the names of folders into which files are coming.
const incoming = ".incoming-"

// tooLarge refuses a plugin of more files or bytes than are handed over.
func tooLarge(files int, bytes int64) error {
	if files > mostHandedFiles || bytes > mostHanded {
		return fmt.Errorf("its files are more than are handed over (%d files, %d GiB); install it on each machine", mostHandedFiles, mostHanded>>30)
	}
	return nil
}

// receive takes a plugin's files, checks them and keeps them. Nothing of them is run.
func (r *Receiver) receive(ctx context.Context, name, want string) (Found, int64, error) {
	// Where nothing can be written the plugin has to be installed.
	unwritable := func(err error) error {
		return fmt.Errorf("it has no place: %w; let XDG_CACHE_HOME name a folder of this machine that you can write, or install the plugin here", err)
	}
	dir, err := cacheDir()
	if err != nil {
		return Found{}, 0, unwritable(err)
	}
	unlock, alone, err := lockFile(ctx, dir+".lock")
	if err != nil && ctx.Err() == nil {
		return Found{}, 0, unwritable(err)
	} else if err != nil {
		return Found{}, 0, err
	}
	defer unlock()
	if f, ok := kept(name, want); ok { // another rank of this machine was first
		return f, 0, nil
	}
	if alone { // what is there was left by ranks that were killed
		left, _ := filepath.Glob(filepath.Join(dir, incoming+"*"))
		for _, l := range left {
			_ = os.RemoveAll(l)
		}
	}
	tmp, err := os.MkdirTemp(dir, incoming)
	if err != nil {
		return Found{}, 0, unwritable(err)
	}
	defer os.RemoveAll(tmp)
	body, err := r.Fetch(ctx, Request{name, want})
	if err != nil {
		return Found{}, 0, err
	}
	defer body.Close()
	n, err := unpack(tmp, name, body)
	if err != nil {
		return Found{}, n, err
	}
	f, err := Open(filepath.Join(tmp, name))
	if err != nil {
		return Found{}, n, err
	}
	is, err := f.Hash()
	if err != nil {
		return Found{}, n, err
	}
	if is != want {
		return Found{}, n, fmt.Errorf("what came has SHA-256 %s, pinned is %s; it was thrown away", is, want)
	}
	home := filepath.Join(dir, want)
	if err := errors.Join(os.RemoveAll(home), os.Rename(tmp, home)); err != nil { // what lay there was damaged
		if f, ok := kept(name, want); ok { // where there are no locks another rank may have come first
			return f, n, nil
		}
		return Found{}, n, err
	}
	f, err = Open(filepath.Join(home, name))
	return f, n, err
}

// unpack writes the files of an archive, all of which lie at or below name.
func unpack(dir, name string, r io.Reader) (n int64, err error) {
	t := tar.NewReader(r)
	for files := 1; ; files++ {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, fmt.Errorf("the archive of its files: %w", err)
		}
		first, _, _ := strings.Cut(h.Name, "/")
		if h.Typeflag != tar.TypeReg || !filepath.IsLocal(filepath.FromSlash(h.Name)) || first != name {
			return n, fmt.Errorf("the archive of its files holds %q, which is none of its own", h.Name)
		}
		path := filepath.Join(dir, filepath.FromSlash(h.Name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return n, err
		}
		mode := fs.FileMode(0o600)
		if h.Mode&0o111 != 0 {
			mode = 0o700
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
		if err != nil {
			return n, err
		}
		k, err := io.Copy(f, io.LimitReader(t, mostHanded-n+1))
		n += k
		if err := errors.Join(err, f.Close(), tooLarge(files, n)); err != nil {
			return n, err
		}
	}
}
