package cluster

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// job is the launcher's view of a job as a state machine: events and the clock go in, orders come out. It does no IO, so
// that every sequence of deaths and deadlines can be tested as a table.
//
//	forming → running → ended            all ranks done
//	   any → failing → ended             a rank failed: the others are told, get Grace, and are killed
//	   any → stopping → ended | failing  a stop was requested: the ranks end by themselves within StopGrace; while ranks are
//	                                     still awaited there is nothing to end in order, and the job is abandoned
//
// The first failure is not always the first event. A rank that dies breaks its connections, and a peer's report of that
// may come before the death itself: a report that blames other ranks is held as a suspicion for a moment, in which a
// failure of its own by any rank takes precedence.
type job struct {
	cfg     Config
	ranks   []member
	phase   phase
	since   time.Time // when the phase began
	joined  bool      // all ranks have been connected
	stopped bool      // a graceful stop was requested
	failure *RankError
	reason  string     // why the job was abandoned, where no rank is to blame
	suspect *RankError // a report that blames others, or that others are to make too
	until   time.Time  // when the suspicion becomes the failure
	orders  []order
	known   time.Time // when all ranks were told where the others are

	turned   int    // how many connections were turned away at the door
	stranger string // the last of them, and why
}

type phase int

const (
	forming phase = iota
	running
	failing
)

// connectTimeout bounds how long ranks take to connect once all are there: what stands between them will not go by itself.
const connectTimeout = time.Minute

// settle is how long a suspicion waits for the failure behind it.
const settle = time.Second

// member is what the launcher knows of a rank.
type member struct {
	pid       int
	awaited   bool // something else starts it, and it has no place yet
	here      bool // it has come, and waits for the others
	spoke     bool // it has said something
	addr      string
	machine   string // where it really runs
	node      string // the same for people, if it is not simply here
	connected bool
	trouble   string // why it could not connect to another, at last
	done      bool
	doneAt    time.Time
	result    []byte
	exited    bool
	killed    bool
	reported  bool      // it has said that it failed
	cut       time.Time // when its control connection ended
	garbled   string    // what came over it that should not
	heard     time.Time
	status    string
}

// order is something the launcher has to do.
type order struct {
	rank int
	kill bool // or send:
	msg  message
}

func newJob(cfg Config, now time.Time) *job {
	j := &job{cfg: cfg, ranks: make([]member, cfg.Ranks), since: now}
	for r := range j.ranks {
		j.ranks[r].heard = now
	}
	return j
}

// take returns the orders given since it was last called.
func (j *job) take() []order {
	o := j.orders
	j.orders = nil
	return o
}

func (j *job) tell(m message) {
	for r := range j.ranks {
		if !j.ranks[r].exited {
			j.orders = append(j.orders, order{rank: r, msg: m})
		}
	}
}

// over reports whether nothing remains to wait for.
func (j *job) over() bool {
	for _, m := range j.ranks {
		if !m.exited {
			return false
		}
	}
	return true
}

// started records that a rank's process runs.
func (j *job) started(rank, pid int, now time.Time) {
	j.ranks[rank].pid, j.ranks[rank].heard = pid, now
}

// message takes what a rank says.
func (j *job) message(rank int, m message, now time.Time) {
	r := &j.ranks[rank]
	r.heard, r.spoke = now, true
	switch m.Kind {
	case kindListening:
		r.addr, r.machine = m.Text, m.Machine
		if all(j.ranks, func(r member) bool { return r.addr != "" }) {
			addrs := make([]string, len(j.ranks))
			for i := range j.ranks {
				addrs[i] = j.ranks[i].addr
			}
			if rank, err := j.unreachable(); err != nil {
				e := j.errorOf(rank, "cannot be reached")
				e.Detail = err.Error()
				j.fail(e, now)
				return
			}
			j.known = now
			j.tell(message{Kind: kindPeers, Addrs: addrs})
		}
	case kindConnected:
		r.connected = true
		if j.phase == forming && all(j.ranks, func(r member) bool { return r.connected }) {
			j.joined = true
			j.phase, j.since = running, now
			j.tell(message{Kind: kindGo})
		}
	case kindTrouble:
		r.trouble = clip(m.Text)
	case kindStatus:
		r.status = clip(m.Text)
	case kindStop:
		j.stop(now)
	case kindDone:
		r.done, r.result, r.doneAt = true, m.Data, now
	case kindFailed:
		r.reported = true
		j.report(rank, m, now)
	}
}

// unreachable returns a rank that listens where those of other machines cannot come.
func (j *job) unreachable() (rank int, err error) {
	machines := map[string]bool{}
	for _, r := range j.ranks {
		machines[r.machine] = true
	}
	for rank, r := range j.ranks {
		if err := CheckInterface(r.addr, len(machines)); err != nil {
			return rank, err
		}
	}
	return 0, nil
}

// arrived records that a rank that something else started has come, and takes its first message.
func (j *job) arrived(rank int, m message, now time.Time) {
	r := &j.ranks[rank]
	r.awaited, r.pid, r.node, r.heard = false, cmp.Or(m.PID, r.pid), m.Node, now
	if j.phase == failing { // what the others were told
		j.orders = append(j.orders, order{rank: rank, msg: j.farewell()})
	}
}

