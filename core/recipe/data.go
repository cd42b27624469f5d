package recipe

import (
	"context"
	"fmt"
	"path/filepath"
	"unicode/utf8"

	"go.starlark.net/starlark"

	"starling/core/data"
	"starling/core/train"
)

func dataDeclarations() []declaration {
	return []declaration{
		{"text(pattern, *, context, tokenizer = None, holdout = 0.0)", "the files that a glob matches, as windows of context tokens: fields tokens and targets, i32[context]; $GOROOT is the Go " +
			"toolchain's folder, relative patterns start at the recipe; holdout is the fraction of files kept out of training; attributes train, holdout, vocab, context", dataText},
		{"csv(path, *, classes = None, target = None, shape = None, label = None, scale = 1.0, holdout = 0.0, separator = \",\")", "a table of feature columns, times scale, and one more: with classes a column label of whole numbers (by name or number, by default the last), " +
			"fields features f32[shape] and labels i32[]; with target, the name or number of a column of real numbers, fields features f32[shape] and targets f32[1]; " +
			"attributes train, holdout, shape, and classes", dataCSV},
		{"cifar10(files = None, *, samples = 2000, seed = 0, holdout = 0.1)", "images f32[3,32,32] of ten classes: the files that a glob matches, of CIFAR-10's binary version, such as \"cifar-10-batches-bin/*.bin\"; " +
			"without files as many drawn ones as samples says, nothing to download: fields features and labels i32[]; attributes train, holdout, classes, shape", dataCIFAR},
		{"digits(samples = 4000, *, seed = 0, noise = 0.2, holdout = 0.1)", "drawn images of the digits 0 to 9, nothing to download: fields features f32[1,12,12] and labels i32[]; " +
			"attributes train, holdout, classes, shape", dataDigits},
	}
}

func tokenizerDeclarations() []declaration {
	return []declaration{
		{"bytes()", "every byte is a token: 256 of them, any text is valid", func(c *call) (starlark.Value, error) {
			if err := c.unpack(); err != nil {
				return nil, err
			}
			return c.newSetting("tokenizer", data.Tokenizer(data.Bytes{})), nil
		}},
	}
}

func wantTokenizer(to **setting) kindOf {
	return kindOf{"tokenizer", "a tokenizer such as tokenizer.bytes()", to}
}

func wantSource(to **setting) kindOf {
	return kindOf{"source", "a part of a data source, such as corpus.train", to}
}

// newCorpus makes the value of a data source; part gives its parts.
func (c *call) newCorpus(holdout float64, part func(held bool) train.Source) *record {
	r := newRecord(c.name)
	r.set("train", c.newSetting("source", part(false)))
	if holdout > 0 {
		r.set("holdout", c.newSetting("source", part(true)))
	} else {
		r.hint("holdout", "nothing is held out; give "+c.name+" a fraction, such as holdout = 0.02")
	}
	return r
}

func (c *call) checkHoldout(holdout float64) error {
	if !(holdout >= 0 && holdout < 1) {
		return c.bad("holdout", "holdout = %v must be at least 0 and less than 1", holdout)
	}
	return nil
}

func dataText(c *call) (starlark.Value, error) {
	var pattern string
	var context int
	var tok *setting
	var holdout float64
	if err := c.unpack(&pattern, &context, wantTokenizer(&tok), &holdout); err != nil {
		return nil, err
	}
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	if context < 1 {
		return nil, c.bad("context", "context = %d must be at least 1", context)
	}
	if err := c.checkHoldout(holdout); err != nil {
		return nil, err
	}
	tokenizer := data.Tokenizer(data.Bytes{})
	if tok != nil {
		tokenizer = payload[data.Tokenizer](tok)
	}
	corpus := &textCorpus{cfg: data.TextConfig{Pattern: pattern, Dir: s.dir, Holdout: holdout}, pos: position(c.thread)}
	r := c.newCorpus(holdout, func(held bool) train.Source { return &textSource{corpus, tokenizer, context, held} })
	r.set("vocab", starlark.MakeInt(tokenizer.Vocab()))
	r.set("context", starlark.MakeInt(context))
	return r, nil
}

// arrayRecord makes the value of a source whose samples are features and a label, or with classes 0 a target; name says what they are made of.
func (c *call) arrayRecord(name string, holdout float64, shape []int, classes int, make func() (*data.Array, error)) *record {
	corpus := &arrayCorpus{name: name, make: make, holdout: holdout, pos: position(c.thread)}
	r := c.newCorpus(holdout, func(held bool) train.Source { return &arraySource{corpus, shape, classes, held} })
	if classes > 0 {
		r.set("classes", starlark.MakeInt(classes))
	} else {
		r.hint("classes", "its samples have targets, real numbers to predict, in place of labels")
	}
	r.set("shape", intTuple(shape))
	return r
}

