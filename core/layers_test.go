package core

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// layers lists the packages from top to bottom; a package may import only packages further down. A folder
// stands for everything in it that has no entry of its own.
var layers = []string{
	"cmd/runtime",
	"core/recipe",
	"core/train",
	"core/plugin",
	"core/cluster",
	"core/checkpoint",
	"core/data",
	"core/optim",
	"core/plan",
	"core/comm",
	"core/comm/mesh",
	"core/comm/machine",
	"core/comm/internal/shm",
	"core/compress",
	"core/device/devicetest",
	"core/device/cpu",
	"core/device/ref",
	"core/device",
	"core/graph",
	"core/tensor",
	"recipes", // embedded Starlark files, no code
	"sdk",
	"core", // this test
}

// alone lists packages that may import nothing of the module, each for a reason that ARCHITECTURE.md gives.
var alone = map[string]bool{"recipes": true, "sdk": true, "core/checkpoint": true, "core/data": true}

func layer(dir string) int {
	best, at := -1, -1
	for i, l := range layers {
		if (dir == l || strings.HasPrefix(dir, l+"/")) && len(l) > best {
			best, at = len(l), i
		}
	}
	return at
}

func owner(dir string) string { return layers[layer(dir)] }

func TestImportsPointDown(t *testing.T) {
	root := ".."
	files := 0
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || p == filepath.Join(root, "plugins") || // modules of their own, of the SDK alone
			strings.HasPrefix(d.Name(), ".") && p != root) {
			return fs.SkipDir
		}
		if !strings.HasSuffix(p, ".go") || strings.HasSuffix(p, "_test.go") {
			return nil
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		dir := path.Dir(filepath.ToSlash(rel))
		from := layer(dir)
		if from < 0 {
			t.Errorf("%s: no layer lists this folder; add it to layers in the right place", dir)
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), p, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		files++
		for _, im := range f.Imports {
			name, err := strconv.Unquote(im.Path.Value)
			if err != nil {
				return err
			}
			to, ours := strings.CutPrefix(name, "starling/")
			if !ours {
				continue
			}
			switch at := layer(to); {
			case at < 0:
				t.Errorf("%s imports %s, which no layer lists", rel, name)
			case owner(to) == owner(dir):
			case at < from:
				t.Errorf("%s imports %s, which lies above it", rel, name)
			case alone[owner(dir)]:
				t.Errorf("%s imports %s, but %s stands alone", rel, name, owner(dir))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 50 {
		t.Fatalf("only %d files seen: the walk starts in the wrong folder", files)
	}
}
