package plugin

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"starling/sdk"
)

// Use is a plugin that a recipe uses: found, checked against the lock file, its manifest known.
type Use struct {
	Found
	Manifest sdk.Manifest
	SHA256   string
	// Pinned are the checksums of all platforms for which the lock file has one, this one's among them.
	Pinned map[string]string
}

// Resolve finds the plugin that the recipe at a path calls name. If the lock file of its folder pins it, the file must have the pinned
// checksum and its manifest comes from there; otherwise the plugin is started once to describe itself, and pinned.
func Resolve(ctx context.Context, name, recipe string) (*Use, error) {
	dir := filepath.Dir(recipe)
	all, err := Find(name, Dirs(dir))
	if err != nil {
		return nil, err
	}
	hashes := make([]string, len(all))
	for i, f := range all {
		if hashes[i], err = f.Hash(); err != nil {
			return nil, err
		}
	}
	lock, err := ReadLock(dir)
	if err != nil {
		return nil, err
	}
	pin := lock.Plugins[name]
	want := ""
	if pin != nil {
		want = pin.SHA256[Platform()]
	}
	if want != "" {
		for i, f := range all {
			if hashes[i] == want {
				return &Use{f, pin.Manifest, want, pin.SHA256}, nil
			}
		}
		return nil, fmt.Errorf("plugin %s has another checksum than %s pins:\n    %s has SHA-256 %s\n    pinned is %s (version %s)\n    if the change is meant: %s",
			name, lock.path, all[0].Path, hashes[0], want, pin.Manifest.Version, PinCommand(name, recipe))
	}
	for i := range all {
		if hashes[i] != hashes[0] {
			var where []string
			for _, f := range all {
				where = append(where, f.Path)
			}
			return nil, fmt.Errorf("there are several plugins %q and they differ: %s; remove all but one, or pin one, such as the first: %s --from %s", name, strings.Join(where, ", "), PinCommand(name, recipe), Quoted(all[0].Path))
		}
	}
	m, err := Describe(ctx, all[0])
	if err != nil {
		return nil, err
	}
	if pin != nil && pin.Manifest.Version != m.Version {
		return nil, fmt.Errorf("plugin %s is version %s, %s pins version %s (for other platforms)", name, m.Version, lock.path, pin.Manifest.Version)
	}
	lock.Set(m, hashes[0])
	if err := lock.Write(); err != nil {
		return nil, fmt.Errorf("pinning plugin %s on its first use: %w; make the recipe's folder writable for once, or take a copy of it", name, err)
	}
	return &Use{all[0], m, hashes[0], lock.Plugins[name].SHA256}, nil
}

// describeTries is how often a plugin that somebody kills meanwhile is asked again.
const describeTries = 3

// Describe starts a plugin to ask for its manifest.
func Describe(ctx context.Context, f Found) (sdk.Manifest, error) {
	for try := 1; ; try++ {
		m, err := describe(ctx, f)
		var killed *killedError
		if !errors.As(err, &killed) || try == describeTries {
			return m, err
		}
	}
}

func describe(ctx context.Context, f Found) (sdk.Manifest, error) {
	p, err := Start(ctx, f, StartOptions{Threads: 1})
	if err != nil {
		return sdk.Manifest{}, err
	}
	defer p.Kill()
	return p.Manifest()
}

// checked is a manifest that may be used under the plugin's file name.
func checked(m sdk.Manifest, f Found) error {
	err := usable(m)
	if err == nil && m.Name != f.Name {
		err = fmt.Errorf("it calls itself %q: rename the file or folder, or the Name in its manifest", m.Name)
	}
	if err != nil {
		return fmt.Errorf("plugin %s: its manifest cannot be used: %w", f.Path, err)
	}
	return nil
}

// usable reports what is wrong with a manifest that has come from outside.
func usable(m sdk.Manifest) error {
	err := m.Validate()
	if err == nil && m.Kind() == "" {
		err = errors.New("the manifest must be that of an optimizer, of a sink, of a schedule or of a compressor, and it is that of none")
	}
	return err
}

// verify reports a plugin whose file is no longer the one that was resolved.
func (u *Use) verify() error {
	now, err := u.Hash()
	if err != nil {
		return err
	}
	if now != u.SHA256 {
		return errors.New("plugin " + u.Path + " was changed since the run began")
	}
	return nil
}
