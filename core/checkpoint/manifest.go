package checkpoint

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

const (
	formatName    = "starling-checkpoint"
	formatVersion = 1

	manifestName = "manifest.json"
	trainerName  = "trainer.json"
	commitName   = "COMMIT"

	// maxManifest bounds what a damaged or hostile folder makes a reader allocate.
	maxManifest = 256 << 20
)

// manifest is manifest.json.
type manifest struct {
	Format  string           `json:"format"`
	Version int              `json:"version"`
	Step    int64            `json:"step"`
	Files   []manifestFile   `json:"files"`
	Tensors []manifestTensor `json:"tensors"`
}

type manifestFile struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

type manifestTensor struct {
	Name   string          `json:"name"`
	DType  DType           `json:"dtype"`
	Shape  []int           `json:"shape"`
	Pieces []manifestPiece `json:"pieces"`
}

type manifestPiece struct {
	File   string `json:"file"`
	Offset int64  `json:"offset"`
	Count  int64  `json:"count"`
}

// newManifest joins what the ranks wrote. It does not validate.
func newManifest(step int64, files []manifestFile, shards []Shard) *manifest {
	m := &manifest{Format: formatName, Version: formatVersion, Step: step, Files: files, Tensors: []manifestTensor{}}
	index := map[string]int{}
	for _, s := range shards {
		for _, p := range s.Pieces {
			k, ok := index[p.Name]
			if !ok {
				k = len(m.Tensors)
				index[p.Name] = k
				shape := p.Shape
				if shape == nil {
					shape = []int{}
				}
				m.Tensors = append(m.Tensors, manifestTensor{Name: p.Name, DType: p.DType, Shape: shape})
			}
			t := &m.Tensors[k]
			t.Pieces = append(t.Pieces, manifestPiece{File: s.File, Offset: p.Offset, Count: p.Count})
		}
	}
	slices.SortFunc(m.Files, func(a, b manifestFile) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(m.Tensors, func(a, b manifestTensor) int { return cmp.Compare(a.Name, b.Name) })
	for _, t := range m.Tensors {
		slices.SortFunc(t.Pieces, func(a, b manifestPiece) int {
			return cmp.Or(cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.Count, b.Count), cmp.Compare(a.File, b.File))
		})
	}
	return m
}

func (m *manifest) encode() ([]byte, error) {
	b, err := json.MarshalIndent(m, "", " ")
	if err != nil {
		return nil, err
	}
	b = append(b, '\n')
	if len(b) > maxManifest {
		return nil, fmt.Errorf("a manifest of %d bytes is more than a reader accepts (%d); write fewer pieces", len(b), maxManifest)
	}
	return b, nil
}

// parseManifest parses and validates manifest.json.
func parseManifest(b []byte) (*manifest, error) {
	var m manifest
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, fmt.Errorf("%s: %w", manifestName, err)
	}
	if err := m.validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", manifestName, err)
	}
	return &m, nil
}

func (m *manifest) validate() error {
	if m.Format != formatName || m.Version != formatVersion {
		return fmt.Errorf("format %q version %d is not the one this program reads (%q version %d)", m.Format, m.Version, formatName, formatVersion)
	}
	if m.Step < 0 {
		return fmt.Errorf("step %d is negative", m.Step)
	}
	files := map[string]bool{}
	for _, f := range m.Files {
		switch {
		case f.Name == "" || f.Name != filepath.Base(f.Name) || strings.ContainsAny(f.Name, `/\`) || strings.HasPrefix(f.Name, ".") || f.Name == manifestName || f.Name == commitName:
			return fmt.Errorf("%q is no name for a file of a checkpoint", f.Name)
		case files[f.Name]:
			return fmt.Errorf("file %s is listed twice", f.Name)
		case f.Size < 0:
			return fmt.Errorf("file %s has size %d", f.Name, f.Size)
		}
		if sum, err := hex.DecodeString(f.SHA256); err != nil || len(sum) != sha256.Size {
			return fmt.Errorf("file %s: %q is no SHA-256", f.Name, f.SHA256)
		}
		files[f.Name] = true
	}
	if !files[trainerName] {
		return fmt.Errorf("%s is not listed", trainerName)
	}
	for i, t := range m.Tensors {
		if i > 0 && t.Name <= m.Tensors[i-1].Name {
			return fmt.Errorf("tensor %q is out of order or listed twice", t.Name)
		}
		if err := t.validate(files); err != nil {
			return fmt.Errorf("tensor %q: %w", t.Name, err)
		}
	}
	return nil
}

// validate checks that the pieces make up the whole tensor, each element once.
func (t manifestTensor) validate(files map[string]bool) error {
	if err := checkName(t.Name); err != nil {
		return err
	}
	n, err := elements(t.DType, t.Shape)
	if err != nil {
		return err
	}
	if len(t.Pieces) == 0 {
		return fmt.Errorf("no shard holds it")
	}
	at := int64(0)
	for _, p := range t.Pieces {
		switch {
		case !files[p.File]:
			return fmt.Errorf("a piece lies in %q, which is not listed", p.File)
		case p.Count < 0 || p.Offset < 0 || p.Count > n-p.Offset:
			return fmt.Errorf("a piece of %d elements from %d lies outside shape %v (%d elements)", p.Count, p.Offset, t.Shape, n)
		case p.Offset < at:
			return fmt.Errorf("elements %d to %d are there twice (once in %s)", p.Offset, min(at, p.Offset+p.Count)-1, p.File)
		case p.Offset > at:
			return fmt.Errorf("elements %d to %d are in no shard", at, p.Offset-1)
		}
		at += p.Count
	}
	if at != n {
		return fmt.Errorf("elements %d to %d are in no shard", at, n-1)
	}
	return nil
}

// commitLine is the content of COMMIT for a manifest.
func commitLine(manifest []byte) []byte {
	return fmt.Appendf(nil, "%s  %s\n", sumOf(manifest), manifestName)
}

func sumOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// checkCommit compares COMMIT with the manifest it belongs to.
func checkCommit(commit, manifest []byte) error {
	if len(commit) == 0 {
		return fmt.Errorf("the commit marker %s is empty", commitName)
	}
	if !bytes.Equal(commit, commitLine(manifest)) {
		return fmt.Errorf("%s does not have the checksum that %s gives: one of them is damaged", manifestName, commitName)
	}
	return nil
}
