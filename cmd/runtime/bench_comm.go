package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"starling/core/cluster"
	"starling/core/comm"
)

// benchCommOptions are the flags of bench comm.
type benchCommOptions struct {
	ranks, sizes, transports, ops, dtypes []string
	seconds                               float64
	rounds                                int
	gloo, mpi                             string
}

func newBenchComm() *cobra.Command {
	o := benchCommOptions{}
	c := &cobra.Command{
		Use:   "comm",
		Short: "Measure the collectives of ranks on this machine",
		Long: `Measure the collectives of rank processes on this machine, through the handles that training uses.

Each row is an operation over one transport: the median time of the slowest rank; algbw, the vector's bytes by that time;
busbw, the bytes a link must carry at least by that time (algbw · 2(N-1)/N for all_reduce, · 1 for broadcast, · (N-1)/N for the
rest, as NCCL's tests count). Beside it, measured in the same round: copy, the time in which every rank copies a vector of that size, as a fraction of the row's time (1.0 is the limit of
the memory); raw, the time in which two processes exchange as many bytes over TCP, both directions busy, likewise.

The second group of columns says the same of the fastest repetition.

--gloo and --mpi name commands of peers to measure in the same rounds (testdata/peers); {ranks} stands for the number of
ranks. Their columns say how many times faster than the peer a row is.`,
		Example: `  runtime bench comm
  runtime bench comm --ranks 2 --sizes 4K,1M,64M --transports shm --json
  runtime bench comm --gloo 'python3 testdata/peers/gloo_allreduce.py --serve --ranks {ranks}' \
      --mpi 'mpirun -np {ranks} ./mpi_allreduce 0.3'`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			rows, err := benchComm(c.Context(), o, c.ErrOrStderr())
			if err != nil {
				return err
			}
			return show(c, rows, func() string { return benchTable(rows) })
		},
	}
	f := c.Flags()
	f.StringSliceVar(&o.ranks, "ranks", []string{"2", "4"}, "numbers of ranks")
	f.StringSliceVar(&o.sizes, "sizes", []string{"4K", "64K", "1M", "16M", "64M", "256M"}, "sizes of the vector in bytes, with K or M")
	f.StringSliceVar(&o.transports, "transports", []string{"shm", "tcp"}, strings.Join(benchTransports, ", ")+" (TCP with TLS)")
	f.StringSliceVar(&o.ops, "ops", []string{"all_reduce"}, strings.Join(benchOps, ", "))
	f.StringSliceVar(&o.dtypes, "dtype", []string{comm.Float32.String()}, "element types: float32, float16, bfloat16, int8, int32, int64")
	f.Float64Var(&o.seconds, "seconds", 0.3, "time spent on each measurement of a round")
	f.IntVar(&o.rounds, "rounds", 3, "measurements of each row, interleaved; the median counts")
	f.StringVar(&o.gloo, "gloo", "", "`command` of testdata/peers/gloo_allreduce.py --serve")
	f.StringVar(&o.mpi, "mpi", "", "`command` of testdata/peers/mpi_allreduce.c")
	return c
}

var benchTransports = []string{cluster.TransportShared, cluster.TransportUnix, cluster.TransportTCP, benchTLS}

