package graph_test

import (
	"flag"
	"os"
	"testing"

	"starling/core/graph"
	"starling/core/tensor"
)

var rewrite = flag.Bool("rewrite", false, "rewrite golden files")

// A two-layer network with its backward pass, as a person reads it.
func TestPrintedForm(t *testing.T) {
	b := newBuilder(t)
	at := func(line, col int, block string) {
		b.Pos, b.Block = graph.Position{File: "/home/me/recipes/net.star", Line: line, Col: col}, block
	}
	x := b.input("x", tensor.F32, 8, 1, 6, 6)
	labels, rng := b.input("labels", tensor.I32, 8), b.input("rng", tensor.U32, 4)
	at(5, 9, "conv")
	k := b.one(graph.OpParam, graph.ParamAttrs{Name: "conv.weight", Shape: dims(4, 1, 3, 3), Init: graph.Init{Kind: graph.InitNormal, B: 0.1}})
	frozen := b.one(graph.OpParam, graph.ParamAttrs{Name: "conv.bias", Shape: dims(4), Frozen: true})
	y := b.one(graph.OpConv2D, graph.ConvAttrs{StrideH: 1, StrideW: 1, PadH: 1, PadW: 1, DilationH: 1, DilationW: 1, Groups: 1}, x, k, frozen)
	y = b.op(graph.OpMaxPool, graph.PoolAttrs{KH: 2, KW: 2, StrideH: 2, StrideW: 2}, y)[0]
	y = b.one(graph.OpReLU, nil, y)
	at(12, 5, "head.norm")
	y = b.one(graph.OpReshape, graph.ShapeAttrs{Shape: dims(8, 36)}, y)
	scale := b.param("head.norm.weight", 36)
	y = b.op(graph.OpRMSNorm, graph.NormAttrs{Eps: 1e-5}, y, scale)[0]
	y = b.one(graph.OpDropout, graph.DropoutAttrs{P: 0.1, Key: graph.DropoutKey("head.norm", 0)}, y, rng)
	at(14, 17, "head")
	w := b.param("head.weight", 10, 36)
	y = b.one(graph.OpLinear, nil, y, w)
	at(20, 3, "")
	loss := b.op(graph.OpCrossEntropy, graph.CrossEntropyAttrs{Ignore: -1}, y, labels)
	b.Output("loss", loss[0])
	b.Output("weight", loss[1])
	b.Pos, b.Block = graph.Position{}, ""
	for _, d := range b.differentiate(loss[0]) {
		b.Output("grad:"+d.Param.Attrs.(graph.ParamAttrs).Name, d.Value)
	}

	const file = "testdata/printed.txt"
	if *rewrite {
		if err := os.WriteFile(file, []byte(b.G.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got := b.G.String(); got != string(want) {
		t.Errorf("printed:\n%s\nwant (go test -rewrite writes it anew):\n%s", got, want)
	}
}
