package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"starling/core/cluster"
	"starling/core/comm"
	"starling/core/train"
)

// What passes between ranks: counted at the end of a run, and measured by doctor --links.

// hostNames gives the hosts of a transport's ranks names for people: those declared, else host0, host1, … in the order of ranks.
func hostNames(t comm.Transport) []string {
	out := make([]string, t.World())
	short := map[string]string{}
	for r := range out {
		h := comm.HostOf(t, r)
		if _, ok := short[h]; !ok {
			short[h] = h
			if h == "" || strings.Contains(h, " ") { // a machine's identity
				short[h] = fmt.Sprintf("host%d", len(short))
			}
		}
		out[r] = short[h]
	}
	return out
}

// linkPeers is up to how many ranks a run's result tells of every two of them.
const linkPeers = 64

// trafficOf says how much this rank has sent to each of the others.
func trafficOf(t comm.Transport) []train.PeerLink {
	names := hostNames(t)
	var out []train.PeerLink
	for r := range names {
		if r == t.Rank() {
			continue
		}
		sent := comm.SentTo(t, r)
		out = append(out, train.PeerLink{Rank: t.Rank(), Peer: r, Link: train.Link{From: names[t.Rank()], To: names[r],
			Payload: sent.Total(), Memory: sent.Memory, Host: sent.Host, Network: sent.Network, Wire: t.Counters(r).WireSent}})
	}
	return out
}

func addLink(all []train.Link, l train.Link) []train.Link {
	i := slices.IndexFunc(all, func(x train.Link) bool { return x.From == l.From && x.To == l.To })
	if i < 0 {
		return append(all, l)
	}
	all[i].Payload += l.Payload
	all[i].Memory += l.Memory
	all[i].Host += l.Host
	all[i].Network += l.Network
	all[i].Wire += l.Wire
	return all
}

// trafficText is the row of the table that closes a run.
func trafficText(links []train.Link) string {
	var parts []string
	for _, l := range links {
		if l.From != l.To {
			parts = append(parts, fmt.Sprintf("%s → %s %s", l.From, l.To, bytesText(l.Payload)))
			continue
		}
		var by []string
		if l.Memory > 0 {
			by = append(by, bytesText(l.Memory)+" through memory")
		}
		if l.Host > 0 {
			by = append(by, bytesText(l.Host)+" through connections")
		}
		parts = append(parts, fmt.Sprintf("within %s %s", l.From, strings.Join(by, " and ")))
	}
	return strings.Join(parts, ", ")
}

// linkReport is what doctor --links finds out about two ranks.
type linkReport struct {
	A        int     `json:"a"`
	B        int     `json:"b"`
	HostA    string  `json:"host_a"`
	HostB    string  `json:"host_b"`
	LatencyS float64 `json:"latency_s"`    // of a barrier of the two
	BytesPS  float64 `json:"bytes_per_s"`  // each way, with both directions busy, at best
	By       string  `json:"by"`           // memory, host (a connection within it) or network
	Words    string  `json:"transport"`    // how the lower rank is connected to all others
	Seconds  float64 `json:"seconds_used"` // by the measurement
}

// What is measured with: as many barriers and exchanges as fit into a share of the time, the median of them.
const (
	linkVector  = 16 << 20 // bytes that two ranks exchange, half of them each way
	linkSeconds = 0.2
)

// measureLinks measures every pair of ranks by itself, while the others wait. It returns the pairs of which this rank is the lower.
func measureLinks(ctx context.Context, w *cluster.Worker) ([]linkReport, error) {
	t := w.Transport()
	all := make([]int, w.World())
	for r := range all {
		all[r] = r
	}
	everybody, err := comm.NewGroup(t, "links", all, comm.Options{PrepareTimeout: time.Minute})
	if err != nil {
		return nil, err
	}
	defer everybody.Close()
	names := hostNames(t)
	var out []linkReport
	for a := range all {
		for b := a + 1; b < len(all); b++ {
			if err := everybody.BarrierPatient(ctx, fmt.Sprintf("before ranks %d and %d", a, b)); err != nil {
				return nil, err
			}
			if w.Rank() != a && w.Rank() != b {
				continue
			}
			begin := time.Now()
			l := linkReport{A: a, B: b, HostA: names[a], HostB: names[b], Words: t.String()}
			if err := l.measure(ctx, t); err != nil {
				return nil, err
			}
			l.Seconds = time.Since(begin).Seconds()
			if w.Rank() == a {
				out = append(out, l)
			}
		}
	}
	return out, everybody.BarrierPatient(ctx, "after the last pair")
}

