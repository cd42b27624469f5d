package recipe

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"starling/core/data"
	"starling/core/graph"
	"starling/core/train"
)

// textCorpus is a text source: one reading serves the training and the held-out part.
type textCorpus struct {
	cfg data.TextConfig
	pos graph.Position // of the call that names it

	mu    sync.Mutex
	index *data.TextIndex
	text  *data.Text
}

// Scan lists the files, once.
func (c *textCorpus) Scan(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.scan(ctx)
}

func (c *textCorpus) scan(ctx context.Context) (err error) {
	if c.index == nil {
		c.index, err = data.ScanText(ctx, c.cfg)
	}
	return written(c.pos, err)
}

// written gives an error in data the place in the recipe where the data is named, which a loader elsewhere only uses.
func written(pos graph.Position, err error) error {
	if err == nil {
		return nil
	}
	return &train.Error{Pos: pos, Msg: err.Error()}
}

// Load reads the files, once.
func (c *textCorpus) Load(ctx context.Context, progress func(data.Progress)) (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.text != nil {
		return nil
	}
	if err := c.scan(ctx); err != nil {
		return err
	}
	c.text, err = c.index.Load(ctx, progress)
	return written(c.pos, err)
}

// Bytes is the text's memory, 0 before Scan.
func (c *textCorpus) Bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.index == nil {
		return 0
	}
	return c.index.Bytes()
}

// Fingerprint is the text's, "" before Load.
func (c *textCorpus) Fingerprint() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.text == nil {
		return ""
	}
	return c.text.Fingerprint()
}

// Close frees the text.
func (c *textCorpus) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	text := c.text
	c.text = nil
	if text == nil {
		return nil
	}
	return text.Close()
}

// errNotLoaded is a use of samples before Load.
var errNotLoaded = errors.New("the data is not loaded yet")

// textSource is the training or the held-out part of a text.
type textSource struct {
	corpus    *textCorpus
	tokenizer data.Tokenizer
	context   int
	holdout   bool
}

func (s *textSource) Corpus() train.Corpus { return s.corpus }

// Fields are those of data.Windows.
func (s *textSource) Fields() []data.Field {
	return []data.Field{
		{Name: "tokens", DType: data.Int32, Shape: []int{s.context}, Role: data.Input},
		{Name: "targets", DType: data.Int32, Shape: []int{s.context}, Role: data.Target},
	}
}

// Len is the number of windows; it is an error if there is none.
func (s *textSource) Len() (int64, error) {
	s.corpus.mu.Lock()
	defer s.corpus.mu.Unlock()
	x := s.corpus.index
	if x == nil {
		return 0, errNotLoaded
	}
	if s.holdout {
		return s.count("holdout", x.HoldoutBytes)
	}
	return s.count("train", x.TrainBytes)
}

// count is the number of windows in a part of n bytes, at least one.
func (s *textSource) count(part string, n int64) (int64, error) {
	if windows := data.WindowCount(n, s.context); windows > 0 {
		return windows, nil
	}
	return 0, fmt.Errorf("data.text: the %s part of %s has %d bytes, too few for one sample of context = %d; use a smaller context, more text or another holdout", part, s.corpus.cfg.Pattern, n, s.context)
}

// Dataset gives the windows.
func (s *textSource) Dataset() (data.Dataset, error) {
	s.corpus.mu.Lock()
	text := s.corpus.text
	s.corpus.mu.Unlock()
	switch {
	case text == nil:
		return nil, errNotLoaded
	case s.holdout:
		return text.Holdout(s.context)
	}
	return text.Train(s.context)
}

// String says where the text comes from and how samples are cut from it: it enters the recipe's digest.
func (s *textSource) String() string {
	return fmt.Sprintf("text(%q, tokenizer %s, context %d, holdout %v, held out %v)", s.corpus.cfg.Pattern, s.tokenizer.Name(), s.context, s.corpus.cfg.Holdout, s.holdout)
}

// arrayCorpus is a small dataset that is held in memory whole. It is made in Scan, because its size
// is known only then.
type arrayCorpus struct {
	name    string // what it is made of, in a canonical form
	make    func() (*data.Array, error)
	holdout float64
	pos     graph.Position // of the call that names it

	mu          sync.Mutex
	train, held *data.Array
	fingerprint string
}

// Scan makes the samples, once.
func (c *arrayCorpus) Scan(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.train != nil {
		return nil
	}
	all, err := c.make()
	if err != nil {
		return written(c.pos, err)
	}
	c.fingerprint = all.Fingerprint()
	if c.holdout == 0 {
		c.train = all
		return nil
	}
	c.train, c.held, err = all.Split(c.holdout)
	return written(c.pos, err)
}

// Load is Scan.
func (c *arrayCorpus) Load(ctx context.Context, _ func(data.Progress)) error { return c.Scan(ctx) }

// Bytes is the samples' memory, 0 before Scan.
func (c *arrayCorpus) Bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	var n int64
	for _, a := range []*data.Array{c.train, c.held} {
		if a != nil {
			n += a.Bytes()
		}
	}
	return n
}

// Fingerprint is that of all samples, "" before Scan.
func (c *arrayCorpus) Fingerprint() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fingerprint
}

// Close drops the samples.
func (c *arrayCorpus) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.train, c.held, c.fingerprint = nil, nil, ""
	return nil
}

// arraySource is the training or the held-out part of an array.
type arraySource struct {
	corpus  *arrayCorpus
	shape   []int // of one sample's features
	classes int   // 0 where samples have targets
	held    bool
}

func (s *arraySource) Corpus() train.Corpus { return s.corpus }

// Fields are those of data.Array.
func (s *arraySource) Fields() []data.Field {
	if s.classes == 0 {
		return data.RegressionFields(s.shape)
	}
	return data.LabelledFields(s.shape)
}

func (s *arraySource) array() (*data.Array, error) {
	s.corpus.mu.Lock()
	defer s.corpus.mu.Unlock()
	a := s.corpus.train
	if s.held {
		a = s.corpus.held
	}
	if a == nil {
		return nil, errNotLoaded
	}
	return a, nil
}

// Len is the number of samples.
func (s *arraySource) Len() (int64, error) {
	a, err := s.array()
	if err != nil {
		return 0, err
	}
	return a.Len(), nil
}

// Dataset gives the samples.
func (s *arraySource) Dataset() (data.Dataset, error) {
	a, err := s.array()
	if err != nil {
		return nil, err
	}
	return a, nil
}

// String says where the samples come from: it enters the recipe's digest.
func (s *arraySource) String() string {
	return fmt.Sprintf("%s(holdout %v, held out %v)", s.corpus.name, s.corpus.holdout, s.held)
}

// csvColumns counts the columns of a table by its first line.
func csvColumns(path string, comma rune) (int, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	scan := bufio.NewScanner(f)
	for scan.Scan() {
		if line := strings.TrimSpace(strings.TrimPrefix(scan.Text(), byteOrderMark)); line != "" {
			return strings.Count(line, string(comma)) + 1, nil
		}
	}
	if err := scan.Err(); err != nil {
		return 0, err
	}
	return 0, fmt.Errorf("%s is empty", path)
}
