package recipe

import (
	"go.starlark.net/starlark"

	"starling/core/data"
	"starling/core/train"
)

// sampling is what sample() says; the data gives it context and tokenizer where it does not name them.
type sampling struct {
	train.Sample
	model starlark.Callable
}

func makeSample(c *call) (starlark.Value, error) {
	var s sampling
	var context starlark.Value
	var tok *setting
	if err := c.unpack(&s.model, &s.Prompt, &s.Tokens, &s.Every, &s.Temperature, &s.TopK, &context, wantTokenizer(&tok)); err != nil {
		return nil, err
	}
	if wrong := takesOne(s.model, "the tokens"); wrong != "" {
		return nil, c.bad("model", "model: %s", wrong)
	}
	if context != nil {
		if want, _ := store(&s.Context, context); want != "" || s.Context < 1 {
			return nil, c.bad("context", "context must be an int of at least 1, not %s", describe(context))
		}
	}
	if tok != nil {
		s.Tokenizer = payload[data.Tokenizer](tok)
	}
	return c.newSetting("sample", s), nil
}

// addSamples adds one sample(…) or a list of them.
func (s *session) addSamples(c *call, spec *train.Spec, v starlark.Value) error {
	if v == nil {
		return nil
	}
	list := []starlark.Value{v}
	if seq, ok := v.(starlark.Sequence); ok {
		list = list[:0]
		for x := range starlark.Elements(seq) {
			list = append(list, x)
		}
	}
	text, _ := spec.Data.Source.(*textSource)
	for _, x := range list {
		set, ok := x.(*setting)
		if !ok || set.kind != "sample" {
			return c.bad("sample", "sample must be sample(…) or a list of them, not %s", describe(x))
		}
		p := payload[sampling](set)
		if text != nil && p.Context == 0 {
			p.Context = text.context
		}
		if text != nil && p.Tokenizer == nil {
			p.Tokenizer = text.tokenizer
		}
		if p.Tokenizer == nil || p.Context == 0 {
			return &Error{Pos: set.pos, Msg: "sample: the training data is no text; give context = … and tokenizer = …"}
		}
		p.Forward = s.forward(p.model)
		spec.Samples = append(spec.Samples, p.Sample)
		if _, ok := spec.Positions["sample"]; !ok {
			spec.Positions["sample"] = set.pos
		}
	}
	return nil
}
