package recipe

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// large matches what Starlark itself would turn into gigabytes in one step: repetition and shifts by large numbers.
var large = regexp.MustCompile(`(?s)\d{4}|<<|\*.*\*`)

// FuzzLoad: whatever the text, loading and tracing end with a spec or an error, never with a panic.
func FuzzLoad(f *testing.F) {
	for _, name := range []string{"testdata/prelude.star", shipped + "/mlp_digits.star"} {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	for _, text := range []string{
		"", "load(\"@std//nn.star\", \"linear\")", "param(\"a\", 1)", "nn.linear", "train()", "x = [\n", "def f(*, a = 1): pass\nf(b = 2)",
		"load(\"prelude.star\", \"run\")\nrun(lambda b: nn.mse(b.features[1], b.features[0], None))",
		"load(\"prelude.star\", \"run\")\nrun(lambda b: ops.split(b.features, [1, 2, 3]))",
		"load(\"prelude.star\", \"run\")\nrun(lambda b: ops.conv2d(b.features, nn.param(\"w\", (1, 1, 3, 3), init.ones()), padding = -1))",
		"load(\"prelude.star\", \"run\")\nrun(lambda b: ops.attention(b.features, b.features, b.features, segments = b.labels))",
		"load(\"prelude.star\", \"run\")\nrun(lambda b: ops.reshape(b.features, (0, -1)))",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 2000 || large.MatchString(text) {
			return
		}
		dir := recipeFolder(t, "r.star", text)
		_ = everything(filepath.Join(dir, "r.star"))
	})
}
