package data

import (
	"fmt"
)

// SamplerConfig says how samples are put into steps.
type SamplerConfig struct {
	Samples     int64  // samples in the dataset
	GlobalBatch int    // samples a step, over all ranks
	MicroBatch  int    // samples a micro-batch; divides GlobalBatch
	Seed        uint64 // the recipe's seed; used when Shuffle is set
	Shuffle     bool   // a new permutation each epoch; otherwise dataset order
}

// Validate reports the first field that cannot work.
func (c SamplerConfig) Validate() error {
	switch {
	case c.Samples < 1:
		return fmt.Errorf("data: a sampler needs at least one sample, the dataset has %d", c.Samples)
	case c.GlobalBatch < 1:
		return fmt.Errorf("data: global_batch = %d must be at least 1", c.GlobalBatch)
	case c.MicroBatch < 1:
		return fmt.Errorf("data: micro_batch = %d must be at least 1", c.MicroBatch)
	case c.GlobalBatch%c.MicroBatch != 0:
		return fmt.Errorf("data: micro_batch = %d does not divide global_batch = %d; use a divisor such as %d",
			c.MicroBatch, c.GlobalBatch, NearestDivisor(c.GlobalBatch, c.MicroBatch))
	}
	return nil
}

// NearestDivisor is the largest divisor of n that is at most m.
func NearestDivisor(n, m int) int {
	for d := min(m, n); d > 1; d-- {
		if n%d == 0 {
			return d
		}
	}
	return 1
}

// Sampler maps (step, micro-batch) to sample numbers. It holds no position: any
// step can be asked for at any time, from several goroutines at once.
type Sampler struct {
	domain  int64 // samples the permutation ranges over
	samples int64 // samples used in an epoch, <= domain
	global  int64
	micro   int64
	seed    uint64
	shuffle bool
	fixed   bool // every epoch has the order of epoch 0
}

// NewSampler makes the sampler of a training run.
func NewSampler(c SamplerConfig) (*Sampler, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return &Sampler{
		domain:  c.Samples,
		samples: c.Samples,
		global:  int64(c.GlobalBatch),
		micro:   int64(c.MicroBatch),
		seed:    c.Seed,
		shuffle: c.Shuffle,
	}, nil
}

// NewEvalSampler makes the sampler of an evaluation over the first batches
// batches of globalBatch samples (0: over the whole dataset). The samples are
// spread over the dataset by one fixed permutation that no seed changes, so that
// every evaluation of every run sees the same ones.
//
// All of it is a single step: MicroBatches counts the micro-batches of one whole
// evaluation, and a loader over this sampler runs one evaluation a step. The last
// micro-batch may be padded.
func NewEvalSampler(samples int64, globalBatch, microBatch, batches int) (*Sampler, error) {
	c := SamplerConfig{Samples: samples, GlobalBatch: globalBatch, MicroBatch: microBatch}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if batches < 0 {
		return nil, fmt.Errorf("data: evaluate(batches = %d) must not be negative; 0 evaluates all of the data", batches)
	}
	used, micro := samples, int64(microBatch)
	// Compared by division: batches × globalBatch may overflow.
	if batches > 0 && int64(batches) <= samples/int64(globalBatch) {
		used = int64(batches) * int64(globalBatch)
	}
	return &Sampler{
		domain:  samples,
		samples: used,
		global:  (used + micro - 1) / micro * micro,
		micro:   micro,
		shuffle: true,
		fixed:   true,
	}, nil
}

// MicroBatches is M, the number of micro-batches in a step.
func (s *Sampler) MicroBatches() int { return int(s.global / s.micro) }

// MicroBatch is the number of samples in a micro-batch, padding included.
func (s *Sampler) MicroBatch() int { return int(s.micro) }

// StepsPerEpoch is ceil(samples / global batch).
func (s *Sampler) StepsPerEpoch() int64 { return (s.samples + s.global - 1) / s.global }

// Position is the epoch of a step and the step's offset in it.
func (s *Sampler) Position(step int64) (epoch, offset int64) {
	n := s.StepsPerEpoch()
	return step / n, step % n
}

// Samples is the number of real samples in a step, over all micro-batches.
func (s *Sampler) Samples(step int64) int64 {
	_, offset := s.Position(step)
	return min(s.global, s.samples-offset*s.global)
}

// Indices writes the sample numbers of micro-batch index of step into dst, which
// must have MicroBatch elements. Padding is -1.
func (s *Sampler) Indices(dst []int64, step int64, index int) {
	if step < 0 || index < 0 || index >= s.MicroBatches() || len(dst) != int(s.micro) {
		panic(fmt.Sprintf("data: no micro-batch %d of %d in step %d, %d elements for %d samples",
			index, s.MicroBatches(), step, len(dst), s.micro))
	}
	epoch, offset := s.Position(step)
	if s.fixed {
		epoch = 0
	}
	var order permutation
	if s.shuffle {
		order = newPermutation(uint64(s.domain), s.seed, uint64(epoch))
	}
	first := offset*s.global + int64(index)*s.micro
	for k := range dst {
		switch p := first + int64(k); {
		case p >= s.samples:
			dst[k] = -1
		case s.shuffle:
			dst[k] = int64(order.at(uint64(p)))
		default:
			dst[k] = p
		}
	}
}

// Share cuts 0 … n-1 into parts contiguous runs whose lengths differ by at most
// one, and lists run part. Ranks share the micro-batches of an evaluation by it.
func Share(n, parts, part int) []int {
	lo, hi := part*n/parts, (part+1)*n/parts
	out := make([]int, 0, hi-lo)
	for i := lo; i < hi; i++ {
		out = append(out, i)
	}
	return out
}
