package comm

// Traffic counts the payload bytes that a rank has sent, by the kind of link that took them.
type Traffic struct {
	Memory  int64 // memory that both ranks have mapped, or of one process
	Host    int64 // connections within a host
	Network int64 // between hosts
}

// Total is all of them.
func (t Traffic) Total() int64 { return t.Memory + t.Host + t.Network }

// Add returns the sum of two.
func (t Traffic) Add(o Traffic) Traffic {
	return Traffic{t.Memory + o.Memory, t.Host + o.Host, t.Network + o.Network}
}

// Sub returns what t has beyond o.
func (t Traffic) Sub(o Traffic) Traffic {
	return Traffic{t.Memory - o.Memory, t.Host - o.Host, t.Network - o.Network}
}

// SentTo returns what this rank of t has sent to peer.
func SentTo(t Transport, peer int) Traffic {
	var out Traffic
	sent := t.Counters(peer).PayloadSent
	if m, ok := t.(interface{ memorySent(peer int) int64 }); ok {
		out.Memory = min(m.memorySent(peer), sent) // it goes on counting
	}
	if sent -= out.Memory; HostOf(t, peer) == HostOf(t, t.Rank()) {
		out.Host = sent
	} else {
		out.Network = sent
	}
	return out
}

// SentByKind returns what this rank of t has sent to all others.
func SentByKind(t Transport) Traffic {
	var out Traffic
	for p := range t.World() {
		if p != t.Rank() {
			out = out.Add(SentTo(t, p))
		}
	}
	return out
}

// memorySent is what went to a peer through memory.
func (h *hostTransport) memorySent(peer int) int64 {
	if peer < 0 || peer >= len(h.moved) {
		return 0
	}
	return h.moved[peer].sent.Load()
}

// memorySent is everything between ranks of one process, unless they count as running on several hosts.
func (l *local) memorySent(peer int) int64 {
	if l.hostOf(peer) != l.hostOf(l.rank) {
		return 0
	}
	return l.Counters(peer).PayloadSent
}
