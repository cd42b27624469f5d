//go:build linux

package plugin

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// envUnprivileged asks this test binary to be somebody who may write nothing but temporary files.
const envUnprivileged = "STARLING_TEST_READ_ONLY"

// asAnybody runs the calling test again as a person without rights, in a folder that everybody can read, and reports whether this process is
// that one. prepare makes the folder before.
func asAnybody(t *testing.T, prepare func(dir string)) (dir string) {
	t.Helper()
	if dir := os.Getenv(envUnprivileged); dir != "" {
		return dir
	}
	base, err := os.MkdirTemp("", "starling-read-only-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = filepath.WalkDir(base, func(p string, d os.DirEntry, _ error) error { // so that it can be removed
			if d != nil && d.IsDir() {
				_ = os.Chmod(p, 0o755)
			}
			return nil
		})
		os.RemoveAll(base)
	})
	if err := os.Chmod(base, 0o755); err != nil {
		t.Fatal(err)
	}
	self := install(t, base, "itself")
	prepare(base)
	cmd := exec.Command(self, "-test.run", "^"+t.Name()+"$", "-test.v")
	cmd.Dir, cmd.Env = base, append(os.Environ(), envUnprivileged+"="+base, "HOME="+base, "TMPDIR=/tmp")
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES) {
		t.Skip("no other user can be had here: ", err)
	}
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("%v\n%s", err, out)
	}
	return ""
}

// Where nothing can be written a plugin that is pinned runs, one that is not cannot be pinned, and none can be handed over: each says what to do.
func TestReadOnlyFolders(t *testing.T) {
	dir := asAnybody(t, func(dir string) {
		for _, name := range []string{"pinned", "fresh"} {
			install(t, filepath.Join(dir, name, "plugins"), "adamw")
		}
		t.Setenv("XDG_CONFIG_HOME", filepath.Join(dir, "config"))
		if _, err := Resolve(t.Context(), "adamw", filepath.Join(dir, "pinned", "run.star")); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"pinned", "fresh", "cache"} {
			if err := errors.Join(os.MkdirAll(filepath.Join(dir, name), 0o755), os.Chmod(filepath.Join(dir, name), 0o555)); err != nil {
				t.Fatal(err)
			}
		}
	})
	if dir == "" {
		return
	}
	if os.WriteFile(filepath.Join(dir, "fresh", "x"), nil, 0o644) == nil {
		t.Fatal("the folder can be written")
	}
	u, err := Resolve(t.Context(), "adamw", filepath.Join(dir, "pinned", "run.star"))
	if err != nil {
		t.Fatal(err)
	}
	if m, err := Describe(t.Context(), u.Found); err != nil || m.Name != "adamw" {
		t.Errorf("%+v, %v", m, err)
	}
	_, err = Resolve(t.Context(), "adamw", filepath.Join(dir, "fresh", "run.star"))
	fails(t, err, "pinning plugin adamw on its first use", "permission denied", "make the recipe's folder writable")
	t.Setenv("XDG_CACHE_HOME", filepath.Join(dir, "cache"))
	l := &Local{Uses: map[string]*Use{"adamw": u}}
	asked := 0
	_, err = (&Receiver{Plugins: l.Handed(), Fetch: from(l, &asked, nil)}).Resolve(t.Context(), "adamw", filepath.Join(dir, "elsewhere", "run.star"))
	fails(t, err, "plugin adamw, which this machine lacks", "it has no place", "permission denied", "XDG_CACHE_HOME")
	if asked != 0 {
		t.Error("it was fetched though it could not be kept")
	}
}
