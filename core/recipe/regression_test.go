package recipe

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"starling/core/tensor/detmath"
)

// The table that recipes/regression.star reads is made here, so that anyone can see what is in it.
func TestFriedmanTable(t *testing.T) { golden(t, "../../../recipes/data/friedman.csv", friedman(700)) }

// friedman makes Friedman's first regression problem (Multivariate adaptive regression splines, 1991): five uniform features, and
// y = 10 sin(pi a b) + 20 (c - 0.5)² + 10 d + 5 e plus normal noise of variance 1.
func friedman(rows int) string {
	var b strings.Builder
	b.WriteString("a,b,c,d,e,y\n")
	draw := func(row, k int) float64 { // uniform in [0, 1)
		sum := sha256.Sum256(fmt.Appendf(nil, "friedman %d %d", row, k))
		return float64(binary.LittleEndian.Uint64(sum[:])>>11) / (1 << 53)
	}
	for i := range rows {
		var x [5]float64
		for k := range x {
			x[k] = math.Round(float64(draw(i, k)*1e4)) / 1e4
		}
		noise := float64(math.Sqrt(float64(-2*detmath.Log(1-draw(i, 5)))) * detmath.Cos(float64(2*math.Pi*draw(i, 6))))
		y := float64(10*detmath.Sin(float64(float64(math.Pi*x[0])*x[1]))) + float64(20*float64((x[2]-0.5)*(x[2]-0.5))) + float64(10*x[3]) + float64(5*x[4]) + noise
		fmt.Fprintf(&b, "%.4g,%.4g,%.4g,%.4g,%.4g,%.2f\n", x[0], x[1], x[2], x[3], x[4], y)
	}
	return b.String()
}

func TestCSVTargets(t *testing.T) {
	const table = "a,y,b\n1,0.5,2\n3,1.5,4\n5,-2,6\n7,0,8\n"
	load := func(args string) error {
		dir := recipeFolder(t, "r.star", `
load("prelude.star", "run")
table = data.csv("table.csv", `+args+`)
run(lambda batch: nn.mse(nn.linear("a", batch.features, 1), batch.targets, batch.weight), table.train)
`)
		if err := os.WriteFile(filepath.Join(dir, "table.csv"), []byte("\ufeff"+table), 0o644); err != nil {
			t.Fatal(err)
		}
		spec, err := Load(filepath.Join(dir, "r.star"), Options{})
		if err != nil {
			return err
		}
		if err := spec.Scan(context.Background()); err != nil {
			return err
		}
		if got := paramShapes(lossGraph(t, spec, true))["a.weight"]; got != "[1,2]" {
			t.Errorf("a.weight is %s", got)
		}
		return nil
	}
	for args, want := range map[string]string{
		`target = "y"`: "", `target = 1`: "", `target = -2, scale = 0.5`: "", `target = 1, holdout = 0.3`: "",
		`classes = 2, target = "y"`:  "r.star:3:44: data.csv: target is a column of real numbers to predict; leave it out, or leave out classes and label",
		`label = "y"`:                "data.csv: give classes, the number of classes in a column of labels, or target",
		`target = ""`:                "data.csv: target must be a column's name or number",
		`target = "z"`:               `no column is called "z"; the header has a, y, b`,
		`target = 3`:                 "there is no column 3",
		`classes = 2, label = "y"`:   `table.csv:2:3: label "y" is "0.5"; labels are whole numbers from 0; to predict real numbers, give target = "y" in place of classes`,
		`classes = "2", label = "y"`: `data.csv: classes must be an int of at least 1, not the string "2"`,
	} {
		err := load(args)
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", args, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: error %v, want %s", args, err, want)
		}
	}
}
