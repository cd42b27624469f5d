package recipe

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"

	"starling/core/graph"
	"starling/core/plan"
	"starling/core/plugin"
	"starling/core/train"
)

// Digest is the SHA-256, in hexadecimal, of everything in a recipe that determines the bits of the trained weights: the
// training graph, the optimizer, where data comes from and how samples are cut from it, the batch sizes and lanes, seed, length,
// clipping and precision, and how gradients are compressed. Placement, evaluation and checkpoints are left out, and so are the places in the recipe where
// things are written. Nothing is read for it: what the data holds has a fingerprint of its own, and two runs of one
// digest and one fingerprint train to the same weights.
func Digest(spec *train.Spec) (string, error) {
	h := sha256.New()
	io.WriteString(h, "starling recipe digest v1\n")
	d := spec.Data
	g, err := spec.Model.Loss(train.BatchInputs(d.Source.Fields(), d.MicroBatch), true)
	if err != nil {
		return "", err
	}
	writeCanonical(h, g)
	fmt.Fprintf(h, "optimizer %v\n", spec.Optimizer)
	fmt.Fprintf(h, "clip %v\nprecision %s\n", spec.ClipNorm, spec.Precision)
	if spec.NormType != plan.L2 {
		fmt.Fprintf(h, "norm %v\n", spec.NormType) // what stands in every other digest means the Euclidean norm
	}
	if spec.Reduce != "" {
		fmt.Fprintf(h, "reduce %s\n", spec.Reduce)
	}
	if spec.ClipValue > 0 {
		fmt.Fprintf(h, "clip value %v\n", spec.ClipValue)
	}
	if r := spec.Mesh.Reduction; spec.Mesh.ReductionCounts() {
		fmt.Fprintf(h, "reduction %s\n", r)
	}
	if z := spec.Mesh.Compress; z.Active() {
		fmt.Fprintf(h, "compress %v\n", z)
	}
	if spec.LossScale.Active() {
		fmt.Fprintf(h, "loss scale %v\n", spec.LossScale)
	}
	fmt.Fprintf(h, "data %v\n", d.Source)
	fmt.Fprintf(h, "batch %d %d lanes %d shuffle %v\n", d.GlobalBatch, d.MicroBatch, d.LaneCount(), d.Shuffle)
	fmt.Fprintf(h, "seed %d steps %d epochs %d\n", spec.Seed, spec.Steps, spec.Epochs)
	if spec.OnStep != nil || spec.OnEval != nil {
		// A hook may change the learning rate by anything that it is told: its text counts, and what it is told.
		m, ok := spec.Model.(*model)
		if !ok {
			return "", fmt.Errorf("hooks that no recipe defines cannot be part of a digest")
		}
		for _, p := range spec.Params {
			if !p.Placement {
				fmt.Fprintf(h, "param %q %v\n", p.Name, p.Value)
			}
		}
		for _, text := range m.session.texts {
			fmt.Fprintf(h, "text %d\n%s\n", len(text), text)
		}
		if e := spec.Evaluate; e != nil {
			fmt.Fprintf(h, "evaluate %v every %d batches %d micro %d\n", e.Source, e.Every, e.Batches, e.MicroBatch)
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// DigestAs is the digest that the recipe has with its optimizer plugins in other versions.
func DigestAs(spec *train.Spec, was plugin.Versions) (string, error) {
	s := *spec
	s.Optimizer = plugin.As(spec.Optimizer, was)
	return Digest(&s)
}

// writeCanonical prints a graph without positions and blocks: operations with all of their attributes, inputs, types and
// outputs. Numbers are printed so that they read back to the same bits.
func writeCanonical(w io.Writer, g *graph.Graph) {
	for _, n := range g.Nodes {
		fmt.Fprintf(w, "%v = %s%v %+v", n.Out, n.Op.Name, n.In, n.Attrs)
		for _, v := range n.Out {
			fmt.Fprintf(w, " %v", v.Type)
		}
		io.WriteString(w, "\n")
	}
	for _, o := range g.Outputs {
		fmt.Fprintf(w, "output %s = %v\n", o.Name, o.Value)
	}
}
