package data

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
)

var variable = regexp.MustCompile(`\$(\{[^}]*\}|\w*)`)

// expand resolves $GOROOT in a pattern, and a relative pattern against dir. The
// result is an absolute pattern with forward slashes.
func expand(ctx context.Context, pattern, dir string) (string, error) {
	if pattern == "" {
		return "", errors.New("data: the pattern is empty; name files, such as \"corpus/**/*.txt\"")
	}
	if pattern == "~" || strings.HasPrefix(pattern, "~/") {
		return "", fmt.Errorf("data: %s: ~ is not expanded, so that a recipe means the same for everyone; write the whole path, or one relative to the recipe", pattern)
	}
	var failed error
	out := variable.ReplaceAllStringFunc(pattern, func(v string) string {
		if name := strings.Trim(v, "${}"); name != "GOROOT" {
			failed = errors.Join(failed, fmt.Errorf("data: %s: unknown variable %s; only $GOROOT is known, other variables would make a recipe mean different things on different machines", pattern, v))
			return v
		}
		root, err := goroot(ctx)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("data: %s: %w", pattern, err))
		}
		return filepath.ToSlash(root)
	})
	if failed != nil {
		return "", failed
	}
	if !filepath.IsAbs(filepath.FromSlash(out)) {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return "", fmt.Errorf("data: %s: finding the recipe's folder %q: %w", pattern, dir, err)
		}
		// Joined by hand: the folder may hold characters that mean something in a
		// pattern, and path.Join would treat ** and .. alike.
		out = escape(filepath.ToSlash(abs)) + "/" + out
	}
	if !doublestar.ValidatePattern(out) {
		return "", fmt.Errorf("data: %s: the pattern is malformed; check its brackets and braces (syntax: *, **, ?, [class], {a,b})", out)
	}
	return out, nil
}

// escape quotes what a pattern would read as more than itself.
func escape(dir string) string {
	return regexp.MustCompile(`[*?\[\]{}\\]`).ReplaceAllString(dir, `\$0`)
}

// goroot finds the Go tree: the GOROOT that the environment names, or else the one of
// the go command. The binary's own record of it is not used, because a binary is
// often built elsewhere.
func goroot(ctx context.Context) (string, error) {
	if root := os.Getenv("GOROOT"); root != "" {
		return root, nil
	}
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	root := strings.TrimSpace(string(out))
	if err != nil || root == "" {
		return "", fmt.Errorf("$GOROOT: no Go toolchain was found (go env GOROOT: %v); install Go, or set the environment variable GOROOT, or use another source of text", err)
	}
	return root, nil
}

// A match is a regular file: its path relative to the glob's root, and its size.
type match struct {
	rel  string
	size int64
}

// walk finds the regular files that an expanded pattern matches, and the folder
// that its fixed prefix names, to which their paths are relative.
func walk(ctx context.Context, pattern string) (root string, found []match, err error) {
	base, rest := doublestar.SplitPattern(pattern)
	root = filepath.FromSlash(path.Clean(base))
	if info, err := os.Stat(root); err != nil {
		return "", nil, fmt.Errorf("data: %s: %w; check the path before the first wildcard", pattern, err)
	} else if !info.IsDir() {
		return "", nil, fmt.Errorf("data: %s: %s is no folder", pattern, root)
	}
	tree := os.DirFS(root)
	err = doublestar.GlobWalk(tree, rest, func(rel string, d fs.DirEntry) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		info, err := d.Info()
		if err == nil && info.Mode()&fs.ModeSymlink != 0 {
			info, err = fs.Stat(tree, rel)
		}
		if err != nil {
			return err
		}
		if info.Mode().IsRegular() {
			found = append(found, match{rel, info.Size()})
		}
		return nil
	}, doublestar.WithNoFollow(), doublestar.WithFailOnIOErrors())
	if err != nil {
		return "", nil, fmt.Errorf("data: listing %s: %w", pattern, err)
	}
	return root, found, nil
}
