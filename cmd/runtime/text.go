package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"starling/core/train"
)

// bar draws a progress bar between two texts in a line of the given width.
func bar(done, of int64, width int, before, after string) string {
	room := width - utf8.RuneCountInString(before) - utf8.RuneCountInString(after) - 3
	if room < 8 {
		s := before + after
		if utf8.RuneCountInString(s) >= width {
			s = string([]rune(s)[:max(0, width-1)])
		}
		return s
	}
	room = min(room, 40)
	full := 0
	if of > 0 {
		full = int(done * int64(room) / of)
	}
	return before + "[" + strings.Repeat("█", full) + strings.Repeat("·", room-full) + "]" + after
}

// bytesText prints a size for people, in powers of 1024.
func bytesText(n int64) string {
	switch f := float64(n); {
	case n >= 1<<30:
		return fmt.Sprintf("%.2f GiB", f/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", f/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", f/(1<<10))
	}
	return fmt.Sprintf("%d B", n)
}

// short prints a count with three digits and a unit.
func short(v float64) string {
	switch {
	case v >= 1e9:
		return fmt.Sprintf("%.3gG", v/1e9)
	case v >= 1e6:
		return fmt.Sprintf("%.3gM", v/1e6)
	case v >= 1e4:
		return fmt.Sprintf("%.3gk", v/1e3)
	}
	return fmt.Sprintf("%.0f", v)
}

// count prints a whole number with thousands separated.
func count(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func round(v float64, digits int) float64 {
	p := math.Pow10(digits)
	if r := math.Round(v*p) / p; !math.IsNaN(r) && !math.IsInf(r, 0) {
		return r
	}
	return v
}

func indent(s string) string { return "    " + strings.ReplaceAll(s, "\n", "\n    ") }

// printable keeps a model's bytes from steering the terminal: control characters but newline and tab, and
// broken UTF-8, are shown as ·.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || unicode.IsControl(r) && r != '\n' && r != '\t' {
			return '·'
		}
		return r
	}, s)
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func figuresText(m train.Metrics) string {
	var parts []string
	for _, k := range sortedKeys(m) {
		parts = append(parts, fmt.Sprintf("%s %.4f", strings.ReplaceAll(k, "_", " "), m[k]))
	}
	return strings.Join(parts, ", ")
}

// table prints rows of name and value, aligned.
func table(rows [][2]string) string {
	w := 0
	for _, r := range rows {
		w = max(w, utf8.RuneCountInString(r[0]))
	}
	var b strings.Builder
	for _, r := range rows {
		fmt.Fprintf(&b, "  %s%s  %s\n", r[0], strings.Repeat(" ", w-utf8.RuneCountInString(r[0])), r[1])
	}
	return b.String()
}
