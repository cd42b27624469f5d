package plugintest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"starling/core/plugin"
	"starling/sdk/vec"
)

// lengths of vectors that compressors are tried with: none, few, odd ones and a large one.
var lengths = []int{0, 1, 2, 3, 63, 64, 65, 1009, 4096, 300007}

// Compressor checks a compressor plugin and reports each property as it is known. It returns an error if one does not hold.
func Compressor(ctx context.Context, use *plugin.Use, settings map[string]any, report func(Check)) error {
	failed := 0
	check := func(name string, f func() (string, error)) {
		note, err := f()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			failed++
		}
		report(Check{Name: name, Err: err, Note: note})
	}
	c := &coding{ctx: ctx, use: use}
	check("describes itself the same way twice", (&suite{ctx: ctx, use: use}).manifest)
	check("says how large encodings are, the same way twice", func() (string, error) {
		var err error
		if c.made, err = plugin.AskCompressor(ctx, use, settings); err != nil {
			return "", err
		}
		again, err := plugin.AskCompressor(ctx, use, settings)
		if err == nil && again.Layout != c.made.Layout {
			err = fmt.Errorf("%+v, and then %+v", c.made.Layout, again.Layout)
		}
		return fmt.Sprintf("%.1f%% of 1,000,000 float32 elements", 100*float64(c.made.Size(1e6))/4e6), err
	})
	if c.made != nil {
		check("encodes and decodes vectors of 0, 1, odd and large numbers of elements", c.basic)
		check("is deterministic and has no hidden state: another process, another order", c.deterministic)
		check("recovers: killed between calls and in the middle of them", c.recovers)
		check("refuses what is no encoding, and survives it", c.garbage)
		check("delivers a gradient in the course of steps", c.delivers)
		check("speed", c.speed)
	}
	if failed > 0 {
		return fmt.Errorf("plugin %s: %d of the checks failed", use.Name, failed)
	}
	return nil
}

// coding is what the checks of a compressor share.
type coding struct {
	ctx  context.Context
	use  *plugin.Use
	made *plugin.Compressor
}

// with runs f with a coder for vectors of the lengths above.
func (c *coding) with(f func(k *plugin.Coder) (string, error)) (string, error) {
	k, err := plugin.NewCoder(plugin.CoderConfig{Compressor: c.made, Elements: slices.Max(lengths), Threads: 1, Timeout: 20 * time.Second, Retries: 6})
	if err != nil {
		return "", err
	}
	defer k.Close()
	if err := k.Start(c.ctx); err != nil {
		return "", err
	}
	return f(k)
}

// vectors are of all lengths and of several kinds: of one magnitude, of many, zeros, all alike.
func vectors() (out [][]float32) {
	r := rand.New(rand.NewPCG(7, 7))
	for _, n := range lengths {
		for kind := range 4 {
			x := make([]float32, n)
			for i := range x {
				switch kind {
				case 0:
					x[i] = float32(r.NormFloat64())
				case 1:
					x[i] = float32(r.NormFloat64() * math.Pow(10, float64(r.IntN(12)-9)))
				case 3:
					x[i] = -0.25
				}
			}
			out = append(out, x)
		}
	}
	return out
}

// encoded is a vector's encoding and what is left of it.
func (c *coding) encoded(k *plugin.Coder, x []float32) (dst []byte, rest []float32, err error) {
	dst, rest = make([]byte, c.made.Size(len(x))), slices.Clone(x)
	if len(x) > 0 {
		err = k.Encode(dst, rest)
	}
	return dst, rest, err
}

func (c *coding) basic() (string, error) {
	return c.with(func(k *plugin.Coder) (string, error) {
		worst, energy := 0.0, 0.0
		for i, x := range vectors() {
			dst, rest, err := c.encoded(k, x)
			if err != nil {
				return "", fmt.Errorf("vector of %d elements: %w", len(x), err)
			}
			back := make([]float32, len(x))
			if len(x) > 0 {
				if err := k.Decode(back, dst); err != nil {
					return "", fmt.Errorf("vector of %d elements: %w", len(x), err)
				}
			}
			off, top := 0.0, 0.0
			for j := range x {
				if rest[j] != x[j]-back[j] {
					return "", fmt.Errorf("element %d of %d: an encoder's %v and a decoder's %v differ", j, len(x), x[j]-rest[j], back[j])
				}
				off, top = max(off, math.Abs(float64(rest[j]))), max(top, math.Abs(float64(x[j])))
			}
			if top > 0 && i%4 == 0 { // of one magnitude
				worst = max(worst, off/top)
				energy = math.Sqrt(vec.SumSq64(rest) / vec.SumSq64(x))
			}
		}
		return fmt.Sprintf("normally distributed elements: off by %.3g of the largest magnitude at most, by %.3g of the norm", worst, energy), nil
	})
}

// all encodes vectors in an order.
func (c *coding) all(k *plugin.Coder, order []int, before func()) ([][]byte, error) {
	list := vectors()
	out := make([][]byte, len(list))
	for _, i := range order {
		if before != nil {
			before()
		}
		dst, _, err := c.encoded(k, list[i])
		if err != nil {
			return nil, fmt.Errorf("vector of %d elements: %w", len(list[i]), err)
		}
		back := make([]float32, len(list[i]))
		if len(back) > 0 {
			if err := k.Decode(back, dst); err != nil {
				return nil, fmt.Errorf("vector of %d elements: %w", len(back), err)
			}
		}
		out[i] = dst
	}
	return out, nil
}