// shortTypes are the names that recipes and other libraries have for element types.
var shortTypes = map[string]string{"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}

// benchTLS is TCP with encryption.
const benchTLS = "tls"

// benchRow is one line of the table.
type benchRow struct {
	Op        string  `json:"op"`
	DType     string  `json:"dtype"`
	Transport string  `json:"transport"`
	Ranks     int     `json:"ranks"`
	Bytes     int     `json:"bytes"`
	Seconds   float64 `json:"seconds"`
	Best      float64 `json:"best"`  // the fastest repetition
	AlgBW     float64 `json:"algbw"` // bytes/s
	BusBW     float64 `json:"busbw"`
	Copy      float64 `json:"copy,omitempty"` // seconds of a copy by every rank / Seconds
	Raw       float64 `json:"raw,omitempty"`  // seconds of a raw exchange of as many bytes / Seconds
	Gloo      float64 `json:"gloo,omitempty"` // seconds of the peer / Seconds
	MPI       float64 `json:"mpi,omitempty"`
	// The same ratios of the fastest repetitions: on a machine that does other work too they say more.
	BestCopy float64 `json:"best_copy,omitempty"`
	BestRaw  float64 `json:"best_raw,omitempty"`
	BestGloo float64 `json:"best_gloo,omitempty"`
	BestMPI  float64 `json:"best_mpi,omitempty"`
}

// parseSize reads a size such as 64M.
func parseSize(s string) (int, error) {
	digits, shift := strings.TrimSuffix(strings.ToUpper(s), "B"), 0
	for unit, n := range map[string]int{"K": 10, "M": 20, "G": 30} {
		if d, ok := strings.CutSuffix(digits, unit); ok {
			digits, shift = d, n
		}
	}
	n, err := strconv.Atoi(digits)
	if err != nil || n < 0 || n > 1<<33>>shift {
		return 0, fmt.Errorf("size %q: want a number of bytes up to 8G, such as 4096, 64K or 256M", s)
	}
	return n << shift, nil
}

func (o benchCommOptions) parse() (ranks, sizes []int, err error) {
	for _, s := range o.ranks {
		n, err := strconv.Atoi(s)
		if err != nil || n < 2 || n > 256 {
			return nil, nil, fmt.Errorf("--ranks %q: want numbers from 2 to 256", s)
		}
		ranks = append(ranks, n)
	}
	for _, s := range o.sizes {
		n, err := parseSize(s)
		if err != nil {
			return nil, nil, fmt.Errorf("--sizes: %w", err)
		}
		sizes = append(sizes, n)
	}
	for _, t := range o.transports {
		if !slices.Contains(benchTransports, t) {
			return nil, nil, fmt.Errorf("--transports %q: choose from %s", t, strings.Join(benchTransports, ", "))
		}
	}
	for _, op := range o.ops {
		if !slices.Contains(benchOps, op) {
			return nil, nil, fmt.Errorf("--ops %q: choose from %s", op, strings.Join(benchOps, ", "))
		}
		if strings.HasPrefix(op, benchFast) && slices.Contains(o.transports, "shm") {
			return nil, nil, fmt.Errorf("--ops %q with --transports shm: in shared memory every sum is direct; choose other transports for it", op)
		}
	}
	for i, d := range o.dtypes {
		if full, ok := shortTypes[d]; ok {
			d = full
		}
		e, err := comm.ParseElement(d)
		if err != nil {
			return nil, nil, fmt.Errorf("--dtype: %w", err)
		}
		o.dtypes[i] = d
		for k, n := range sizes {
			if n == 0 || n%e.Size() != 0 {
				return nil, nil, fmt.Errorf("--sizes %s: want one element or more, and %s has %d bytes", o.sizes[k], e, e.Size())
			}
		}
		for _, op := range o.ops {
			if strings.HasPrefix(op, benchFast) && e != comm.Float32 {
				return nil, nil, fmt.Errorf("--ops %q with --dtype %v: outside the canonical order there are sums of float32 only", op, e)
			}
		}
	}
	if o.rounds < 1 || o.seconds <= 0 {
		return nil, nil, errors.New("--rounds and --seconds must be positive")
	}
	return ranks, sizes, nil
}

// benchComm measures every row, the transports and peers of a size one after another, several rounds of it.
func benchComm(ctx context.Context, o benchCommOptions, progress io.Writer) ([]benchRow, error) {
	ranks, sizes, err := o.parse()
	if err != nil {
		return nil, &exitError{2, err}
	}
	var rows []benchRow
	for _, n := range ranks {
		peers := map[string]*peerProcess{}
		for name, command := range map[string]string{"gloo": o.gloo, "mpi": o.mpi} {
			if command == "" {
				continue
			}
			p, err := startPeer(ctx, strings.ReplaceAll(command, "{ranks}", strconv.Itoa(n)))
			if err != nil {
				return nil, fmt.Errorf("--%s: %w", name, err)
			}
			defer p.stop()
			peers[name] = p
		}
		for i, size := range sizes {
			fmt.Fprintf(progress, "\rmeasuring %d ranks, %s   ", n, bytesText(int64(size)))
			some, err := o.size(ctx, n, size, i == 0, peers)
			if err != nil {
				return nil, err
			}
			rows = append(rows, some...)
		}
		for _, p := range peers {
			p.stop()
		}
	}
	fmt.Fprint(progress, "\r")
	return rows, nil
}

// size measures the rows of one size, with the first of them also what has none.
func (o benchCommOptions) size(ctx context.Context, ranks, size int, first bool, peers map[string]*peerProcess) ([]benchRow, error) {
	times, theirs := map[benchTask][]benchTimes{}, map[string][]benchTime{}
	var tasks []benchTask
	for _, op := range o.ops {
		for i, d := range o.dtypes {
			if op == "barrier" && (!first || i > 0) {
				continue
			}
			for _, transport := range o.transports {
				tasks = append(tasks, benchTask{Op: op, DType: d, Transport: transport, Ranks: ranks, Bytes: size, Seconds: o.seconds})
			}
		}
	}
	for range o.rounds {
		for _, k := range tasks {
			t, err := runBenchTask(ctx, k)
			if err != nil {
				return nil, fmt.Errorf("%s of %s over %s, %d ranks, %d bytes: %w", k.Op, k.DType, k.Transport, ranks, size, err)
			}
			times[k] = append(times[k], t)
		}
		for name, p := range peers {
			t, err := p.measure(size)
			if err != nil {
				return nil, fmt.Errorf("--%s: %w", name, err)
			}
			theirs[name] = append(theirs[name], t)
		}
	}
	var rows []benchRow
	for _, k := range tasks {
		all := times[k]
		ours := summary(all, func(t benchTimes) benchTime { return t.Op })
		row := benchRow{Op: k.Op, DType: k.DType, Transport: k.Transport, Ranks: ranks, Bytes: size, Seconds: ours.Seconds, Best: ours.Best, AlgBW: float64(size) / ours.Seconds}
		row.Copy, row.BestCopy = summary(all, func(t benchTimes) benchTime { return t.Copy }).over(ours)
		row.Raw, row.BestRaw = summary(all, func(t benchTimes) benchTime { return t.Raw }).over(ours)
		row.BusBW = row.AlgBW * float64(ranks-1) / float64(ranks)
		if k.Op == "broadcast" {
			row.BusBW = row.AlgBW
		}
		if k.Op == "barrier" { // moves no vector
			row.Bytes, row.AlgBW, row.BusBW, row.Copy, row.BestCopy, row.Raw, row.BestRaw = 0, 0, 0, 0, 0, 0, 0
		}
		if strings.HasPrefix(k.Op, "all_reduce") {
			row.BusBW *= 2
			if k.DType == comm.Float32.String() { // as the peers'
				same := func(t benchTime) benchTime { return t }
				row.Gloo, row.BestGloo = summary(theirs["gloo"], same).over(ours)
				row.MPI, row.BestMPI = summary(theirs["mpi"], same).over(ours)
			}
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// benchTime is the median of the repetitions' times, each that of the slowest rank, and the least, in seconds.
type benchTime struct{ Seconds, Best float64 }

func (t benchTime) over(ours benchTime) (seconds, best float64) {
	return t.Seconds / ours.Seconds, t.Best / ours.Best
}

// summary is the median of the rounds' medians, and the least of all.
func summary[T any](all []T, f func(T) benchTime) benchTime {
	if len(all) == 0 {
		return benchTime{}
	}
	v, best := make([]float64, len(all)), f(all[0]).Best
	for i, x := range all {
		v[i], best = f(x).Seconds, min(best, f(x).Best)
	}
	return benchTime{median(v), best}
}

func benchTable(rows []benchRow) string {
	var lines [][]string
	ratio := func(v float64) string {
		if v == 0 {
			return "-"
		}
		return fmt.Sprintf("%.2f", v)
	}
	for _, r := range rows {
		bytes, alg, bus := strconv.Itoa(r.Bytes), fmt.Sprintf("%.2f GB/s", r.AlgBW/1e9), fmt.Sprintf("%.2f GB/s", r.BusBW/1e9)
		if r.Bytes == 0 {
			bytes, alg, bus = "-", "-", "-"
		}
		lines = append(lines, []string{r.Op, r.DType, r.Transport, strconv.Itoa(r.Ranks), bytes,
			time.Duration(r.Seconds * 1e9).Round(10 * time.Nanosecond).String(), alg, bus,
			ratio(r.Copy), ratio(r.Raw), ratio(r.Gloo), ratio(r.MPI),
			time.Duration(r.Best * 1e9).Round(10 * time.Nanosecond).String(),
			ratio(r.BestCopy), ratio(r.BestRaw), ratio(r.BestGloo), ratio(r.BestMPI)})
	}
	return columns([]string{"op", "dtype", "transport", "ranks", "bytes", "time", "algbw", "busbw", "copy", "raw", "gloo", "mpi", "best", "copy", "raw", "gloo", "mpi"}, lines)
}

// peerProcess is another library's benchmark, which takes sizes on its standard input and answers with times.
type peerProcess struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func startPeer(ctx context.Context, command string) (*peerProcess, error) {
	p := &peerProcess{cmd: exec.CommandContext(ctx, "sh", "-c", "exec "+command)}
	p.cmd.Stderr = os.Stderr
	p.cmd.WaitDelay = peerGrace
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.out = bufio.NewScanner(out)
	if !p.out.Scan() {
		p.stop()
		return nil, fmt.Errorf("%q ended before it was ready", command)
	}
	return p, nil
}

func (p *peerProcess) measure(size int) (t benchTime, err error) {
	if _, err := fmt.Fprintln(p.in, size); err != nil {
		return t, err
	}
	if !p.out.Scan() {
		return t, errors.New("the peer ended")
	}
	if err := json.Unmarshal(p.out.Bytes(), &t); err != nil || t.Seconds <= 0 || t.Best <= 0 {
		return t, fmt.Errorf("the peer answered %q", p.out.Text())
	}
	return t, nil
}

// peerGrace is how long a peer gets to end once its input has.
const peerGrace = 5 * time.Second

// stop ends the peer.
func (p *peerProcess) stop() {
	_ = p.in.Close()
	kill := time.AfterFunc(peerGrace, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	_ = p.cmd.Wait()
}

// runBenchTask starts the ranks of one measurement and returns what they found.
func runBenchTask(ctx context.Context, task benchTask) (benchTimes, error) {
	self, err := os.Executable()
	if err != nil {
		return benchTimes{}, err
	}
	text, err := json.Marshal(task)
	if err != nil {
		return benchTimes{}, err
	}
	transport, encryption := task.Transport, cluster.EncryptionOff
	if transport == benchTLS {
		transport, encryption = cluster.TransportTCP, cluster.EncryptionOn
	}
	results, err := cluster.Launch(ctx, cluster.Config{
		Ranks: task.Ranks, Transport: transport, TLS: encryption,
		Command: func(int) *exec.Cmd {
			c := exec.Command(self)
			c.Env = append(os.Environ(), envBenchComm+"="+string(text))
			return c
		},
	})
	if err != nil {
		return benchTimes{}, err
	}
	var t benchTimes
	return t, json.Unmarshal(results[0], &t)
}
