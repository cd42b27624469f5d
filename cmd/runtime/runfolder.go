package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"starling/core/checkpoint"
	"starling/core/plugin"
	"starling/core/recipe"
	"starling/core/train"
)

// runRecord is run.json: what was run, with every parameter resolved.
type runRecord struct {
	Recipe  string        `json:"recipe"`
	Params  []recordParam `json:"params"`
	Ranks   int           `json:"ranks"`
	Threads int           `json:"threads,omitempty"`
	Digest  string        `json:"recipe_digest"`
	// Plugins are the optimizer plugins with which the run began.
	Plugins plugin.Versions `json:"plugins,omitempty"`
	Started time.Time       `json:"started"`
	Version string          `json:"version"`
	Set     []string        `json:"set,omitempty"`
	// Reduction is how gradients were summed over the ranks, where that was not in the canonical order.
	Reduction string `json:"reduction,omitempty"`
}

// recordParam is a param with its value as text, which holds every float.
type recordParam struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	Help  string `json:"help,omitempty"`
}

// recordFile is the name of a run's record in its folder.
const recordFile = "run.json"

// runsFolder is where runs without --run-dir go.
const runsFolder = "runs"

// recipeName is the name of a recipe's runs.
func recipeName(path string) string {
	return strings.TrimSuffix(filepath.Base(path), ".star")
}

// newFolder makes the folder of a new run: the one named, or runs/<recipe>-<time>.
func newFolder(path, dir string) (string, error) {
	if dir != "" {
		if _, err := os.Stat(filepath.Join(dir, recordFile)); err == nil {
			return "", fmt.Errorf("--run-dir %s already holds a run; add --resume to go on with it, or name another folder", dir)
		}
		entries, err := os.ReadDir(dir)
		if err == nil && len(entries) > 0 && !lockOnly(entries) {
			return "", fmt.Errorf("--run-dir %s is not empty and holds no run; name another folder", dir)
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return "", fmt.Errorf("--run-dir: %w", err)
		}
		return dir, nil
	}
	if err := os.MkdirAll(runsFolder, 0o755); err != nil {
		return "", fmt.Errorf("run folder: %w; name another with --run-dir", err)
	}
	base := filepath.Join(runsFolder, recipeName(path)+"-"+time.Now().Format("20060102-150405"))
	for i := 1; ; i++ {
		dir := base
		if i > 1 {
			dir = fmt.Sprintf("%s-%d", base, i)
		}
		if err := os.Mkdir(dir, 0o755); err == nil {
			return dir, nil
		} else if !os.IsExist(err) {
			return "", fmt.Errorf("run folder: %w; name another with --run-dir", err)
		}
	}
}

func lockOnly(entries []os.DirEntry) bool {
	return len(entries) == 1 && entries[0].Name() == lockFile
}

// oldFolder finds the run to go on with: the one named, or the newest of the recipe.
func oldFolder(path, dir string) (string, *runRecord, error) {
	if dir == "" {
		var err error
		if dir, err = newestRun(path); err != nil {
			return "", nil, err
		}
	}
	r, err := readRun(dir)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil, fmt.Errorf("there is no run in %s: %w", dir, err)
	}
	return dir, r, err
}

// newestRun finds the newest run of a recipe in the folder runs, by the time in its name.
func newestRun(path string) (string, error) {
	name := recipeName(path)
	form := regexp.MustCompile("^" + regexp.QuoteMeta(name) + `-(\d{8}-\d{6}(-\d+)?)$`)
	entries, err := os.ReadDir(runsFolder)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	newest, at, saved := "", "", false
	for _, e := range entries {
		m := form.FindStringSubmatch(e.Name())
		if m == nil {
			continue
		}
		dir := filepath.Join(runsFolder, e.Name())
		if _, err := os.Stat(filepath.Join(dir, recordFile)); err != nil {
			continue
		}
		// One that got as far as a checkpoint counts before a newer one that did not.
		if has := resumable(dir); has && !saved || has == saved && m[1] > at {
			newest, at, saved = dir, m[1], has
		}
	}
	if newest == "" {
		return "", fmt.Errorf("there is no run of %s in the folder %s; name one with --run-dir", name, runsFolder)
	}
	return newest, nil
}

// mergeSets puts new values of params over a run's own.
func mergeSets(own, over []string) []string {
	var out []string
	for _, s := range own {
		name, _, _ := strings.Cut(s, "=")
		replaced := false
		for _, o := range over {
			n, _, _ := strings.Cut(o, "=")
			replaced = replaced || n == name
		}
		if !replaced {
			out = append(out, s)
		}
	}
	return append(out, over...)
}

