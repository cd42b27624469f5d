package comm

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// What ranks do about a deadline that has passed. Whom a rank waits for may itself wait for somebody else, so who notices
// first does not know who is to blame, and several notice at once. They confer: a rank whose deadline has passed tells all
// members whom it waits for, every member that waits as well answers with whom, and a rank that others wait for and that
// does not is the one that holds them up. After a moment the lowest of those that wait says so, and all return its report.
// Parts of a group and sums over several hosts wait in groups of their own; what they find is the whole group's.

// Doubt says that a call of a rank waits for others; with nothing in Wait, that this is over. It travels as the reason of an
// Abort that is none yet.
type Doubt struct {
	Rank    int
	Call    uint64      // tells that rank's calls apart
	Overdue bool        // its deadline has passed; else it answers somebody whose deadline has
	Wait    *StallError `json:",omitempty"`
}

func (d *Doubt) Error() string {
	if d.Wait == nil {
		return fmt.Sprintf("comm: rank %d waits no longer", d.Rank)
	}
	return fmt.Sprintf("comm: rank %d asks: %v", d.Rank, d.Wait)
}

func (d *Doubt) same(e *Doubt) bool {
	return e != nil && d.Overdue == e.Overdue && slices.Equal(d.Wait.Missing, e.Wait.Missing) && slices.Equal(d.Wait.Waiting, e.Wait.Waiting)
}

// names returns the ranks that the call waits for.
func (d *Doubt) names() []int { return slices.Concat(d.Wait.Missing, d.Wait.Waiting) }

// How long ranks confer before the lowest decides, at least and at most, and how many times longer others do, in case it stands still.
const (
	doubtLeast   = 500 * time.Millisecond
	doubtMost    = 2 * time.Second
	doubtPatient = 3
)

// doubts is what the members of a group know of each other's waits.
type doubts struct {
	active atomic.Bool // some call is overdue
	mu     sync.Mutex
	calls  uint64                    // of this rank that have asked or answered
	heard  map[int]map[uint64]*Doubt // by rank, this one included, and call
}

// root is the group in which a group's members confer: the one of which it is a part.
func (g *Group) root() *Group {
	for g.whole != nil {
		g = g.whole
	}
	return g
}

func (g *Group) doubtWindow() time.Duration { return min(max(g.opt.Timeout/4, doubtLeast), doubtMost) }

// doubt takes the wait of a run that is overdue, or that others ask for. It returns the report in which it ends, nil while
// it may go on.
func (r *run) doubt(mine *StallError, overdue bool) error {
	if len(mine.Missing)+len(mine.Waiting) == 0 {
		r.resolved() // what it waited for has just come
		return nil
	}
	root := r.g.root()
	if err := root.Err(); err != nil {
		return err // of the whole, which is not told to its parts
	}
	d, now := &root.doubts, time.Now()
	d.mu.Lock()
	if !overdue && !d.active.Load() {
		d.mu.Unlock()
		return nil
	}
	if r.doubts == 0 {
		d.calls++
		r.doubts = d.calls
	}
	said := &Doubt{Rank: root.t.Rank(), Call: r.doubts, Overdue: overdue, Wait: mine}
	old := d.heard[said.Rank][said.Call]
	if old == nil {
		r.doubted = now
	}
	d.put(said)
	limit := root.doubtWindow()
	if d.active.Load() && slices.Min(slices.Collect(maps.Keys(d.heard))) != said.Rank {
		limit *= doubtPatient
	}
	var report *StallError
	if d.active.Load() && now.Sub(r.doubted) >= limit {
		report = d.verdict()
	}
	d.mu.Unlock()
	if report != nil {
		return report
	}
	if !said.same(old) {
		root.ask(said)
	}
	return nil
}

// resolved withdraws what a run has said of its wait: the wait is over.
func (r *run) resolved() {
	if r.doubts == 0 {
		return
	}
	root := r.g.root()
	over := &Doubt{Rank: root.t.Rank(), Call: r.doubts}
	r.doubts = 0
	root.doubts.mu.Lock()
	root.doubts.put(over)
	root.doubts.mu.Unlock()
	root.ask(over)
}

// ask tells all members.
func (g *Group) ask(d *Doubt) {
	for m, r := range g.ranks {
		if m != g.self {
			g.t.Abort(r, g.id, d)
		}
	}
}

// hear takes what another rank says.
func (d *doubts) hear(from int, said *Doubt) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if said.Rank == from && (said.Wait == nil || len(said.names()) > 0) {
		d.put(said)
	}
}

// gone forgets what a rank has said that has left.
func (d *doubts) gone(rank int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.heard, rank)
	d.settle()
}

// maxDoubts bounds what is kept of each rank.
const maxDoubts = 64

// put keeps what a rank says of a call, or forgets the call. The caller holds mu.
func (d *doubts) put(said *Doubt) {
	calls := d.heard[said.Rank]
	switch {
	case said.Wait == nil:
		if delete(calls, said.Call); len(calls) == 0 {
			delete(d.heard, said.Rank)
		}
	case calls == nil:
		if d.heard == nil {
			d.heard = map[int]map[uint64]*Doubt{}
		}
		d.heard[said.Rank] = map[uint64]*Doubt{said.Call: said}
	case calls[said.Call] != nil || said.Overdue || len(calls) < maxDoubts:
		calls[said.Call] = said
	}
	d.settle()
}

// settle notes whether any call is overdue. If none is, answers are of no more interest. The caller holds mu.
func (d *doubts) settle() {
	active := false
	for _, calls := range d.heard {
		for _, c := range calls {
			active = active || c.Overdue
		}
	}
	if !active {
		d.heard = nil
	}
	d.active.Store(active)
}

// verdict says whom the overdue calls wait for in the end: those that do not wait themselves, or everybody where each waits for
// another. The caller holds mu, and some call is overdue.
func (d *doubts) verdict() *StallError {
	reached := map[int]bool{} // ranks that an overdue call waits for, or that those wait for
	var follow func(c *Doubt)
	follow = func(c *Doubt) {
		for _, rank := range c.names() {
			if !reached[rank] {
				reached[rank] = true
				for _, next := range d.heard[rank] {
					follow(next)
				}
			}
		}
	}
	for _, calls := range d.heard {
		for _, c := range calls {
			if c.Overdue {
				follow(c)
			}
		}
	}
	circle := true
	for rank := range reached {
		circle = circle && d.heard[rank] != nil
	}
	blamed := func(rank int) bool { return reached[rank] && (circle || d.heard[rank] == nil) }

	// The report is of the longest wait for one of these.
	var longest *StallError
	came := map[int]bool{} // by rank to blame: somebody has seen it enter
	for _, rank := range slices.Sorted(maps.Keys(d.heard)) {
		for _, call := range slices.Sorted(maps.Keys(d.heard[rank])) {
			w := d.heard[rank][call].Wait
			for i, named := range d.heard[rank][call].names() {
				if !blamed(named) {
					continue
				}
				came[named] = came[named] || i >= len(w.Missing)
				if longest == nil || longest.After < w.After {
					longest = w
				}
			}
		}
	}
	if longest == nil { // nobody is named
		return nil
	}
	out := *longest
	out.Missing, out.Waiting = nil, nil
	for _, rank := range slices.Sorted(maps.Keys(came)) {
		if came[rank] {
			out.Waiting = append(out.Waiting, rank)
		} else {
			out.Missing = append(out.Missing, rank)
		}
	}
	out.Silent = out.Silent && slices.Equal(out.Missing, longest.Missing) && len(out.Waiting) == 0
	return &out
}
