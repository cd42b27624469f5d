package train_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"starling/core/cluster"
	"starling/core/comm"
	"starling/core/data"
	"starling/core/device/cpu"
	"starling/core/recipe"
	"starling/core/train"
)

// runRecipe trains a recipe on in-process ranks. steps are the metrics of each step, evals of each evaluation, as rank 0 sees them.
func runRecipe(t *testing.T, path string, ranks int, set ...string) (result *train.Result, steps, evals []train.Metrics) {
	t.Helper()
	_, err := cluster.InProcess(t.Context(), cluster.Config{Ranks: ranks}, func(ctx context.Context, w *cluster.Worker) error {
		dev, err := cpu.Open(cpu.Config{Threads: 1, Ranks: ranks})
		if err != nil {
			return err
		}
		defer dev.Close()
		s, err := recipe.Load(path, recipe.Options{Set: append(set, fmt.Sprintf("ranks=%d", ranks))})
		if err != nil {
			return err
		}
		env := train.Env{Rank: w.Rank(), World: ranks, Device: dev, Threads: 1, Digest: "test", Observe: func(train.Event) {}, Status: w.Status,
			Stop: w.StopRequested(), Quiesce: func(err error) { _ = w.Fail(err) }}
		if ranks > 1 {
			all := make([]int, ranks)
			for i := range all {
				all[i] = i
			}
			if env.Group, err = comm.NewGroup(w.Transport(), "data", all, comm.Options{}); err != nil {
				return err
			}
			defer env.Group.Close()
		}
		keep := func(to *[]train.Metrics) train.Hook {
			return func(m train.Metrics) (train.Action, error) {
				*to = append(*to, m)
				return train.Action{}, nil
			}
		}
		if w.Rank() == 0 {
			s.OnStep, s.OnEval = keep(&steps), keep(&evals)
		}
		r, err := train.Run(ctx, s, env)
		if w.Rank() == 0 {
			result = r
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return result, steps, evals
}

// Five rows in batches of four: the second batch has one row and three of padding, for which the model predicts 1 in place of 0.
// Nothing of them may be in the loss, in the gradient, or in the evaluation.
func TestPaddingCountsNothingInRegression(t *testing.T) {
	rows := [][2]float64{{1, 2}, {2, 0}, {-1, 4}, {0.5, 1}, {3, -2}} // x, y; the model is 0.5 x + 1
	var table strings.Builder
	for _, r := range rows {
		fmt.Fprintf(&table, "%v,%v\n", r[0], r[1])
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"table.csv": table.String(), "r.star": `
ranks = param("ranks", 1)
table = data.csv("table.csv", target = 1)
def loss(batch):
    weight = nn.param("weight", (1, 1), init.constant(0.5))
    bias = nn.param("bias", 1, init.ones())
    return nn.mse(ops.linear(batch.features, weight, bias), batch.targets, batch.weight)
train(
    loss = loss,
    data = loader(table.train, global_batch = 4, micro_batch = 2, shuffle = False),
    evaluate = evaluate(table.train),
    optimizer = optim.sgd(lr = 0.0),
    parallel = parallel.mesh(data = ranks),
    epochs = 1,
)
`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want := func(rows [][2]float64) (loss, norm float64) {
		var dw, db float64
		n := float64(len(rows))
		for _, r := range rows {
			e := 0.5*r[0] + 1 - r[1]
			loss, dw, db = loss+e*e/n, dw+2*e*r[0]/n, db+2*e/n
		}
		return loss, math.Hypot(dw, db)
	}
	near := func(a, b float64) bool { return math.Abs(a-b) <= 1e-5*math.Abs(b) }
	for ranks := 1; ranks <= 2; ranks++ {
		_, steps, evals := runRecipe(t, filepath.Join(dir, "r.star"), ranks)
		if len(steps) != 2 || len(evals) != 1 {
			t.Fatalf("%d ranks: %d steps and %d evaluations, want 2 and 1", ranks, len(steps), len(evals))
		}
		for i, part := range [][][2]float64{rows[:4], rows[4:]} {
			loss, norm := want(part)
			if m := steps[i]; !near(m["loss"], loss) || !near(m["grad_norm"], norm) || m["tokens"] != float64([]int{4, 5}[i]) {
				t.Errorf("%d ranks, step %d: loss %v, gradient %v, %v samples so far; want %v, %v and %d", ranks, i, m["loss"], m["grad_norm"], m["tokens"], loss, norm, []int{4, 5}[i])
			}
		}
		if loss, _ := want(rows); !near(evals[0]["eval_loss"], loss) {
			t.Errorf("%d ranks: evaluation %v, want %v", ranks, evals[0]["eval_loss"], loss)
		}
	}
}

// The recipe that ships: on rows it has not seen the model is far better than any one number, and the same on two ranks.
func TestRegressionRecipe(t *testing.T) {
	one, _, evals := runRecipe(t, filepath.Join("..", "..", "recipes", "regression.star"), 1)
	if last := evals[len(evals)-1]; last["eval_loss"] > 2 || last["baseline"] < 20 {
		t.Errorf("held-out loss %v where one number scores %v, want below 2 and above 20", last["eval_loss"], last["baseline"])
	}
	two, _, _ := runRecipe(t, filepath.Join("..", "..", "recipes", "regression.star"), 2)
	if one.WeightsSHA256 != two.WeightsSHA256 {
		t.Errorf("weights %.16s on one rank, %.16s on two", one.WeightsSHA256, two.WeightsSHA256)
	}
}

func TestNamesThatEveryBatchHas(t *testing.T) {
	for _, name := range []string{train.InputWeight, train.InputRNG} {
		s := train.Spec{Data: train.Data{Source: goldenSource{&recorded{fields: []data.Field{{Name: name, DType: data.Float32}}}}, GlobalBatch: 2, MicroBatch: 1}}
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("the data has a field called %q", name)) {
			t.Errorf("a field called %q: %v", name, err)
		}
	}
}
