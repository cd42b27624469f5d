package checkpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const (
	stepPrefix = "step-"
	tmpPrefix  = ".tmp-"
	oldPrefix  = ".old-"
	delPrefix  = ".del-"
	bestName   = "best"
)

func stepName(step int64) string { return fmt.Sprintf("%s%08d", stepPrefix, step) }

var stepPattern = regexp.MustCompile(`^(\.(?:tmp|old|del)-)?step-(\d{8,18})$`)

// parseName splits a folder's name into its prefix, "" for a checkpoint, and its step.
func parseName(name string) (prefix string, step int64, ok bool) {
	m := stepPattern.FindStringSubmatch(name)
	if m == nil {
		return "", 0, false
	}
	step, err := strconv.ParseInt(m[2], 10, 64)
	return m[1], step, err == nil && m[1]+stepName(step) == name
}

// Entry is a folder that has a checkpoint's name. Whether it holds a good checkpoint,
// Open and Verify say.
type Entry struct {
	Step int64
	Path string
}

// ErrNone is wrapped by the error of Latest and Best where there is no checkpoint at all, good
// or bad: the state of a run that has not begun.
var ErrNone = errors.New("there is no checkpoint")

// List lists the checkpoints in dir by ascending step. A folder that does not exist has
// none.
func List(dir string) ([]Entry, error) {
	found, err := scan(dir)
	if err != nil {
		return nil, err
	}
	byStep := map[int64]Entry{}
	for _, prefix := range []string{oldPrefix, ""} { // a checkpoint hides its .old
		for _, step := range found[prefix] {
			byStep[step] = Entry{step, filepath.Join(dir, prefix+stepName(step))}
		}
	}
	out := make([]Entry, 0, len(byStep))
	for _, e := range byStep {
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b Entry) int { return cmp.Compare(a.Step, b.Step) })
	return out, nil
}

// scan sorts the steps of the folders in dir by the prefix of their names.
func scan(dir string) (map[string][]int64, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("checkpoint: listing checkpoints: %w", err)
	}
	out := map[string][]int64{}
	for _, e := range entries {
		if prefix, step, ok := parseName(e.Name()); ok && e.IsDir() {
			out[prefix] = append(out[prefix], step)
		}
	}
	return out, nil
}

// Skipped is a checkpoint that Latest passed over.
type Skipped struct {
	Path   string
	Reason error
}

// String is "path: reason".
func (s Skipped) String() string { return fmt.Sprintf("%s: %v", s.Path, s.Reason) }

// Latest opens the newest good checkpoint in dir, every byte of it verified. skipped are the newer ones
// that are unfinished or damaged, newest first; a caller reports them. Where there are
// checkpoints and none is good the error lists them all; where there are none it
// wraps ErrNone.
//
// Verifying reads the whole checkpoint: one rank does it, and the others Open what
// it found.
func Latest(ctx context.Context, dir string) (c *Checkpoint, skipped []Skipped, err error) {
	entries, err := List(dir)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range slices.Backward(entries) {
		c, err := openGood(ctx, e)
		if err == nil {
			return c, skipped, nil
		}
		if ctx.Err() != nil {
			return nil, skipped, err
		}
		skipped = append(skipped, Skipped{e.Path, err})
	}
	if len(skipped) == 0 {
		return nil, nil, fmt.Errorf("checkpoint: %w in %s", ErrNone, dir)
	}
	lines := make([]string, len(skipped))
	for i, s := range skipped {
		lines[i] = "\n    " + s.Reason.Error()
	}
	return nil, skipped, fmt.Errorf("checkpoint: none of the %d checkpoints in %s is good; restore one from a copy, or move them away to begin anew:%s",
		len(skipped), dir, strings.Join(lines, ""))
}

func openGood(ctx context.Context, e Entry) (*Checkpoint, error) {
	c, err := Open(e.Path)
	if err != nil {
		return nil, err
	}
	if c.Step() != e.Step {
		err = fmt.Errorf("checkpoint: %s holds step %d: it was renamed", e.Path, c.Step())
	} else {
		err = c.Verify(ctx)
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// MarkBest makes the checkpoint of step the best one in dir, which Prune keeps.
func MarkBest(dir string, step int64) error {
	name := stepName(step)
	if _, err := os.Stat(filepath.Join(dir, name, commitName)); err != nil {
		return fmt.Errorf("checkpoint: marking step %d as best: %w", step, err)
	}
	if err := replaceFile(filepath.Join(dir, bestName), writing([]byte(name+"\n"))); err != nil {
		return fmt.Errorf("checkpoint: marking step %d as best: %w", step, explain(err))
	}
	return syncDir(dir)
}

// Best finds the checkpoint last marked as best. Where none was marked the error
// wraps ErrNone.
func Best(dir string) (Entry, error) {
	content, err := readSmall(filepath.Join(dir, bestName), 1<<10)
	if errors.Is(err, os.ErrNotExist) {
		return Entry{}, fmt.Errorf("checkpoint: no best one is marked in %s: %w", dir, ErrNone)
	}
	if err != nil {
		return Entry{}, fmt.Errorf("checkpoint: finding the best: %w", err)
	}
	prefix, step, ok := parseName(strings.TrimSuffix(string(content), "\n"))
	if !ok || prefix != "" {
		return Entry{}, fmt.Errorf("checkpoint: %s holds %q, which is no checkpoint's name; delete it", filepath.Join(dir, bestName), content)
	}
	return Entry{step, filepath.Join(dir, stepName(step))}, nil
}

// Prune deletes committed checkpoints in dir that are past the newest keep, but never
// the one of step newest (just committed) nor the best. Folders without a commit
// marker do not count and are left alone.
func Prune(dir string, keep int, newest int64) error {
	entries, err := List(dir)
	if err != nil {
		return err
	}
	best, err := Best(dir)
	if err != nil && !errors.Is(err, ErrNone) {
		return err // rather keep everything than delete what may be the best
	}
	haveBest := err == nil
	kept := 1 // newest itself
	var errs []error
	for _, e := range slices.Backward(entries) {
		if e.Step == newest {
			continue
		}
		if _, err := os.Stat(filepath.Join(e.Path, commitName)); err != nil {
			continue
		}
		if kept < keep {
			kept++
			continue
		}
		if haveBest && e.Step == best.Step {
			continue
		}
		errs = append(errs, remove(dir, e))
	}
	return errors.Join(errs...)
}

func remove(dir string, e Entry) error {
	doomed := filepath.Join(dir, delPrefix+stepName(e.Step))
	err := os.RemoveAll(doomed)
	if err == nil {
		err = os.Rename(e.Path, doomed)
	}
	if err == nil {
		err = os.RemoveAll(doomed)
	}
	if err != nil {
		return fmt.Errorf("checkpoint: deleting the old %s: %w", e.Path, explain(err))
	}
	return nil
}

// Clean finishes what a run that was killed left half done in dir: it removes
// unfinished checkpoints and deletions, and puts back a checkpoint caught in the moment
// of its replacement. No one may be writing in dir.
func Clean(dir string) error {
	found, err := scan(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, step := range found[oldPrefix] {
		old, path := filepath.Join(dir, oldPrefix+stepName(step)), filepath.Join(dir, stepName(step))
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
			errs = append(errs, os.Rename(old, path))
		} else {
			errs = append(errs, os.RemoveAll(old))
		}
	}
	for _, prefix := range []string{tmpPrefix, delPrefix} {
		for _, step := range found[prefix] {
			errs = append(errs, os.RemoveAll(filepath.Join(dir, prefix+stepName(step))))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("checkpoint: cleaning %s: %w", dir, explain(err))
	}
	return nil
}
