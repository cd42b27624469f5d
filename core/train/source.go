package train

import (
	"context"

	"starling/core/data"
)

// Corpus is data that several sources share, such as the training and the held-out part of one text.
type Corpus interface {
	// Scan finds the data and its size without reading the content. It is idempotent.
	Scan(ctx context.Context) error
	// Bytes is the host memory that the loaded corpus takes; known after Scan.
	Bytes() int64
	// Load reads the content, once.
	Load(ctx context.Context, progress func(data.Progress)) error
	// Fingerprint identifies the content, after Load.
	Fingerprint() string
	// Close frees the content's memory.
	Close() error
}

// Source is one part of a corpus, as samples.
type Source interface {
	Corpus() Corpus
	// Fields lists the values of a sample; known before anything is read.
	Fields() []data.Field
	// Len is the number of samples, known after Scan.
	Len() (int64, error)
	// Dataset gives the samples, after Load.
	Dataset() (data.Dataset, error)
}

// sources are the spec's, by the setting that names them.
func (s *Spec) sources() map[string]Source {
	out := map[string]Source{}
	if s.Data.Source != nil {
		out["data"] = s.Data.Source
	}
	if s.Evaluate != nil && s.Evaluate.Source != nil {
		out["evaluate"] = s.Evaluate.Source
	}
	return out
}

// Unit is what a figure of targets counts, for people: "tokens" where a sample has a row of labels, else "samples".
func (s *Spec) Unit() string {
	if s.Data.Source != nil {
		for _, f := range s.Data.Source.Fields() {
			if f.Role == data.Target && f.DType == data.Int32 && len(f.Shape) > 0 {
				return "tokens"
			}
		}
	}
	return "samples"
}

// Scan finds the spec's data without reading it, and checks that each source has samples.
func (s *Spec) Scan(ctx context.Context) error {
	sources := s.sources()
	for _, key := range sortedKeys(sources) {
		if err := sources[key].Corpus().Scan(ctx); err != nil {
			return s.place(key, err)
		}
		n, err := sources[key].Len()
		if err != nil {
			return s.place(key, err)
		}
		if n < 1 {
			return s.errorf(key, "%s: the data has no samples", key)
		}
	}
	return nil
}