// report takes a rank's own account of its failure.
func (j *job) report(rank int, m message, now time.Time) {
	blame := slices.DeleteFunc(slices.Clone(m.Blame), func(r int) bool { return r < 0 || r >= len(j.ranks) || r == rank })
	e := j.errorOf(rank, "failed")
	if len(blame) > 0 {
		e = j.errorOf(blame[0], fmt.Sprintf("is blamed by rank %d", rank))
	}
	e.Detail = clip(m.Text)
	switch {
	case len(m.Blame) == 0:
		j.fail(e, now)
	case j.suspect == nil && j.phase != failing:
		j.suspect, j.until = e, now.Add(settle)
	}
}

// hungUp records that a rank's control connection has ended; its death usually follows. why is set if it ended because of what came.
func (j *job) hungUp(rank int, why string, now time.Time) {
	if r := &j.ranks[rank]; r.cut.IsZero() {
		r.cut, r.garbled = now, why
	}
}

// exited takes the end of a rank; cause says how it ended, "" for exit code 0.
func (j *job) exited(rank int, cause string, now time.Time) {
	r := &j.ranks[rank]
	r.exited = true
	switch {
	case j.phase == failing || r.reported:
	case r.done && cause == lostGuest: // all that is seen of its end
	case cause != "":
		j.fail(j.silentEnd(rank, cause), now)
	case !r.done && !j.stopped:
		j.fail(j.silentEnd(rank, "ended without a result"), now)
	}
	if j.suspect != nil && j.over() { // nobody is left to say more
		j.fail(j.suspect, now)
	}
}

// silentEnd describes the end of a rank. One that was to be started on another host and has never spoken may not have been started at all.
func (j *job) silentEnd(rank int, cause string) *RankError {
	e := j.errorOf(rank, cause)
	if p := j.cfg.place(rank); len(p.Start) > 0 && !j.ranks[rank].spoke {
		e.Detail = "the program there has said nothing; try by hand what starts it: " + p.byHand()
	}
	return e
}

// hangUpOf describes the end of the control connection of a rank that lives on.
func (j *job) hangUpOf(rank int) *RankError {
	garbled := j.ranks[rank].garbled
	if garbled == "" {
		return j.errorOf(rank, "closed its control connection and lives on")
	}
	e := j.errorOf(rank, "sent over its control connection what it should not")
	e.Detail = garbled
	if p := j.cfg.place(rank); len(p.Start) > 0 {
		e.Detail += fmt.Sprintf("; something prints over there: try by hand %s", p.byHand())
	}
	return e
}

// stop asks all ranks to end when convenient.
func (j *job) stop(now time.Time) {
	if j.stopped || j.phase == failing {
		return
	}
	j.stopped = true
	if !all(j.ranks, func(r member) bool { return !r.awaited }) {
		j.abandon("a stop was asked for before all ranks had come", now)
		return
	}
	j.since = now
	j.tell(message{Kind: kindStop})
}

// fail ends the job because of e, unless it is ending already.
func (j *job) fail(e *RankError, now time.Time) {
	if j.phase == failing {
		return
	}
	j.failure = e
	j.phase, j.since = failing, now
	j.tell(j.farewell())
}

// abandon ends the job on the launcher's own account: no rank is to blame.
func (j *job) abandon(reason string, now time.Time) {
	if j.phase != failing {
		j.phase, j.since = failing, now
		j.reason = reason
		j.tell(j.farewell())
	}
}

// farewell tells ranks why a failing job ends.
func (j *job) farewell() message {
	if j.failure != nil {
		return message{Kind: kindFail, Rank: j.failure.Rank, Text: j.failure.headline(), Gone: !j.ranks[j.failure.Rank].reported}
	}
	return message{Kind: kindFail, Rank: -1, Text: "cluster: " + j.reason}
}

// errorOf describes the failure of a rank as of now.
func (j *job) errorOf(rank int, cause string) *RankError {
	r := j.ranks[rank]
	return &RankError{Rank: rank, PID: r.pid, Host: cmp.Or(r.node, j.cfg.place(rank).Host), Cause: cause, Status: r.status, Joined: j.joined}
}

// troubles says why ranks that know of each other could not connect, as far as they have said.
func (j *job) troubles() string {
	var said []string
	for r, m := range j.ranks {
		if m.trouble != "" && !m.connected && len(said) < 4 {
			said = append(said, fmt.Sprintf("rank %d says: %s", r, m.trouble))
		}
	}
	if len(said) == 0 {
		return ""
	}
	return strings.Join(said, "; ") + "; see that every host reaches this address: --listen names the interface or subnet and the ports, and a firewall must let them through"
}

