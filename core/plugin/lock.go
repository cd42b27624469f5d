package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"starling/sdk"
)

// LockFile is the name of the file, beside a recipe, that pins the plugins which recipes of the folder use.
const LockFile = "plugins.lock"

// Lock pins plugins: for each the manifest, and the SHA-256 on each platform on which it was used.
type Lock struct {
	Plugins map[string]*Pin `json:"plugins"`
	path    string
}

// Pin is a plugin as it was first used.
type Pin struct {
	Manifest sdk.Manifest `json:"manifest"`
	// SHA256 is by platform, such as "linux/amd64".
	SHA256 map[string]string `json:"sha256"`
}

// Platform is this machine's key in Pin.SHA256.
func Platform() string { return runtime.GOOS + "/" + runtime.GOARCH }

// ReadLock reads the lock file of a folder; it is empty where there is none.
func ReadLock(dir string) (*Lock, error) {
	l := &Lock{Plugins: map[string]*Pin{}, path: filepath.Join(dir, LockFile)}
	b, err := os.ReadFile(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return nil, fmt.Errorf("lock file: %w", err)
	}
	if err := json.Unmarshal(b, l); err != nil {
		return nil, fmt.Errorf("lock file %s: %w", l.path, err)
	}
	for name, p := range l.Plugins {
		if p == nil || p.Manifest.Name != name {
			return nil, fmt.Errorf("lock file %s: the entry of %q has another plugin's manifest", l.path, name)
		}
		p.Manifest = restored(p.Manifest)
		if err := usable(p.Manifest); err != nil {
			return nil, fmt.Errorf("lock file %s: manifest of %q: %w", l.path, name, err)
		}
	}
	return l, nil
}

// restored gives defaults the types that JSON loses.
func restored(m sdk.Manifest) sdk.Manifest {
	for i := range m.Hypers {
		h := &m.Hypers[i]
		switch v := h.Default.(type) {
		case float64:
			if h.Type == sdk.TypeInt {
				h.Default = int64(v)
			}
		case []any:
			l := []float64{}
			for _, x := range v {
				f, _ := x.(float64)
				l = append(l, f)
			}
			h.Default = l
		}
	}
	return m
}

// Set pins a plugin on this platform. A changed manifest drops the other platforms' hashes: they are of another version.
func (l *Lock) Set(m sdk.Manifest, sha string) {
	p := l.Plugins[m.Name]
	if p == nil || p.Manifest.Version != m.Version {
		p = &Pin{SHA256: map[string]string{}}
		l.Plugins[m.Name] = p
	}
	p.Manifest = m
	p.SHA256[Platform()] = sha
}

// Write replaces the lock file.
func (l *Lock) Write() error {
	b, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return fmt.Errorf("lock file: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(l.path), ".plugins.lock-*")
	if err != nil {
		return fmt.Errorf("lock file: %w", err)
	}
	defer os.Remove(f.Name())
	_, err = f.Write(append(b, '\n'))
	if err := errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return fmt.Errorf("lock file: %w", err)
	}
	if err := os.Rename(f.Name(), l.path); err != nil {
		return fmt.Errorf("lock file: %w", err)
	}
	return nil
}
