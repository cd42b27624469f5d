package recipe

import (
	"path/filepath"
	"sync"
	"testing"

	"starling/core/graph"
	"starling/core/train"
)

// shipped is the folder of the recipes that come with the program.
const shipped = "../../recipes"

func mustLoad(t *testing.T, path string, set ...string) *train.Spec {
	t.Helper()
	spec, err := Load(path, Options{Set: set})
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

func lossGraph(t *testing.T, spec *train.Spec, training bool) *graph.Graph {
	t.Helper()
	source, micro := spec.Data.Source, spec.Data.MicroBatch
	g, err := spec.Model.Loss(train.BatchInputs(source.Fields(), micro), training)
	if err != nil {
		t.Fatal(err)
	}
	if err := graph.Verify(g); err != nil {
		t.Fatal(err)
	}
	return g
}

func TestShippedRecipesDescribeRuns(t *testing.T) {
	files, err := filepath.Glob(shipped + "/*.star")
	if err != nil || len(files) < 4 {
		t.Fatalf("recipes: %v, %v", files, err)
	}
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			spec := mustLoad(t, f)
			for _, training := range []bool{true, false} {
				g := lossGraph(t, spec, training)
				if again := lossGraph(t, spec, training); again.String() != g.String() {
					t.Error("two traces differ")
				}
			}
		})
	}
}

// In-process ranks trace and call hooks at the same time; nothing is shared but what is frozen.
func TestConcurrentTraces(t *testing.T) {
	spec := mustLoad(t, shipped+"/convnet_digits.star")
	want := lossGraph(t, spec, false).String()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			g, err := spec.Model.Loss(train.BatchInputs(spec.Data.Source.Fields(), spec.Data.MicroBatch), false)
			if err != nil {
				t.Error(err)
			} else if g.String() != want {
				t.Error("a concurrent trace differs")
			}
			if a, err := spec.OnEval(train.Metrics{"accuracy": 1}); err != nil || !a.Stop {
				t.Errorf("hook: %+v, %v", a, err)
			}
		})
	}
	wg.Wait()
}

func TestByteOrderMarkAtTheStart(t *testing.T) {
	mustInline(t, "\ufeffload(\"prelude.star\", \"run\")\nrun(lambda batch: None)\n")
}