// absence says which processes have not come to the rendezvous, and what there is to look at. first is one of them.
func (j *job) absence(first int) *RankError {
	var missing []string
	for n, m := range j.ranks {
		if m.awaited && !m.here {
			missing = append(missing, strconv.Itoa(n))
		}
	}
	const most = 16
	more := ""
	if len(missing) > most {
		more = fmt.Sprintf(" and %d more", len(missing)-most)
		missing = missing[:most]
	}
	cause := fmt.Sprintf("of the %d processes, these did not join the job at %s within %v: %s%s; see that they were started, with the same secret (%s) and this meeting place, and that no firewall keeps them from it",
		len(j.ranks), j.cfg.Rendezvous.At(), j.cfg.JoinTimeout, strings.Join(missing, ", "), more, envSecret)
	if j.turned > 0 {
		cause += fmt.Sprintf("; connections turned away there: %d, the last from %s", j.turned, j.stranger)
	}
	e := j.errorOf(first, cause)
	e.absent = true
	return e
}

// tick looks at the clock.
func (j *job) tick(now time.Time) {
	if j.phase == failing {
		if now.Sub(j.since) >= j.cfg.Grace {
			for r := range j.ranks {
				if m := &j.ranks[r]; !m.exited && !m.killed {
					m.killed = true
					j.orders = append(j.orders, order{rank: r, kill: true})
				}
			}
		}
		return
	}
	for r := range j.ranks {
		m := &j.ranks[r]
		switch {
		case m.exited, m.awaited:
		case m.done && now.Sub(m.doneAt) >= j.cfg.StopGrace:
			j.fail(j.errorOf(r, fmt.Sprintf("did not end within %v of its result", j.cfg.StopGrace)), now)
			return
		case m.done:
		case !m.cut.IsZero() && now.Sub(m.cut) >= settle:
			j.fail(j.hangUpOf(r), now)
			return
		case now.Sub(m.heard) >= j.cfg.Silence:
			j.fail(j.errorOf(r, fmt.Sprintf("gave no sign of life for %v", j.cfg.Silence)), now)
			return
		}
	}
	switch {
	case j.suspect != nil && !now.Before(j.until):
		j.fail(j.suspect, now)
	case j.stopped && now.Sub(j.since) >= j.cfg.StopGrace:
		j.abandon(fmt.Sprintf("the job did not stop within %v", j.cfg.StopGrace), now)
	case j.phase == forming && !j.stopped:
		at, rank, cause := j.late()
		switch {
		case rank < 0 || now.Before(at):
		case j.ranks[rank].awaited:
			j.fail(j.absence(rank), now)
		case !j.known.IsZero():
			e := j.errorOf(rank, cause)
			e.Detail = j.troubles()
			j.fail(e, now)
		default:
			j.fail(j.errorOf(rank, cause), now)
		}
	}
}

// late returns which rank keeps the others from meeting, until when it is waited for, and what it has not done by then; -1 if none is
// given up as yet. A rank that has spoken may prepare for as long as it gives signs of life, which tick sees to: it loads a recipe, plugins, data.
func (j *job) late() (at time.Time, rank int, cause string) {
	first := func(what func(member) bool) int { return slices.IndexFunc(j.ranks, what) }
	limit := j.cfg.JoinTimeout
	if rank = first(func(m member) bool { return m.awaited && !m.here }); rank < 0 { // whoever has come waits for those who have not
		rank = first(func(m member) bool { return m.addr == "" && !m.spoke })
	}
	if rank >= 0 {
		return j.since.Add(limit), rank, fmt.Sprintf("did not join the job within %v", limit)
	}
	if j.known.IsZero() {
		return at, -1, ""
	}
	limit = min(limit, connectTimeout)
	return j.known.Add(limit), first(func(m member) bool { return !m.connected }), fmt.Sprintf("did not connect to the other ranks within %v", limit)
}

// next returns when tick has to be called if nothing happens before.
func (j *job) next() time.Time {
	var at time.Time
	by := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	if j.phase == failing {
		if !all(j.ranks, func(m member) bool { return m.exited || m.killed }) {
			by(j.since.Add(j.cfg.Grace))
		}
		return at
	}
	for _, m := range j.ranks {
		switch {
		case m.exited, m.awaited:
		case m.done:
			by(m.doneAt.Add(j.cfg.StopGrace))
		default:
			by(m.heard.Add(j.cfg.Silence))
			if !m.cut.IsZero() {
				by(m.cut.Add(settle))
			}
		}
	}
	if j.suspect != nil {
		by(j.until)
	}
	if j.stopped {
		by(j.since.Add(j.cfg.StopGrace))
	} else if j.phase == forming {
		if at, rank, _ := j.late(); rank >= 0 {
			by(at)
		}
	}
	return at
}

// result returns what the job came to, once it is over.
func (j *job) result() ([][]byte, error) {
	switch {
	case j.failure != nil:
		return nil, j.failure
	case j.phase == failing:
		return nil, fmt.Errorf("%w: %s", ErrStopped, j.reason)
	}
	out := make([][]byte, len(j.ranks))
	for r, m := range j.ranks {
		out[r] = m.result
	}
	return out, nil
}

func all(ranks []member, f func(member) bool) bool {
	return !slices.ContainsFunc(ranks, func(m member) bool { return !f(m) })
}
