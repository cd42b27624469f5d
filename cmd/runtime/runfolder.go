package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"starling/core/train"
)

// runRecord is run.json: what was run, with every parameter resolved.
type runRecord struct {
	Recipe  string        `json:"recipe"`
	Params  []train.Param `json:"params"`
	Ranks   int           `json:"ranks"`
	Threads int           `json:"threads,omitempty"`
	Digest  string        `json:"recipe_digest"`
	Started time.Time     `json:"started"`
	Version string        `json:"version"`
	Args    []string      `json:"set,omitempty"`
}

// runFolder decides the folder of a run: a new one, the one named, or for a resume without a name the newest
// of this recipe.
func runFolder(spec *train.Spec, path string, o *execOptions) (string, error) {
	if o.runDir != "" {
		if o.resume {
			if _, err := os.Stat(o.runDir); err != nil {
				return "", fmt.Errorf("--resume: there is no run in %s: %w", o.runDir, err)
			}
			return o.runDir, nil
		}
		if _, err := os.Stat(filepath.Join(o.runDir, "run.json")); err == nil {
			return "", fmt.Errorf("--run-dir %s already holds a run; add --resume to go on with it, or name another folder", o.runDir)
		}
		return o.runDir, os.MkdirAll(o.runDir, 0o755)
	}
	if o.resume {
		return newestRun(spec.Name)
	}
	if err := os.MkdirAll("runs", 0o755); err != nil {
		return "", fmt.Errorf("run folder: %w; name another with --run-dir", err)
	}
	base := filepath.Join("runs", spec.Name+"-"+time.Now().Format("20060102-150405"))
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

// newestRun finds the newest run folder of a recipe; the time in the name orders them.
func newestRun(name string) (string, error) {
	dirs, err := filepath.Glob(filepath.Join("runs", name+"-[0-9]*"))
	if err != nil {
		return "", err
	}
	newest, at := "", time.Time{}
	for _, d := range dirs {
		info, err := os.Stat(filepath.Join(d, "run.json"))
		if err == nil && (newest == "" || info.ModTime().After(at)) {
			newest, at = d, info.ModTime()
		}
	}
	if newest == "" {
		return "", fmt.Errorf("--resume: there is no run of %s in the folder runs; name one with --run-dir", name)
	}
	return newest, nil
}

// writeRun records what is run: run.json and a copy of the recipe.
func writeRun(dir string, spec *train.Spec, digest string, o execOptions) error {
	r := runRecord{spec.Recipe, spec.Params, spec.Mesh.Data, o.threads, digest, time.Now(), version, o.set}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("run record: %w", err)
	}
	source, err := os.ReadFile(spec.Recipe)
	if err != nil {
		return fmt.Errorf("recipe: %w", err)
	}
	for name, content := range map[string][]byte{"run.json": append(b, '\n'), "recipe.star": source} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return fmt.Errorf("run folder: %w", err)
		}
	}
	return nil
}

// readRun reads the record of a run folder.
func readRun(dir string) (*runRecord, error) {
	b, err := os.ReadFile(filepath.Join(dir, "run.json"))
	if err != nil {
		return nil, fmt.Errorf("%s is no run folder: %w", dir, err)
	}
	var r runRecord
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, "run.json"), err)
	}
	return &r, nil
}
