package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"sync"
	"time"

	"starling/core/cluster"
	"starling/core/comm"
)

// What a rank leaves behind for whoever has to find out why ranks stood still.

// dataGroup makes the group of all ranks, whose members leave their stacks and last operations in the run folder when a rank is missing,
// differs or is lost.
func dataGroup(w *cluster.Worker, flat bool, timeout time.Duration, dir string) (*comm.Group, *comm.Recorder, error) {
	ranks := make([]int, w.World())
	for r := range ranks {
		ranks[r] = r
	}
	recorder := comm.NewRecorder()
	var once sync.Once // of the group and its parts
	g, err := comm.NewGroup(w.Transport(), "data", ranks, comm.Options{Timeout: timeout, Flat: flat, Recorder: recorder, OnStall: func(err error) {
		var stall *comm.StallError
		var mismatch *comm.MismatchError
		var lost *comm.PeerError
		if errors.As(err, &stall) || errors.As(err, &mismatch) || errors.As(err, &lost) && !errors.Is(err, comm.ErrLeft) { // other ends explain themselves
			once.Do(func() { saveStall(dir, w.Rank(), recorder) })
		}
	}})
	return g, recorder, err
}

// saveStall writes the stacks of all goroutines and the rank's last operations into the run folder.
func saveStall(dir string, rank int, recorder *comm.Recorder) {
	save := func(name string, write func(w io.Writer)) {
		f, err := os.Create(filepath.Join(dir, fmt.Sprintf("%s-rank%d.txt", name, rank)))
		if err != nil {
			return // the folder may be what failed
		}
		defer f.Close()
		fmt.Fprintf(f, "rank %d, %s, %d goroutines\n\n", rank, time.Now().Format(time.RFC3339), runtime.NumGoroutine())
		write(f)
	}
	save("stacks", func(w io.Writer) {
		if p := pprof.Lookup("goroutine"); p != nil {
			_ = p.WriteTo(w, 2)
		}
	})
	save("operations", func(w io.Writer) { _, _ = recorder.WriteTo(w) })
}