// same compares encodings with those of one process in the plain order.
func (c *coding) same(other func(k *plugin.Coder, order []int) ([][]byte, error)) (string, error) {
	order := make([]int, len(vectors()))
	for i := range order {
		order[i] = i
	}
	var want, got [][]byte
	if _, err := c.with(func(k *plugin.Coder) (_ string, err error) { want, err = c.all(k, order, nil); return "", err }); err != nil {
		return "", err
	}
	slices.Reverse(order)
	note := ""
	if _, err := c.with(func(k *plugin.Coder) (_ string, err error) {
		got, err = other(k, order)
		note = fmt.Sprintf("%d restarts", k.Restarts())
		return "", err
	}); err != nil {
		return "", err
	}
	for i := range want {
		if !bytes.Equal(want[i], got[i]) {
			return "", fmt.Errorf("a vector of %d elements has two encodings", len(vectors()[i]))
		}
	}
	return note, nil
}

// often is how many calls one process gets with the same vector.
const often = 3000

func (c *coding) deterministic() (string, error) {
	if _, err := c.same(func(k *plugin.Coder, order []int) ([][]byte, error) { return c.all(k, order, nil) }); err != nil {
		return "", err
	}
	return c.with(func(k *plugin.Coder) (string, error) {
		x := vectors()[4*slices.Index(lengths, 65)]
		var first []byte
		for i := range often {
			dst, _, err := c.encoded(k, x)
			switch {
			case err != nil:
				return "", fmt.Errorf("vector of %d elements, encoded for the %d. time: %w", len(x), i+1, err)
			case i == 0:
				first = dst
			case !bytes.Equal(first, dst):
				return "", fmt.Errorf("a vector of %d elements has another encoding after %d calls", len(x), i)
			}
		}
		return fmt.Sprintf("%d calls with one vector", often), nil
	})
}

func (c *coding) recovers() (string, error) {
	return c.same(func(k *plugin.Coder, order []int) ([][]byte, error) {
		r := rand.New(rand.NewPCG(1, 3))
		calls := 0
		out, err := c.all(k, order, func() {
			calls++
			pid := k.PID()
			if pid == 0 || calls%6 != 0 {
				return
			}
			p, err := os.FindProcess(pid)
			if err != nil {
				return
			}
			if calls%12 == 0 {
				_ = p.Kill()
				return
			}
			time.AfterFunc(time.Duration(r.IntN(1000))*time.Microsecond, func() { _ = p.Kill() })
		})
		if err == nil && k.Restarts() == 0 {
			err = errors.New("it was killed and is still there")
		}
		return out, err
	})
}

func (c *coding) garbage() (string, error) {
	return c.with(func(k *plugin.Coder) (string, error) {
		r := rand.New(rand.NewPCG(9, 1))
		tries, refused := 0, 0
		for _, n := range lengths[1:] {
			for kind := range 6 {
				src, dst := make([]byte, c.made.Size(n)), make([]float32, n)
				for i := range src {
					switch kind {
					case 0:
					case 1:
						src[i] = 0xff
					default:
						src[i] = byte(r.Uint32())
					}
				}
				err := k.Decode(dst, src)
				var verdict *plugin.NotAnEncoding
				switch {
				case err != nil && !errors.As(err, &verdict):
					return "", err
				case k.Restarts() > 0:
					return "", fmt.Errorf("it failed in decoding %d bytes of rubbish, and had to be started again", len(src))
				case err != nil:
					refused++
				case !vec.AllFinite(dst):
					return "", errors.New("what it decodes rubbish to is not finite")
				}
				tries++
			}
		}
		return fmt.Sprintf("%d of %d refused, the others decode to finite elements", refused, tries), nil
	})
}

// delivers feeds a compressor one gradient, step after step, with error feedback: what has arrived on average must come near it.
func (c *coding) delivers() (string, error) {
	return c.with(func(k *plugin.Coder) (string, error) {
		const n, rounds = 5000, 200
		r := rand.New(rand.NewPCG(5, 5))
		g, rest := make([]float32, n), make([]float32, n)
		for i := range g {
			g[i] = float32(r.NormFloat64())
		}
		dst := make([]byte, c.made.Size(n))
		for range rounds {
			vec.AddTo(rest, g)
			if err := k.Encode(dst, rest); err != nil {
				return "", err
			}
		}
		left := math.Sqrt(vec.SumSq64(rest)/vec.SumSq64(g)) / rounds
		note := fmt.Sprintf("after %d steps %.3g of it is missing", rounds, left)
		if !(left < 0.5) {
			return "", fmt.Errorf("%s: what encodings lose is not made up by later ones", note)
		}
		return note, nil
	})
}

func (c *coding) speed() (string, error) {
	return c.with(func(k *plugin.Coder) (string, error) {
		n := slices.Max(lengths)
		r := rand.New(rand.NewPCG(5, 6))
		x, back, dst := make([]float32, n), make([]float32, n), make([]byte, c.made.Size(n))
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		best := func(f func() error) (time.Duration, error) {
			least := time.Hour
			for range 5 {
				start := time.Now()
				if err := f(); err != nil {
					return 0, err
				}
				least = min(least, time.Since(start))
			}
			return least, nil
		}
		encode, err := best(func() error { return k.Encode(dst, slices.Clone(x)) })
		if err != nil {
			return "", err
		}
		decode, err := best(func() error { return k.Decode(back, dst) })
		rate := func(d time.Duration) float64 { return 4 * float64(n) / 1e6 / d.Seconds() }
		return fmt.Sprintf("%d elements: encoding, with decoding for the error, %.0f MB/s of float32, decoding %.0f MB/s", n, rate(encode), rate(decode)), err
	})
}
