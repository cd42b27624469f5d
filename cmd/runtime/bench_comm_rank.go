package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"starling/core/cluster"
	"starling/core/comm"
	"starling/core/device/cpu"
	"starling/core/tensor"
)

// One measurement of bench comm, as a rank process sees it.

const envBenchComm = "STARLING_BENCH_COMM"

var benchOps = []string{"all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "gather", "scatter", "barrier", benchFast + "ring", benchFast + "doubling"}

// benchFast are sums outside the canonical order.
const benchFast = "all_reduce_"

// benchTask travels to the ranks in the environment.
type benchTask struct {
	Op, DType, Transport string
	Ranks, Bytes         int
	Seconds              float64
}

// benchTimes is what a measurement gives.
type benchTimes struct {
	Op   benchTime
	Copy benchTime // every rank copies Bytes
	Raw  benchTime // two ranks exchange Bytes over a bare TCP connection; 0 for other transports and numbers of ranks
}

func isBenchWorker() bool { return os.Getenv(envBenchComm) != "" && cluster.IsWorker() }

func benchWorkerMain() int {
	err := func() error {
		var task benchTask
		if err := json.Unmarshal([]byte(os.Getenv(envBenchComm)), &task); err != nil {
			return fmt.Errorf("%s: %w", envBenchComm, err)
		}
		w, err := cluster.Join(context.Background(), cluster.JoinConfig{Digest: "bench comm", Class: arithmeticClass(nil), Cores: cpu.Cores()})
		if err != nil {
			return err
		}
		makeRoom(1)
		t, err := task.run(w)
		if err != nil {
			return w.Fail(err)
		}
		b, err := json.Marshal(t)
		if err != nil {
			return w.Fail(err)
		}
		return w.Done(b)
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func (t benchTask) run(w *cluster.Worker) (times benchTimes, err error) {
	ctx := w.Context()
	ranks := make([]int, t.Ranks)
	for r := range ranks {
		ranks[r] = r
	}
	g, err := comm.NewGroup(w.Transport(), "bench", ranks, comm.Options{})
	if err != nil {
		return times, err
	}
	defer g.Close()
	e, err := comm.ParseElement(t.DType)
	if err != nil {
		return times, err
	}
	n := max(t.Bytes/e.Size(), 1) * e.Size()
	buf := make([]byte, n)
	if m, err := g.Allocate(n); err != nil { // as gradients lie
		return times, err
	} else if m != nil {
		defer m.Free()
		buf = m.Bytes()
	}
	if e == comm.Float32 {
		for i, x := 0, tensor.View[float32](buf); i < len(x); i++ {
			x[i] = 1e-30 // sums stay finite and normal however often it is reduced
		}
	}
	op, err := t.prepare(g, buf, e)
	if err != nil {
		return times, err
	}
	if times.Op, err = repeat(ctx, g, t.Seconds, op); err != nil {
		return times, err
	}
	dst := make([]byte, n)
	if times.Copy, err = repeat(ctx, g, t.Seconds/2, func() error { copy(dst, buf); return nil }); err != nil {
		return times, err
	}
	if (t.Transport == cluster.TransportTCP || t.Transport == benchTLS) && t.Ranks == 2 {
		times.Raw, err = rawExchange(ctx, g, t.Seconds/2, buf, dst)
	}
	return times, err
}

// prepare returns what is repeated.
func (t benchTask) prepare(g *comm.Group, buf []byte, e comm.Element) (func() error, error) {
	ctx := context.Background()
	chunks := comm.Chunks(len(buf)/e.Size(), g.Size(), comm.ChunkAlign)
	own := buf[chunks[g.Rank()].Lo*e.Size() : chunks[g.Rank()].Hi*e.Size()]
	var c *comm.Collective
	var err error
	switch t.Op {
	case "all_reduce":
		c, err = g.PrepareAllReduceOf("bench", buf, e, comm.CombineSum)
	case benchFast + "ring", benchFast + "doubling":
		var a comm.Algorithm
		if a, err = comm.ParseAlgorithm(strings.TrimPrefix(t.Op, benchFast)); err != nil {
			return nil, err
		}
		c, err = g.PrepareAllReduceFast("bench", a, tensor.View[float32](buf))
	case "reduce_scatter":
		c, err = g.PrepareReduceScatterOf("bench", chunks, buf, e, comm.CombineSum)
	case "all_gather":
		c, err = g.PrepareAllGatherOf("bench", chunks, buf, e)
	case "broadcast":
		c, err = g.PrepareBroadcastOf("bench", 0, buf, e)
	case "all_to_all":
		even := make([]comm.Range, g.Size()) // both sides of each part must have one length
		for m, each := 0, len(buf)/e.Size()/g.Size(); m < len(even); m++ {
			even[m] = comm.Range{Lo: m * each, Hi: (m + 1) * each}
		}
		c, err = g.PrepareAllToAllOf("bench", even, buf, even, make([]byte, len(buf)), e)
	case "gather":
		c, err = g.PrepareGatherOf("bench", 0, bytes.Clone(own), chunks, buf, e)
	case "scatter":
		c, err = g.PrepareScatterOf("bench", 0, chunks, buf, bytes.Clone(own), e)
	case "barrier":
		return func() error { return g.Barrier(ctx, "bench") }, nil
	default:
		return nil, fmt.Errorf("no operation %q", t.Op)
	}
	if err != nil {
		return nil, err
	}
	return func() error { return c.Start().Wait(ctx) }, nil
}

// repeat runs f on all ranks for about so many seconds and returns what the slowest rank needed.
func repeat(ctx context.Context, g *comm.Group, seconds float64, f func() error) (t benchTime, err error) {
	if err := f(); err != nil { // touch everything once
		return t, err
	}
	if err := g.Barrier(ctx, "warm"); err != nil {
		return t, err
	}
	begin := time.Now()
	for range 2 {
		if err := f(); err != nil {
			return t, err
		}
	}
	all, err := g.AllGatherFloat64(ctx, "once", []float64{time.Since(begin).Seconds() / 2})
	if err != nil {
		return t, err
	}
	times := make([]float64, int(min(max(seconds/max(all[0][0], 1e-7), 5), 2000)))
	if err := g.Barrier(ctx, "go"); err != nil {
		return t, err
	}
	for i := range times {
		begin := time.Now()
		if err := f(); err != nil {
			return t, err
		}
		times[i] = time.Since(begin).Seconds()
	}
	if all, err = g.AllGatherFloat64(ctx, "times", times); err != nil {
		return t, err
	}
	for _, theirs := range all {
		for i := range times {
			times[i] = max(times[i], theirs[i])
		}
	}
	slices.Sort(times)
	return benchTime{times[len(times)/2], times[0]}, nil
}

// rawExchange times two processes that send each other the bytes of a vector over one bare connection, both directions at
// once.
func rawExchange(ctx context.Context, g *comm.Group, seconds float64, src, dst []byte) (t benchTime, err error) {
	var conn net.Conn
	if g.Rank() == 0 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return t, err
		}
		defer l.Close()
		if _, err := g.AllGatherBytes(ctx, "address", []byte(l.Addr().String())); err != nil {
			return t, err
		}
		if conn, err = l.Accept(); err != nil {
			return t, err
		}
	} else {
		all, err := g.AllGatherBytes(ctx, "address", nil)
		if err != nil {
			return t, err
		}
		if conn, err = net.Dial("tcp", string(all[0])); err != nil {
			return t, err
		}
	}
	defer conn.Close()
	comm.Tune(conn) // as our own connections are
	return repeat(ctx, g, seconds, func() error {
		sent := make(chan error, 1)
		go func() {
			_, err := conn.Write(src)
			sent <- err
		}()
		if _, err := io.ReadFull(conn, dst); err != nil {
			return err
		}
		return <-sent
	})
}
