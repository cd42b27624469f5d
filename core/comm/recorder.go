package comm

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// Recorder is a rank's flight recorder: its last operations, and how long it has waited for each other rank to enter
// them. One serves all groups of a rank (Options.Recorder).
type Recorder struct {
	mu   sync.Mutex
	ring []Record
	next uint64
	late map[int]time.Duration
	// waited is the total of the longest wait of each operation.
	waited time.Duration
}

// Record is one operation of a rank.
type Record struct {
	Group                     string
	Seq                       uint64 // in the group, or towards one member
	Call                      Call
	Issued, Started, Finished time.Time // Started zero: still queued behind others; Finished zero: not over
	Err                       error
	Last                      int           // the rank that was waited for longest
	Late                      time.Duration // how long
}

// recorded is how many operations a Recorder keeps.
const recorded = 256

// NewRecorder returns an empty recorder.
func NewRecorder() *Recorder {
	return &Recorder{ring: make([]Record, recorded), late: map[int]time.Duration{}}
}

// begin notes an operation and returns its number. A nil recorder records nothing.
func (r *Recorder) begin(g *Group, h *Handle) uint64 {
	if r == nil {
		return 0
	}
	issued := h.Issued()
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.next
	r.next++
	r.ring[n%recorded] = Record{Group: g.name, Call: h.call, Issued: issued, Started: time.Now(), Last: -1}
	return n
}

// numbered notes which number of its group an operation has.
func (r *Recorder) numbered(n, seq uint64) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next-n <= recorded {
		r.ring[n%recorded].Seq = seq
	}
}

func (r *Recorder) end(n uint64, err error) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next-n > recorded {
		return
	}
	x := &r.ring[n%recorded]
	x.Finished, x.Err = time.Now(), err
}

// arrived notes that a rank entered the operation n so long after this one.
func (r *Recorder) arrived(n uint64, rank int, late time.Duration) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.late[rank] += late
	if x := &r.ring[n%recorded]; r.next-n <= recorded && late > x.Late {
		r.waited += late - x.Late
		x.Last, x.Late = rank, late
	}
}

// Last returns the operations kept, oldest first.
func (r *Recorder) Last() []Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Record
	for n := r.next - min(r.next, recorded); n < r.next; n++ {
		out = append(out, r.ring[n%recorded])
	}
	return out
}

// Waited returns how long this rank has waited so far, in all its operations, for the last of the others to enter them.
func (r *Recorder) Waited() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waited
}

// Lateness returns for how long this rank has waited so far for each other rank to enter what it had entered itself. Ranks
// that were never waited for are missing.
func (r *Recorder) Lateness() map[int]time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[int]time.Duration, len(r.late))
	for rank, d := range r.late {
		out[rank] = d
	}
	return out
}

// WriteTo prints the operations kept, oldest first, one a line.
func (r *Recorder) WriteTo(w io.Writer) (int64, error) {
	total := int64(0)
	for _, x := range r.Last() {
		state := "still running"
		if !x.Finished.IsZero() {
			state = "took " + x.Finished.Sub(x.Started).Round(time.Microsecond).String()
		}
		if x.Err != nil {
			state += ", failed: " + x.Err.Error()
		}
		if x.Late > 0 {
			state += fmt.Sprintf(", waited %v for rank %d", x.Late.Round(time.Microsecond), x.Last)
		}
		n, err := fmt.Fprintf(w, "%s  %s number %d of group %s, queued %v, %s\n", x.Started.Format("15:04:05.000000"), x.Call, x.Seq, x.Group,
			x.Started.Sub(x.Issued).Round(time.Microsecond), state)
		total += int64(n)
		if err != nil {
			return total, err
		}
	}
	return total, nil
}
