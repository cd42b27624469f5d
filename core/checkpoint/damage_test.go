package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Killed between the shards and the commit marker: the checkpoint before it is the one that loads.
func TestNoCommitMarker(t *testing.T) {
	dir := t.TempDir()
	good := save(t, dir, 1, []Tensor{filled("w", 3, 1)})
	if _, err := WriteShard(t.Context(), dir, 2, 0, []Tensor{filled("w", 3, 2)}); err != nil {
		t.Fatal(err)
	}
	find := func(skip ...string) {
		t.Helper()
		c, skipped, err := Latest(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if c.Path() != good || read(t, c, "w", 0, 3)[0] != 1 {
			t.Errorf("found %s", c.Path())
		}
		if len(skipped) != len(skip) {
			t.Fatalf("skipped %v, want %q", skipped, skip)
		}
		for i, s := range skipped {
			wantError(t, errors.New(s.String()), skip[i], "no commit marker COMMIT", "never finished")
		}
	}
	find() // it still has its temporary name
	// A copy made by hand while it was being written has the name, and no marker.
	if err := os.Rename(filepath.Join(dir, ".tmp-step-00000002"), filepath.Join(dir, "step-00000002")); err != nil {
		t.Fatal(err)
	}
	find("step-00000002")
}

func TestTwoZeroByteNewestCheckpoints(t *testing.T) {
	dir := t.TempDir()
	good := save(t, dir, 1, []Tensor{ramp("w", 3)})
	for step := int64(2); step <= 3; step++ {
		path := save(t, dir, step, []Tensor{ramp("w", 3)})
		entries, err := os.ReadDir(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			writeFile(t, nil, path, e.Name())
		}
	}
	c, skipped, err := Latest(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.Path() != good {
		t.Errorf("found %s", c.Path())
	}
	if len(skipped) != 2 {
		t.Fatalf("skipped %v", skipped)
	}
	wantError(t, errors.New(skipped[0].String()), "step-00000003", "COMMIT is empty")
	wantError(t, errors.New(skipped[1].String()), "step-00000002", "COMMIT is empty")
}

// Every file of a checkpoint, damaged in every way at many places, is found out, and the checkpoint
// before it is used.
func TestDamage(t *testing.T) {
	template := t.TempDir()
	save(t, template, 1, []Tensor{ramp("w", 40)})
	save(t, template, 2, []Tensor{cut(ramp("w", 40), 0, 20)}, []Tensor{cut(ramp("w", 40), 20, 40), filled("b", 3, 1)})
	files := strings.Fields(names(t, filepath.Join(template, "step-00000002")))
	if len(files) != 5 {
		t.Fatalf("files %v", files)
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(template)); err != nil {
		t.Fatal(err)
	}
	check := func(file, what string) {
		t.Helper()
		c, skipped, err := Latest(t.Context(), dir)
		if err != nil {
			t.Fatalf("%s %s: %v", file, what, err)
		}
		if c.Step() != 1 || len(skipped) != 1 || !strings.HasSuffix(skipped[0].Path, "step-00000002") || skipped[0].Reason == nil {
			t.Errorf("%s %s: step %d chosen, skipped %v", file, what, c.Step(), skipped)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, file := range files {
		path := filepath.Join(dir, "step-00000002", file)
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		stride := max(1, len(whole)/60)
		for at := 0; at < len(whole); at += stride {
			bad := slices.Clone(whole)
			bad[at] ^= 1 << (at % 8)
			writeFile(t, bad, path)
			check(file, fmt.Sprintf("with a bit of byte %d flipped", at))
			writeFile(t, whole[:at], path)
			check(file, fmt.Sprintf("cut to %d bytes", at))
		}
		writeFile(t, append(slices.Clone(whole), '\n'), path)
		check(file, "with a byte more")
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		check(file, "removed")
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
		check(file, "turned into a folder")
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		writeFile(t, whole, path)
	}
	if c, _, err := Latest(t.Context(), dir); err != nil || c.Step() != 2 {
		t.Errorf("put back, %v", err)
	} else {
		_ = c.Close()
	}
}

func TestLatestWithoutAGoodOne(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Join(dir, "missing")} {
		_, _, err := Latest(t.Context(), d)
		if !errors.Is(err, ErrNone) {
			t.Errorf("error %v, want ErrNone", err)
		}
		wantError(t, err, d)
	}
	for step := range int64(2) {
		writeFile(t, nil, save(t, dir, step, []Tensor{ramp("w", 2)}), commitName)
	}
	_, skipped, err := Latest(t.Context(), dir)
	if errors.Is(err, ErrNone) || len(skipped) != 2 {
		t.Errorf("damaged ones are reported as none: %v", err)
	}
	wantError(t, err, "none of the 2 checkpoints", "step-00000000", "step-00000001", "restore one")

	dir = t.TempDir()
	if err := os.Rename(save(t, dir, 1, []Tensor{ramp("w", 2)}), filepath.Join(dir, "step-00000009")); err != nil {
		t.Fatal(err)
	}
	_, _, err = Latest(t.Context(), dir)
	wantError(t, err, "step-00000009 holds step 1: it was renamed")
}

// The commit marker is one that a person can check without this program.
func TestCommitIsAChecksumFile(t *testing.T) {
	program, err := exec.LookPath("sha256sum")
	if err != nil {
		t.Skip("needs the program sha256sum")
	}
	path := save(t, t.TempDir(), 1, []Tensor{ramp("w", 2)})
	cmd := exec.CommandContext(t.Context(), program, "-c", "COMMIT")
	cmd.Dir = path
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "manifest.json: OK\n" {
		t.Errorf("%s, %v", out, err)
	}
}
