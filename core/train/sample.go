package train

import (
	"context"
	"fmt"
	"math"
	"sort"

	"starling/core/device"
	"starling/core/graph"
	"starling/core/tensor/detmath"
)

// textSampler draws text from the model: the whole context is run for each token, and the next one is drawn from
// the last row's softmax. Draws are keyed by (seed, step, position), so that a sample can be made again.
type textSampler struct {
	spec   *Sample
	seed   uint64
	engine *engine
	bound  *device.Bound
	tokens []int32
	logits []float32
	vocab  int
	order  []int
	p      []float64
}

// sampleSegment names the i-th sample's segment.
func sampleSegment(i int) string { return fmt.Sprintf("sample%d", i) }

func newTextSampler(s *Sample, seed uint64, e *engine, mem device.Memory, i int) (*textSampler, error) {
	seg := e.plan.Segments[sampleSegment(i)]
	b, err := device.Bind(e.dev, seg, mem)
	if err != nil {
		return nil, err
	}
	out := seg.Outputs["logits"]
	vocab := out.Shape[len(out.Shape)-1]
	return &textSampler{spec: s, seed: seed, engine: e, bound: b, tokens: device.View[int32](mem, seg.Inputs["tokens"]),
		logits: device.View[float32](mem, out), vocab: vocab, order: make([]int, vocab), p: make([]float64, vocab)}, nil
}

// draw returns the prompt and the text that the model goes on with.
func (s *textSampler) draw(ctx context.Context, step int) (string, error) {
	ids := s.spec.Tokenizer.Encode(nil, []byte(s.spec.Prompt))
	prompt := len(ids)
	if prompt == 0 {
		ids = append(ids, 0) // an empty prompt starts after a separator
	}
	for len(ids)-prompt < s.spec.Tokens {
		window := ids
		if len(window) > s.spec.Context {
			window = window[len(window)-s.spec.Context:]
		}
		clear(s.tokens)
		copy(s.tokens, window)
		if err := s.engine.forward(ctx, s.bound, false); err != nil {
			return "", err
		}
		row := s.logits[(len(window)-1)*s.vocab : len(window)*s.vocab]
		ids = append(ids, int32(s.choose(row, step, len(ids))))
	}
	text, err := s.spec.Tokenizer.Decode(nil, ids)
	return string(text), err
}

// choose draws one token from a row of logits at the sample's temperature among the TopK likeliest.
func (s *textSampler) choose(logits []float32, step, position int) int {
	for i := range s.order {
		s.order[i] = i
	}
	sort.SliceStable(s.order, func(a, b int) bool { return logits[s.order[a]] > logits[s.order[b]] })
	if s.spec.Temperature == 0 {
		return s.order[0]
	}
	n := s.vocab
	if s.spec.TopK > 0 {
		n = min(n, s.spec.TopK)
	}
	sum, top := 0.0, float64(logits[s.order[0]])
	for k := range n {
		s.p[k] = detmath.Exp((float64(logits[s.order[k]]) - top) / s.spec.Temperature)
		sum += s.p[k]
	}
	w := graph.Philox([2]uint32{uint32(s.seed), uint32(s.seed >> 32)}, [4]uint32{uint32(step), uint32(position), 0x73616d70, 0})
	at := float64(float64(w[0]) / (math.MaxUint32 + 1) * sum)
	for k := range n {
		if at -= s.p[k]; at < 0 {
			return s.order[k]
		}
	}
	return s.order[n-1]
}
