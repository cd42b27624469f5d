package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"time"

	"starling/core/comm"
)

// What a rank leaves behind for whoever has to find out why ranks stood still, and what it says about ranks that hold the
// others up.

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

// How often stragglers are looked for, how much of that time must have gone into waiting for one rank, and for how long a
// rank is not named again.
const (
	stragglerWindow = 10 * time.Second
	stragglerShare  = 0.2
	stragglerQuiet  = time.Minute
)

// watchStragglers says which rank this one keeps waiting for, until ctx ends.
func watchStragglers(ctx context.Context, rank int, recorder *comm.Recorder, say func(text string)) {
	tick := time.NewTicker(stragglerWindow)
	defer tick.Stop()
	var w stragglers
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if text := w.look(rank, now, recorder.Lateness()); text != "" {
				say(text)
			}
		}
	}
}

// stragglers is the state of that watch.
type stragglers struct {
	last  time.Time
	late  map[int]time.Duration
	named map[int]time.Time
}

// look compares the waiting since the last look with the time that has passed. The first look only remembers: until then
// ranks were preparing.
func (s *stragglers) look(rank int, now time.Time, late map[int]time.Duration) string {
	before, since := s.late, now.Sub(s.last)
	first := s.last.IsZero()
	s.last, s.late = now, late
	if first {
		s.named = map[int]time.Time{}
		return ""
	}
	worst, most := -1, time.Duration(0)
	for other, d := range late {
		if d -= before[other]; d > most || d == most && other < worst {
			worst, most = other, d
		}
	}
	if float64(most) < stragglerShare*float64(since) || now.Sub(s.named[worst]) < stragglerQuiet {
		return ""
	}
	s.named[worst] = now
	return fmt.Sprintf("rank %d spent %.0f%% of the last %v waiting for rank %d, which is slower or has more to do",
		rank, 100*most.Seconds()/since.Seconds(), since.Round(time.Second), worst)
}
