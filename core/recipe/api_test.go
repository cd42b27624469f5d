package recipe

import (
	"strings"
	"testing"

	"starling/core/graph"
)

// The recipe language is frozen: changing a name, an argument or a default shows here.
func TestReference(t *testing.T) {
	var signatures strings.Builder
	for line := range strings.Lines(Reference()) {
		signature, doc, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if ok && doc == "" {
			t.Errorf("%s has no help", signature)
		}
		signatures.WriteString(signature + "\n")
	}
	golden(t, "api.txt", signatures.String())
}

// The stubs for editors lie beside the recipes; Pyright finds predeclared names by the file's name.
func TestStubs(t *testing.T) { golden(t, "../../../recipes/__builtins__.pyi", Stubs()) }

// Every operation with a gradient is within reach of a recipe.
func TestOpsCoverTheTable(t *testing.T) {
	// What recipes have under another name, or get from the tracer.
	other := map[string]string{
		"add_scalar": "operator +", "scale": "operator *", "pow_scalar": "pow", "gelu_erf": "gelu", "const": "full",
		"input": "batch", "param": "nn.param", "sum_to": "broadcasting", "pad_slice": "gradient of slice",
		"attention_joint": "fusion of attention", "linear_cross_entropy": "chunks of the loss", "accumulate": "memory plan", "average": "memory plan", "batch_norm": "nn.batch_norm", "batch_norm_fixed": "nn.batch_norm", "grad_store": "memory plan", "sum_squares": "optimizer", "sum_abs": "optimizer", "max_abs": "optimizer", "clip_value": "optimizer", "round_to": "optimizer", "adamw": "optimizer", "adamw_bf16": "optimizer", "adamw_int8": "optimizer", "sgd": "optimizer",
	}
	for _, name := range graph.Names() {
		if strings.Contains(name, "_grad") || other[name] != "" {
			continue
		}
		if !isOp(name) {
			t.Errorf("ops has no %s", name)
		}
	}
}
