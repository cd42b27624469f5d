package train

import (
	"fmt"
	"time"

	"starling/core/comm"
)

// How much goes over which links: in each step by the kind of link, in each window of steps by peer as well.

// trafficPeers bounds how many peers a line of the log names.
const trafficPeers = 64

// traffic is the state of that count, on the rank that keeps the log.
type traffic struct {
	begin time.Time      // of the window; zero before the first step
	base  []comm.Traffic // what had been sent to each rank then
}

// sentByKind returns what this rank has sent so far.
func (e *Env) sentByKind() (total comm.Traffic) {
	if e.SentTo == nil {
		return total
	}
	for r := range e.World {
		if r != e.Rank {
			total = total.Add(e.SentTo(r))
		}
	}
	return total
}

// kinds are the figures of a count, by the names that they have in the log.
func kinds(t comm.Traffic) map[string]int64 {
	return map[string]int64{"memory": t.Memory, "host": t.Host, "network": t.Network}
}

// look returns the line of a window that has ended, or with last ends now.
func (t *traffic) look(e *Env, now time.Time, last bool) Metrics {
	window := now.Sub(t.begin)
	if !t.begin.IsZero() && window < lateWindow && !last {
		return nil
	}
	first := t.begin.IsZero()
	if t.begin = now; first {
		t.base = make([]comm.Traffic, min(e.World, trafficPeers))
	}
	line := Metrics{"window_s": window.Seconds()}
	for r, base := range t.base {
		if r == e.Rank {
			continue
		}
		t.base[r] = e.SentTo(r)
		for kind, n := range kinds(t.base[r].Sub(base)) {
			if n > 0 {
				line[fmt.Sprintf("sent_%s_bytes_rank%d", kind, r)] = float64(n)
			}
		}
	}
	if first {
		return nil
	}
	return line
}

// watchTraffic writes what a window has sent.
func (l *loop) watchTraffic(now time.Time) {
	if l.env.Rank != 0 || l.env.SentTo == nil {
		return
	}
	if line := l.traffic.look(&l.env, now, l.state.Step == l.total); line != nil {
		if err := l.log.write("traffic", l.state.Step, line); err != nil {
			l.env.Observe(Event{Kind: EventWarning, Text: err.Error()})
		}
	}
}
