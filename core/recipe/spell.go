package recipe

import (
	"fmt"
	"strings"
)

// didYouMean suggests the candidate nearest to a misspelt name, as "; did you mean …?", or nothing where none is near.
func didYouMean(name string, candidates []string) string {
	if n := Nearest(name, candidates); n != "" {
		return fmt.Sprintf("; did you mean %q?", n)
	}
	return ""
}

// Nearest returns the candidate with the smallest edit distance to name (insertions, deletions, substitutions and swaps of
// neighbours; Damerau, 1964), or "" where more than a third of the letters would have to change.
func Nearest(name string, candidates []string) string {
	name = strings.ToLower(name)
	best, least := "", max(len(name)/3, 1)+1
	for _, c := range candidates {
		if d := distance(name, strings.ToLower(c)); d < least {
			best, least = c, d
		}
	}
	if best != "" || len(name) < 3 {
		return best
	}
	// An abbreviation is far away by letters but near in meaning: "drop" for "dropout".
	for _, c := range candidates {
		if strings.HasPrefix(c, name) || strings.HasPrefix(name, c) && len(c) >= 3 {
			return c
		}
	}
	return ""
}

// maxWord bounds the names that are compared, so that a hostile recipe cannot make a suggestion expensive.
const maxWord = 64

func distance(a, b string) int {
	if len(a) > maxWord || len(b) > maxWord {
		return maxWord
	}
	var d [maxWord + 1][maxWord + 1]int
	for i := range len(a) + 1 {
		d[i][0] = i
	}
	for j := range len(b) + 1 {
		d[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			d[i][j] = min(d[i-1][j]+1, d[i][j-1]+1, d[i-1][j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(a)][len(b)]
}
