package main

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"starling/core/device/cpu"
	"starling/sdk/vec"
)

func newBench(started time.Time) *cobra.Command {
	c := &cobra.Command{
		Use:   "bench",
		Short: "Measure kernels, training steps and peers on this machine",
		Long: `Measure what this machine does with kernels and whole training steps, beside the limits that it has: the multiply-adds that
its cores can make and the bytes that they can copy, both measured in the same run. Figures of a machine that does other work as well
mean little; ratios of interleaved runs mean more.`,
	}
	c.PersistentFlags().Bool("json", false, "print JSON instead of a table")
	c.AddCommand(newBenchOps(), newBenchStep(started), newBenchPeers(), newBenchMemory(), newBenchComm(), newBenchPlugin(started))
	return c
}

// limits is what the machine can do at best.
type limits struct {
	Kernels string  `json:"kernels"`
	Threads int     `json:"threads"`
	Peak1   float64 `json:"peak_gflops_1_thread"`
	Peak    float64 `json:"peak_gflops"`
	// Half is the peak of products of bfloat16 in class BF16, 0 where that is not measured.
	BF16  string  `json:"bf16"`
	Half  float64 `json:"peak_bf16_gflops,omitempty"`
	Copy1 float64 `json:"copy_gb_per_s_1_thread"`
	Copy  float64 `json:"copy_gb_per_s"`
	// Cores is how many cores' worth of multiply-adds all threads made together: well below Threads, and some of them
	// share a core or are lent to others.
	Cores float64 `json:"cores"`
}

// measureLimits takes about a second.
func measureLimits(threads int) limits {
	const each = 150 * time.Millisecond
	peak := func(n int) float64 { return together(n, func(int) float64 { return vec.PeakOver(each) }) }
	l := limits{Kernels: vec.Active(), BF16: vec.BF16Class(), Threads: threads, Peak1: peak(1), Copy1: copyRate(1)}
	l.Peak, l.Copy = l.Peak1, l.Copy1
	if threads > 1 {
		l.Peak, l.Copy = peak(threads), copyRate(threads)
	}
	l.Half = together(threads, func(int) float64 { return vec.PeakBF16Over(each) })
	l.Cores = l.Peak / l.Peak1
	return l
}

// product reports whether an operation's arithmetic is that of matrix products.
func product(op string) bool {
	return strings.HasPrefix(op, "linear") && op != "linear_grad_b" || strings.HasPrefix(op, "matmul") || strings.HasPrefix(op, "conv2d") || strings.HasPrefix(op, "attention")
}

// usableThreads is the cores that this process may use: its affinity and its CPU quota.
func usableThreads() int { return cpu.Cores() }

// together adds up what n threads measure at the same time.
func together(n int, f func(thread int) float64) float64 {
	sums := make([]float64, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			sums[i] = f(i)
		})
	}
	wg.Wait()
	total := 0.0
	for _, s := range sums {
		total += s
	}
	return total
}

// copyRate is the bytes read and written in a second, in GB, by copies far larger than the caches that threads have of
// their own.
func copyRate(threads int) float64 {
	const size = 64 << 20
	type pair struct{ from, to []byte }
	memory := make([]pair, threads)
	for i := range memory {
		memory[i] = pair{make([]byte, size), make([]byte, size)}
		copy(memory[i].to, memory[i].from) // touches every page
	}
	return together(threads, func(i int) float64 {
		best := time.Duration(1 << 62)
		for range 5 {
			t0 := time.Now()
			copy(memory[i].to, memory[i].from)
			best = min(best, time.Since(t0))
		}
		return 2 * size / best.Seconds() / 1e9
	})
}

func (l limits) rows() [][2]string {
	rows := [][2]string{
		{"kernels", l.Kernels},
		{"multiply-adds, 1 thread", fmt.Sprintf("%.0f GFLOP/s", l.Peak1)},
		{"copying, 1 thread", fmt.Sprintf("%.1f GB/s read and written", l.Copy1)},
	}
	if l.Threads > 1 {
		note := ""
		if l.Cores < 0.85*float64(l.Threads) {
			note = fmt.Sprintf(": %d threads had only %.1f cores just now", l.Threads, l.Cores)
		}
		rows = append(rows,
			[2]string{fmt.Sprintf("multiply-adds, %d threads", l.Threads), fmt.Sprintf("%.0f GFLOP/s%s", l.Peak, note)},
			[2]string{fmt.Sprintf("copying, %d threads", l.Threads), fmt.Sprintf("%.1f GB/s", l.Copy)})
	}
	if l.Half > 0 && l.BF16 != vec.BF16FMA {
		rows = append(rows, [2]string{fmt.Sprintf("bf16, threads: %d", l.Threads), fmt.Sprintf("%.0f GFLOP/s in class %s", l.Half, l.BF16)})
	}
	return rows
}

// show prints a benchmark's result: as JSON where that was asked for, else the text.
func show(c *cobra.Command, result any, text func() string) error {
	if asJSON, err := c.Flags().GetBool("json"); err != nil || asJSON {
		if err != nil {
			return err
		}
		enc := json.NewEncoder(c.OutOrStdout())
		enc.SetIndent("", "  ")
		return enc.Encode(result)
	}
	_, err := io.WriteString(c.OutOrStdout(), text())
	return err
}

// columns prints rows under a head, all but the first column aligned to the right.
func columns(head []string, rows [][]string) string {
	all := append([][]string{head}, rows...)
	width := make([]int, len(head))
	for _, r := range all {
		for i, s := range r {
			width[i] = max(width[i], utf8.RuneCountInString(s))
		}
	}
	var b strings.Builder
	for _, r := range all {
		for i, s := range r {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(s))
			if i == 0 {
				b.WriteString("  " + s + pad)
			} else {
				b.WriteString("  " + pad + s)
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

func median(v []float64) float64 {
	s := slices.Clone(v)
	slices.Sort(s)
	n := len(s)
	if n == 0 {
		return 0
	}
	return (s[(n-1)/2] + s[n/2]) / 2
}
