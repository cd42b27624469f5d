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

// Scan finds the spec's data without reading it.
func (s *Spec) Scan(ctx context.Context) error {
	sources := []Source{s.Data.Source}
	if s.Evaluate != nil {
		sources = append(sources, s.Evaluate.Source)
	}
	for _, x := range sources {
		if err := x.Corpus().Scan(ctx); err != nil {
			return s.place("data", err)
		}
	}
	return nil
}
