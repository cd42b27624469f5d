//go:build unix

package plugin

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
)

// launcherSide resolves plugin adamw as a launcher does: a program, or a folder with one in it.
func launcherSide(t *testing.T, folder bool) (*Local, *Use) {
	t.Helper()
	dir := t.TempDir()
	home := filepath.Join(dir, "plugins")
	if folder {
		home = filepath.Join(home, "adamw")
		install(t, filepath.Join(home, "bin"), "adamw")
		for name, text := range map[string]string{FolderFile: `{"command": ["bin/adamw"]}`, "data/table.txt": "1 2 3"} {
			path := filepath.Join(home, filepath.FromSlash(name))
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
	} else {
		install(t, home, "adamw")
	}
	l := &Local{}
	u, err := l.Resolve(t.Context(), "adamw", filepath.Join(dir, "run.star"))
	if err != nil {
		t.Fatal(err)
	}
	return l, u
}

// elsewhere is another machine: folders of its own, and a recipe without plugins beside it.
func elsewhere(t *testing.T) (recipe, cache string) {
	t.Helper()
	cache = t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	t.Setenv("XDG_CACHE_HOME", cache)
	return filepath.Join(t.TempDir(), "run.star"), filepath.Join(cache, "starling", "plugins")
}

// from fetches from a launcher, and counts. What it hands over goes through change.
func from(l *Local, asked *int, change func([]byte) []byte) func(context.Context, Request) (io.ReadCloser, error) {
	return func(_ context.Context, r Request) (io.ReadCloser, error) {
		*asked++
		var b bytes.Buffer
		if err := l.Pack(&b, r); err != nil {
			return nil, err
		}
		if change != nil {
			return io.NopCloser(bytes.NewReader(change(b.Bytes()))), nil
		}
		return io.NopCloser(&b), nil
	}
}

// A machine that lacks a plugin gets the launcher's, once, checks it before it is run, and keeps it for itself alone.
func TestHandedOver(t *testing.T) {
	for name, folder := range map[string]bool{"program": false, "folder": true} {
		t.Run(name, func(t *testing.T) {
			l, was := launcherSide(t, folder)
			recipe, cache := elsewhere(t)
			asked, said := 0, ""
			r := &Receiver{Plugins: l.Handed(), Fetch: from(l, &asked, nil), Log: func(s string) { said += s }}
			u, err := r.Resolve(t.Context(), "adamw", recipe)
			if err != nil {
				t.Fatal(err)
			}
			if u.SHA256 != was.SHA256 || !strings.HasPrefix(u.Path, cache) || asked != 1 || !strings.Contains(said, was.SHA256) {
				t.Errorf("%+v, asked %d times, said %q", u, asked, said)
			}
			if m, err := Describe(t.Context(), u.Found); err != nil || m.Name != "adamw" {
				t.Errorf("it does not run: %+v, %v", m, err)
			}
			if info, err := os.Stat(cache); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("the cache is not private: %v, %v", info.Mode(), err)
			}
			if u, err = r.Resolve(t.Context(), "adamw", recipe); err != nil || asked != 1 || u.SHA256 != was.SHA256 {
				t.Errorf("a second time: asked %d times, %v", asked, err)
			}
			// What was kept and has changed is fetched again, and not run.
			damaged := u.Path
			if folder {
				damaged = filepath.Join(u.Path, "data", "table.txt")
			}
			if err := os.WriteFile(damaged, []byte("#!/bin/sh\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			if u, err = r.Resolve(t.Context(), "adamw", recipe); err != nil || asked != 2 || u.verify() != nil {
				t.Errorf("after damage: asked %d times, %v", asked, err)
			}
			if left, _ := filepath.Glob(filepath.Join(cache, ".incoming-*")); len(left) != 0 {
				t.Errorf("left behind: %v", left)
			}
			// A machine that has another plugin of the name uses the pinned one all the same.
			if err := os.MkdirAll(UserDir(), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(UserDir(), "adamw"), []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			if u, err = r.Resolve(t.Context(), "adamw", recipe); err != nil || u.SHA256 != was.SHA256 {
				t.Errorf("beside another of its name: %v", err)
			}
		})
	}
}

// Ranks of one machine that lack a plugin at the same time get it once, whether nothing lies there or something damaged; what a killed rank
// has left behind is removed.
func TestHandedOverOnceAMachine(t *testing.T) {
	l, was := launcherSide(t, true)
	recipe, cache := elsewhere(t)
	if err := errors.Join(os.MkdirAll(filepath.Join(cache, incoming+"123", "adamw"), 0o700), os.MkdirAll(filepath.Join(cache, was.SHA256, "adamw"), 0o700)); err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int32
	fetch := func(ctx context.Context, r Request) (io.ReadCloser, error) {
		asked.Add(1)
		n := 0
		return from(l, &n, nil)(ctx, r)
	}
	var ranks sync.WaitGroup
	for range 8 {
		ranks.Go(func() {
			u, err := (&Receiver{Plugins: l.Handed(), Fetch: fetch}).Resolve(t.Context(), "adamw", recipe)
			if err != nil || u.verify() != nil {
				t.Errorf("%+v, %v", u, err)
			}
		})
	}
	ranks.Wait()
	left, _ := filepath.Glob(filepath.Join(cache, incoming+"*"))
	if asked.Load() != 1 || len(left) != 0 {
		t.Errorf("it was asked for %d times; left behind: %v", asked.Load(), left)
	}
	ctx, cancel := context.WithCancel(t.Context())
	unlock, alone, err := lockFile(ctx, cache+".lock")
	if err != nil || !alone {
		t.Fatalf("%v, %v", alone, err)
	}
	defer unlock()
	cancel()
	if _, _, err := lockFile(ctx, cache+".lock"); err == nil || !strings.Contains(err.Error(), "waiting for another process") {
		t.Errorf("a wait without an end: %v", err)
	}
}

// What is more than is handed over is refused before it is sent, and while it comes.
func TestHandedOverIsBounded(t *testing.T) {
	if tooLarge(mostHandedFiles, mostHanded) != nil || tooLarge(mostHandedFiles+1, 0) == nil || tooLarge(1, mostHanded+1) == nil {
		t.Error("the bounds are others")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "adamw")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(mostHanded+1), f.Close()); err != nil { // a file of holes
		t.Skip("no file of this size here: ", err)
	}
	l := &Local{Uses: map[string]*Use{"adamw": {Found: Found{Name: "adamw", Path: path}, SHA256: "x"}}}
	fails(t, l.Pack(io.Discard, Request{"adamw", "x"}), "handing over plugin adamw", "install it on each machine")
}

// What is not what was pinned is thrown away.
func TestHandedOverIsChecked(t *testing.T) {
	l, was := launcherSide(t, false)
	archive := func(entries ...tar.Header) func([]byte) []byte {
		return func([]byte) []byte {
			var b bytes.Buffer
			w := tar.NewWriter(&b)
			for _, h := range entries {
				h.Size, h.Mode = 0, 0o755
				if err := w.WriteHeader(&h); err != nil {
					t.Fatal(err)
				}
			}
			w.Close()
			return b.Bytes()
		}
	}
	for name, c := range map[string]struct {
		change func([]byte) []byte
		want   string
	}{
		"a byte":   {func(b []byte) []byte { b[600] ^= 1; return b }, "it was thrown away"},
		"cut":      {func(b []byte) []byte { return b[:len(b)/2] }, "unexpected EOF"},
		"a block":  {func(b []byte) []byte { return b[:1024] }, "unexpected EOF"},
		"more":     {func(b []byte) []byte { return append(bytes.Clone(b[:len(b)-1024]), b...) }, "file exists"},
		"nothing":  {func([]byte) []byte { return nil }, "no such file"},
		"another":  {archive(tar.Header{Name: "lion", Typeflag: tar.TypeReg}), `"lion", which is none of its own`},
		"outside":  {archive(tar.Header{Name: "adamw/../../x", Typeflag: tar.TypeReg}), "none of its own"},
		"absolute": {archive(tar.Header{Name: "/adamw", Typeflag: tar.TypeReg}), "none of its own"},
		"a link":   {archive(tar.Header{Name: "adamw", Linkname: "/bin/sh", Typeflag: tar.TypeSymlink}), "none of its own"},
	} {
		t.Run(name, func(t *testing.T) {
			recipe, cache := elsewhere(t)
			asked := 0
			_, err := (&Receiver{Plugins: l.Handed(), Fetch: from(l, &asked, c.change)}).Resolve(t.Context(), "adamw", recipe)
			fails(t, err, "plugin adamw, which this machine lacks", c.want)
			if left, _ := os.ReadDir(cache); len(left) != 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
	// The connection breaks in the middle; the next rank that asks gets it whole.
	recipe, cache := elsewhere(t)
	asked := 0
	breaks := func(ctx context.Context, r Request) (io.ReadCloser, error) {
		whole, err := from(l, &asked, nil)(ctx, r)
		if err != nil {
			return nil, err
		}
		return io.NopCloser(io.MultiReader(io.LimitReader(whole, 100_000), iotest.ErrReader(errors.New("the launcher is gone")))), nil
	}
	_, err := (&Receiver{Plugins: l.Handed(), Fetch: breaks}).Resolve(t.Context(), "adamw", recipe)
	fails(t, err, "plugin adamw, which this machine lacks", "the launcher is gone")
	if left, _ := os.ReadDir(cache); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	if u, err := (&Receiver{Plugins: l.Handed(), Fetch: from(l, &asked, nil)}).Resolve(t.Context(), "adamw", recipe); err != nil || u.SHA256 != was.SHA256 {
		t.Errorf("after that: %v", err)
	}
	recipe, cache = elsewhere(t)
	asked = 0
	if err := os.MkdirAll(cache, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(cache, 0o777); err != nil {
		t.Fatal(err)
	}
	_, err = (&Receiver{Plugins: l.Handed(), Fetch: from(l, &asked, nil)}).Resolve(t.Context(), "adamw", recipe)
	fails(t, err, "writable by nobody else", "chmod 700")
	if asked != 0 {
		t.Error("it was fetched into a folder that others can write")
	}
	if err := l.Pack(io.Discard, Request{"lion", was.SHA256}); err == nil {
		t.Error("a plugin that the recipe does not use is handed over")
	}
}

// A machine of another platform is told what is pinned for which.
func TestHandedToAnotherPlatform(t *testing.T) {
	l, was := launcherSide(t, false)
	recipe, _ := elsewhere(t)
	h := l.Handed()["adamw"]
	asked := 0
	fetch := from(l, &asked, nil)
	resolve := func(sums map[string]string) error {
		_, err := (&Receiver{Plugins: map[string]Handed{"adamw": {h.Manifest, sums}}, Fetch: fetch}).Resolve(t.Context(), "adamw", recipe)
		return err
	}
	fails(t, resolve(map[string]string{"plan9/arm": was.SHA256, "linux/riscv64": was.SHA256}), "plugin adamw 1.2.3 is pinned for linux/riscv64, plan9/arm, and this machine is "+Platform(), "runtime plugin pin adamw --recipe "+recipe)
	if asked != 0 {
		t.Error("it was fetched all the same")
	}
	// Pinned for this platform too, but the launcher is of the other one.
	other := strings.Repeat("ab", 32)
	fails(t, resolve(map[string]string{"plan9/arm": was.SHA256, Platform(): other}), "which this machine lacks", "the launcher, on "+Platform()+", has plugin adamw with SHA-256 "+was.SHA256+" only")
	_, err := (&Receiver{Plugins: l.Handed()}).Resolve(t.Context(), "lion", recipe)
	fails(t, err, `the launcher found no plugin "lion"`)
}

// TestTheCacheWithoutAHomeIsPrivate: where there is no home, a folder that somebody else may have made first is refused.
func TestTheCacheWithoutAHomeIsPrivate(t *testing.T) {
	tmp := t.TempDir()
	for _, v := range []string{"HOME", "XDG_CACHE_HOME"} {
		t.Setenv(v, "")
	}
	t.Setenv("TMPDIR", tmp)
	base := filepath.Join(tmp, fmt.Sprintf("starling-%d", os.Getuid()))
	if err := os.Mkdir(base, 0o700); err != nil {
		t.Fatal(err)
	}
	if dir, err := cacheDir(); err != nil || !strings.HasPrefix(dir, base) {
		t.Errorf("%s, %v", dir, err)
	}
	if err := os.Chmod(base, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := cacheDir(); err == nil || !strings.Contains(err.Error(), base) {
		t.Errorf("a folder that anybody may write to: %v", err)
	}
	if err := errors.Join(os.Rename(base, base+"-elsewhere"), os.Chmod(base+"-elsewhere", 0o700), os.Symlink(base+"-elsewhere", base)); err != nil {
		t.Fatal(err)
	}
	if _, err := cacheDir(); err == nil || !strings.Contains(err.Error(), base) {
		t.Errorf("a link: %v", err)
	}
}
