package compress

import (
	"errors"
	"fmt"
	"math"
)

// Kind is a method of compression.
type Kind string

// The methods. None sends gradients as they are.
const (
	None     Kind = ""
	Int8     Kind = "int8"     // eight bits an element, a scale for each block
	BF16     Kind = "bf16"     // rounded to bfloat16
	TopK     Kind = "topk"     // the elements of largest magnitude
	DGC      Kind = "dgc"      // the same of a momentum that each contributor keeps (Lin et al., Deep Gradient Compression, 2018)
	PowerSGD Kind = "powersgd" // matrices as products of rank Rank (Vogels et al., PowerSGD, 2019)
	Foreign  Kind = "foreign"  // an External method
)

// Config is a method with its settings. The zero value compresses nothing.
type Config struct {
	Kind  Kind
	Block int // of Int8: elements that share a scale
	// Ratio, of TopK and DGC, is the part of the elements that is sent, and Rank that of PowerSGD's products. Over the first Warmup
	// updates more is sent: see RatioAt and RankAt.
	Ratio  float64
	Rank   int
	Warmup int
	// Clip, of DGC, bounds the norm of each contributor's gradient before it enters the momentum: with N contributors to
	// Clip / sqrt(N), so that Clip bounds the norm of the whole gradient. 0: no clipping. It is the caller's to do.
	Clip float64
	// Momentum and Nesterov, of DGC, are the optimizer's, which then has none itself.
	Momentum float64
	Nesterov bool
	// External, of Foreign, is the method.
	External External
	// Transactional keeps a step's effects on copies until Commit, for runs that skip steps.
	Transactional bool
}

// Active reports whether anything is compressed.
func (c Config) Active() bool { return c.Kind != None }

// Validate reports settings that make no sense.
func (c Config) Validate() error {
	if c.Warmup < 0 {
		return fmt.Errorf("warmup = %d must be at least 0 updates", c.Warmup)
	}
	switch c.Kind {
	case None, BF16:
	case Int8:
		if c.Block < 8 || c.Block > 1<<20 {
			return fmt.Errorf("block = %d must lie between 8 and %d elements", c.Block, 1<<20)
		}
	case TopK, DGC:
		if !(c.Ratio >= 1e-6 && c.Ratio <= 0.5) {
			return fmt.Errorf("ratio = %v must lie between 0.000001 and 0.5: it is the part of the elements that is sent", c.Ratio)
		}
		if !(c.Clip >= 0) || math.IsInf(c.Clip, 0) {
			return fmt.Errorf("clip = %v must be at least 0 (0 turns clipping off)", c.Clip)
		}
	case PowerSGD:
		if c.Rank < 1 || c.Rank > 256 {
			return fmt.Errorf("rank = %d must lie between 1 and 256", c.Rank)
		}
	case Foreign:
		if c.External == nil {
			return errors.New("a foreign method is named nowhere")
		}
	default:
		return errors.New("no such method of compression: " + string(c.Kind))
	}
	return nil
}

// String is the canonical form, which enters a recipe's digest.
func (c Config) String() string {
	switch c.Kind {
	case None:
		return "none"
	case Int8:
		return fmt.Sprintf("int8(block %d)", c.Block)
	case TopK:
		return fmt.Sprintf("topk(ratio %v, warmup %d)", c.Ratio, c.Warmup)
	case DGC:
		return fmt.Sprintf("dgc(ratio %v, warmup %d, clip %v)", c.Ratio, c.Warmup, c.Clip)
	case PowerSGD:
		if c.Warmup > 0 { // which was once another, that sent everything
			return fmt.Sprintf("powersgd(rank %d, warmup %d from rank %d)", c.Rank, c.Warmup, 8*c.Rank)
		}
		return fmt.Sprintf("powersgd(rank %d, warmup 0)", c.Rank)
	case Foreign:
		return c.External.String()
	}
	return string(c.Kind)
}

// RatioAt is the part of the elements that update number update (from 0) sends: a quarter at first, then a sixteenth and so
// on, in stages of equal length, until Ratio from update Warmup on.
func (c Config) RatioAt(update int) float64 {
	if update >= c.Warmup {
		return c.Ratio
	}
	stages := 0
	for r := 0.25; r > c.Ratio; r /= 4 {
		stages++
	}
	r := 0.25
	for range int(int64(update) * int64(stages) / int64(c.Warmup)) {
		r /= 4
	}
	return max(r, c.Ratio)
}

// count is how many of n elements are sent.
func (c Config) count(n, update int) int {
	if n == 0 {
		return 0
	}
	return min(n, max(1, int(math.Ceil(float64(float64(n)*c.RatioAt(update))))))
}

// Size is the number of bytes that n elements make at an update. PowerSGD's depends on shapes: see Factors.Payload.
func (c Config) Size(n, update int) int {
	switch c.Kind {
	case Int8:
		return int8Size(n, c.Block)
	case BF16:
		return 2 * n
	case TopK, DGC:
		return sparseSize(n, c.count(n, update))
	case Foreign:
		return foreignSize(c.External, n)
	}
	return 4 * n
}

// MaxSize is the largest Size over all updates.
func (c Config) MaxSize(n int) int { return c.Size(n, 0) }
