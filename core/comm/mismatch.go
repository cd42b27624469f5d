package comm

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// MismatchError says that ranks entered different operations as the same collective of a group. A rank that sees it first hears what all
// the others have entered, so that every rank's report is the same.
type MismatchError struct {
	Group  string
	Seq    uint64
	Calls  []RanksCall // what was entered, by the fewest ranks first
	Absent []int       // ranks that had not entered anything yet
}

// RanksCall is an operation and the ranks that entered it.
type RanksCall struct {
	Ranks []int
	Call  string
}

func (e *MismatchError) Error() string {
	var parts []string
	for _, c := range e.Calls {
		parts = append(parts, fmt.Sprintf("%s entered %s", rankList(c.Ranks), c.Call))
	}
	if len(e.Absent) > 0 {
		parts = append(parts, fmt.Sprintf("%s had not come yet", rankList(e.Absent)))
	}
	return fmt.Sprintf("comm: collective %d of group %s: %s; every rank must enter the same collectives in the same order", e.Seq, e.Group, strings.Join(parts, ", "))
}

// Differ returns the ranks that entered something else than most did.
func (e *MismatchError) Differ() []int {
	var out []int
	for _, c := range e.Calls[:max(len(e.Calls)-1, 0)] {
		out = append(out, c.Ranks...)
	}
	slices.Sort(out)
	return out
}

// conferring is how long a rank that sees a mismatch waits for what others enter, at most.
const conferring = time.Second

// maxCalls bounds the operations that a report tells apart.
const maxCalls = 8

// mismatchOf makes the report from what each rank entered.
func mismatchOf(group string, seq uint64, calls map[int]Call, absent []int) *MismatchError {
	slices.Sort(absent)
	e := &MismatchError{Group: group, Seq: seq, Absent: absent}
	byCall := map[Call][]int{}
	for rank, c := range calls {
		c.Label = c.Label[:min(len(c.Label), entryLabel)] // as much as all ranks know of each other
		byCall[c] = append(byCall[c], rank)
	}
	var kinds []Call
	for c, ranks := range byCall {
		slices.Sort(ranks)
		kinds = append(kinds, c)
	}
	slices.SortFunc(kinds, func(a, b Call) int {
		return cmp.Or(len(byCall[a])-len(byCall[b]), byCall[b][0]-byCall[a][0])
	})
	texts := map[string]int{}
	for i := len(kinds) - 1; i >= 0; i-- { // from the most common on, beside which others are said to differ
		text := kinds[i].String()
		if texts[text]++; texts[text] > 1 {
			text += " with another root, chunk layout, lane assignment or piece size"
		}
		e.Calls = append(e.Calls, RanksCall{byCall[kinds[i]], text})
	}
	slices.Reverse(e.Calls)
	if n := len(e.Calls); n > maxCalls {
		e.Calls = e.Calls[n-maxCalls:]
	}
	return e
}

// differs notes that member m entered another call than this run's. The caller holds g.mu, or carries the run out in shared memory.
func (r *run) differs(m int, theirs Call) {
	if r.other == nil {
		r.other = map[int]Call{}
	}
	r.other[m] = theirs
	r.conflict.Store(true)
}

// confer waits until it is known what every member has entered, for a moment at most, and returns the report. look brings what is known
// up to date and sleeps for a while if that is not everything; it returns whether it is.
func (r *run) confer(look func(left time.Duration) bool) error {
	g := r.g
	for end := time.Now().Add(min(conferring, g.opt.Timeout)); ; {
		left := time.Until(end)
		if left <= 0 || look(left) {
			break
		}
		if err := g.Err(); err != nil {
			return err
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	calls := map[int]Call{g.ranks[g.self]: r.call}
	var absent []int
	for _, m := range r.others {
		theirs, differs := r.other[m]
		switch {
		case differs:
			calls[g.ranks[m]] = theirs
		case r.entered[m]:
			calls[g.ranks[m]] = r.call
		default:
			absent = append(absent, g.ranks[m])
		}
	}
	return mismatchOf(g.name, r.seq, calls, absent)
}

// broken returns the report of a mismatch, if a member has entered something else: it explains whatever else goes wrong.
func (r *run) broken() error {
	if !r.conflict.Load() {
		return nil
	}
	return r.conferAll()
}

// conferAll confers over messages.
func (r *run) conferAll() error {
	r.flush() // this member's own entry, for which the others wait
	return r.confer(func(left time.Duration) bool {
		if absent, gone := r.absent(); !absent || gone != nil {
			return true
		}
		wait := time.NewTimer(left)
		defer wait.Stop()
		select {
		case <-r.wake:
		case <-r.g.dead:
		case <-wait.C:
		}
		return false
	})
}

// explained returns why a run has failed with err: what is behind it, where a member has entered something else. Of several hosts, one
// may have noticed that by itself.
func (r *run) explained(err error) error {
	var part *MismatchError
	if errors.As(err, &part) && part.Group != r.g.name {
		why := r.conferAll()
		var whole *MismatchError
		if errors.As(why, &whole) && len(whole.Calls) < 2 {
			return err
		}
		return why
	}
	if why := r.broken(); why != nil {
		return why
	}
	return err
}

// brokenShared is broken in shared memory.
func (r *run) brokenShared() error {
	if len(r.other) == 0 {
		return nil
	}
	x := r.g.shared
	return r.confer(func(left time.Duration) bool {
		known := func() bool {
			all := true
			for _, m := range r.others {
				if !r.entered[m] {
					r.met(m)
				}
				all = all && r.entered[m]
			}
			return all
		}
		if known() {
			return true
		}
		x.heads[r.g.self].bell.Sleep(min(left, 10*time.Millisecond), func() bool { return known() || r.g.lost() })
		return known()
	})
}