// writeRun records what is run: run.json and a copy of the recipe.
func writeRun(dir string, spec *train.Spec, digest string, o execOptions) error {
	r := runRecord{Recipe: spec.Recipe, Ranks: spec.Mesh.Data, Threads: o.threads, Digest: digest, Plugins: plugin.VersionsOf(spec.Optimizer), Started: time.Now(), Version: version, Set: o.set}
	if m := spec.Mesh.Reduction; spec.Mesh.ReductionCounts() {
		r.Reduction = m
	}
	for _, p := range spec.Params {
		r.Params = append(r.Params, recordParam{p.Name, fmt.Sprint(p.Value), p.Help})
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("run record: %w", err)
	}
	source, err := os.ReadFile(spec.Recipe)
	if err != nil {
		return fmt.Errorf("recipe: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "recipe.star"), source, 0o644); err != nil {
		return fmt.Errorf("run folder: %w", err)
	}
	// The record comes last: with it the folder holds a run.
	tmp := filepath.Join(dir, recordFile+".tmp")
	if err := os.WriteFile(tmp, append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("run folder: %w", err)
	}
	if err := os.Rename(tmp, filepath.Join(dir, recordFile)); err != nil {
		return fmt.Errorf("run folder: %w", err)
	}
	return nil
}

// began reports whether the run of this record may be gone on with under a recipe's digest. Optimizer plugins may be of other versions: whether
// they can go on with the state is the checkpoint's to say.
func (r *runRecord) began(spec *train.Spec, digest string) bool {
	if r.Digest == digest {
		return true
	}
	if len(r.Plugins.Changed(plugin.VersionsOf(spec.Optimizer))) == 0 {
		return false
	}
	as, err := recipe.DigestAs(spec, r.Plugins)
	return err == nil && as == r.Digest
}

// differs says what makes a run, of the parameters that set gives, another than the one of this record, as far as the folder's files tell.
func (r *runRecord) differs(dir string, spec *train.Spec, set []string, plugins plugin.Resolver) string {
	was := map[string]string{}
	for _, p := range r.Params {
		was[p.Name] = p.Value
	}
	var changed []string
	for _, p := range spec.Params {
		if before, had := was[p.Name]; had && !p.Placement && before != fmt.Sprint(p.Value) && r.counts(spec.Recipe, p.Name, set, plugins) {
			changed = append(changed, fmt.Sprintf("%s was %s and is now %v", p.Name, plugin.Quoted(before), p.Value))
		}
	}
	old, err := os.ReadFile(filepath.Join(dir, "recipe.star"))
	source, now := os.ReadFile(spec.Recipe)
	if err == nil && now == nil && !bytes.Equal(old, source) {
		changed = append(changed, spec.Recipe+" was changed")
	}
	if len(changed) == 0 {
		return "a file that the recipe loads, or what this version makes of it, was changed"
	}
	return strings.Join(changed, ", ")
}

// counts reports whether a parameter's new value alone changes what the recipe computes: one that only decides where work runs is no
// reason to refuse a resume. Where that cannot be told it counts.
func (r *runRecord) counts(path, name string, set []string, plugins plugin.Resolver) bool {
	given := slices.DeleteFunc(slices.Clone(set), func(s string) bool { return !strings.HasPrefix(s, name+"=") })
	if len(given) == 0 {
		return true // another default, in a recipe that was changed
	}
	digest := func(set []string) (string, error) {
		spec, err := recipe.Load(path, recipe.Options{Set: set, Print: func(string) {}, Plugins: plugins})
		if err != nil {
			return "", err
		}
		return recipe.Digest(spec)
	}
	was, err := digest(r.Set)
	now, err2 := digest(mergeSets(r.Set, given))
	return err != nil || err2 != nil || was != now
}

// readRun reads the record of a run folder.
func readRun(dir string) (*runRecord, error) {
	b, err := os.ReadFile(filepath.Join(dir, recordFile))
	if err != nil {
		return nil, err
	}
	var r runRecord
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, recordFile), err)
	}
	return &r, nil
}

// resumable reports whether a run folder holds a checkpoint.
func resumable(dir string) bool {
	entries, err := checkpoint.List(filepath.Join(dir, train.CheckpointFolder))
	return err == nil && len(entries) > 0
}