func (l *linkReport) measure(ctx context.Context, t comm.Transport) error {
	g, err := comm.NewGroup(t, fmt.Sprintf("ranks %d and %d", l.A, l.B), []int{l.A, l.B}, comm.Options{})
	if err != nil {
		return err
	}
	defer g.Close()
	b := make([]float32, linkVector/4)
	gather, err := g.PrepareAllGather("exchange", comm.Chunks(len(b), 2, comm.ChunkAlign), b)
	if err != nil {
		return err
	}
	waiting, err := repeat(ctx, g, linkSeconds, func() error { return g.Barrier(ctx, "latency") })
	if err != nil {
		return err
	}
	moving, err := repeat(ctx, g, linkSeconds, func() error { return gather.Run(ctx) })
	if err != nil {
		return err
	}
	l.LatencyS, l.BytesPS = waiting.Seconds, linkVector/2/moving.Best
	switch sent := comm.SentTo(t, l.A+l.B-t.Rank()); max(sent.Memory, sent.Host, sent.Network) {
	case sent.Memory:
		l.By = "memory"
	case sent.Host:
		l.By = "host"
	default:
		l.By = "network"
	}
	return nil
}

// runLinks is a rank's part in doctor --links.
func runLinks(w *cluster.Worker) error {
	links, err := measureLinks(w.Context(), w)
	if err != nil {
		return w.Fail(err)
	}
	text, err := json.Marshal(links)
	if err != nil {
		return w.Fail(err)
	}
	return w.Done(text)
}

// hostsOfLinks returns the host of each rank, nothing where they are on one.
func hostsOfLinks(ranks int, links []linkReport) []string {
	hosts := make([]string, ranks)
	for _, l := range links {
		hosts[l.A], hosts[l.B] = l.HostA, l.HostB
	}
	if len(slices.Compact(slices.Clone(hosts))) == 1 {
		return nil
	}
	return hosts
}

// linksTable prints the two matrices.
func linksTable(ranks int, links []linkReport) string {
	var s strings.Builder
	cell := func(a, b int, f func(l linkReport) string) string {
		for _, l := range links {
			if l.A == min(a, b) && l.B == max(a, b) {
				return f(l)
			}
		}
		return "·"
	}
	if hosts := hostsOfLinks(ranks, links); len(hosts) > 0 {
		fmt.Fprintf(&s, "hosts of ranks 0 to %d: %s\n", ranks-1, strings.Join(hosts, ", "))
	}
	for _, m := range []struct {
		title string
		f     func(l linkReport) string
	}{
		{"a barrier of two ranks, µs", func(l linkReport) string { return fmt.Sprintf("%.3g", l.LatencyS*1e6) }},
		{"bandwidth each way with both directions busy, GB/s", func(l linkReport) string { return fmt.Sprintf("%.3g", l.BytesPS/1e9) }},
	} {
		fmt.Fprintf(&s, "\n%s\n%10s", m.title, "")
		for b := range ranks {
			fmt.Fprintf(&s, "%10s", fmt.Sprint("rank ", b))
		}
		s.WriteByte('\n')
		for a := range ranks {
			fmt.Fprintf(&s, "%10s", fmt.Sprint("rank ", a))
			for b := range ranks {
				fmt.Fprintf(&s, "%10s", cell(a, b, m.f))
			}
			s.WriteByte('\n')
		}
	}
	return s.String()
}