func dataCSV(c *call) (starlark.Value, error) {
	var path, separator string
	var classes int
	var shape []int
	var classCount, target, label starlark.Value
	var scale, holdout float64
	if err := c.unpack(&path, &classCount, &target, &shape, &label, &scale, &holdout, &separator); err != nil {
		return nil, err
	}
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	switch {
	case target == nil && classCount == nil:
		return nil, c.errorf("give classes, the number of classes in a column of labels, or target, a column of real numbers to predict")
	case target != nil && (classCount != nil || label != nil):
		return nil, c.bad("target", "target is a column of real numbers to predict; leave it out, or leave out classes and label")
	case classCount != nil:
		if want, _ := store(&classes, classCount); want != "" || classes < 1 {
			return nil, c.bad("classes", "classes must be an int of at least 1, not %s", describe(classCount))
		}
	}
	if err := c.checkHoldout(holdout); err != nil {
		return nil, err
	}
	cfg := data.CSVConfig{Shape: shape, Scale: float32(scale), Classes: classes}
	if cfg.Label, err = c.column("label", label); err != nil {
		return nil, err
	}
	if cfg.Target, err = c.column("target", target); err != nil {
		return nil, err
	}
	var size int
	if cfg.Comma, size = utf8.DecodeRuneInString(separator); size == 0 || size != len(separator) {
		return nil, c.bad("separator", "separator must be one character, not %q", separator)
	}
	name := fmt.Sprintf("csv %q %+v ", path, cfg)
	if !filepath.IsAbs(path) {
		path = filepath.Join(s.dir, filepath.FromSlash(path))
	}
	if shape == nil {
		columns, err := csvColumns(path, cfg.Comma)
		if err != nil {
			return nil, c.bad("path", "%v", err)
		}
		shape = []int{columns - 1}
	}
	return c.arrayRecord(name, holdout, shape, classes, func() (*data.Array, error) { return data.ReadCSVFile(path, cfg) }), nil
}

// column reads a column's name or number; "" where there is none.
func (c *call) column(arg string, v starlark.Value) (string, error) {
	switch v := v.(type) {
	case nil:
		return "", nil
	case starlark.String:
		if v != "" {
			return string(v), nil
		}
	case starlark.Int:
		return v.String(), nil
	}
	return "", c.bad(arg, "%s must be a column's name or number, not %s", arg, describe(v))
}

// mostDrawn bounds a drawn dataset, which is held in memory.
const mostDrawn = 1_000_000

func dataDigits(c *call) (starlark.Value, error) {
	var samples, seed int
	var noise, holdout float64
	if err := c.unpack(&samples, &seed, &noise, &holdout); err != nil {
		return nil, err
	}
	if _, err := c.session(); err != nil {
		return nil, err
	}
	if samples < 1 || samples > mostDrawn {
		return nil, c.bad("samples", "samples = %d must lie between 1 and %d", samples, mostDrawn)
	}
	if !(noise >= 0 && noise <= 1) {
		return nil, c.bad("noise", "noise = %v must lie between 0 and 1", noise)
	}
	if err := c.checkHoldout(holdout); err != nil {
		return nil, err
	}
	cfg := data.DigitsConfig{Samples: samples, Seed: uint64(seed), Noise: float32(noise)}
	return c.arrayRecord(fmt.Sprintf("digits %+v ", cfg), holdout, []int{1, data.DigitSize, data.DigitSize}, 10, func() (*data.Array, error) { return data.Digits(cfg) }), nil
}

func dataCIFAR(c *call) (starlark.Value, error) {
	var files starlark.Value
	var samples, seed int
	var holdout float64
	if err := c.unpack(&files, &samples, &seed, &holdout); err != nil {
		return nil, err
	}
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	cfg := data.CIFARConfig{Samples: samples, Seed: uint64(seed), Dir: s.dir}
	if files != nil {
		pattern, ok := starlark.AsString(files)
		if !ok {
			return nil, c.bad("files", "files must be a glob pattern such as \"cifar-10-batches-bin/*.bin\", not %s", describe(files))
		}
		cfg.Pattern = pattern
	}
	if samples < 1 || samples > mostDrawn {
		return nil, c.bad("samples", "samples = %d must lie between 1 and %d", samples, mostDrawn)
	}
	if err := c.checkHoldout(holdout); err != nil {
		return nil, err
	}
	name := fmt.Sprintf("cifar10 drawn %d by %d ", samples, seed)
	if cfg.Pattern != "" {
		name = fmt.Sprintf("cifar10 %q ", cfg.Pattern)
	}
	shape := []int{3, data.CIFARSize, data.CIFARSize}
	return c.arrayRecord(name, holdout, shape, data.CIFARClasses, func() (*data.Array, error) { return data.CIFAR(context.Background(), cfg) }), nil
}

func makeLoader(c *call) (starlark.Value, error) {
	var source *setting
	var d train.Data
	var lanes starlark.Value
	if err := c.unpack(wantSource(&source), &d.GlobalBatch, &d.MicroBatch, &lanes, &d.Workers, &d.Prefetch, &d.Shuffle); err != nil {
		return nil, err
	}
	if lanes != nil {
		if want, msg := store(&d.Lanes, lanes); want != "" || msg != "" || d.Lanes < 1 {
			return nil, c.bad("lanes", "lanes must be an int of at least 1, not %s", describe(lanes))
		}
	}
	for _, n := range []struct {
		name  string
		value int
	}{{"workers", d.Workers}, {"prefetch", d.Prefetch}} {
		if n.value < 1 {
			return nil, c.bad(n.name, "%s = %d must be at least 1", n.name, n.value)
		}
	}
	d.Source = payload[train.Source](source)
	return c.newSetting("loader", d), nil
}
