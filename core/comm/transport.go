package comm

import (
	"errors"
	"time"
)

// Transport moves messages between this rank and its peers.
//
// A message is sent when both sides have named it: the receiver offers memory under a Key (Recv), the sender hands over
// bytes under the same Key (Send), in either order and without blocking; each side's Completer is told when its part is
// over. A key is used once in each direction between two ranks. The lengths must agree; if they do not, at least one side
// completes with an error. Memory handed over must not be touched until completion; where it completes with an error it
// may still be read or written until Close has returned.
//
// Notices (Enter, Abort) travel beside messages, need no offer, and may overtake them, never each other.
//
// What is handed over may stay where it is until Flush, so that all of it can leave at once, in the caller's time; Abort
// and Fail need none.
type Transport interface {
	// String says for people how the ranks are connected.
	String() string
	// Rank returns this rank and World the number of ranks.
	Rank() int
	World() int

	// Send hands payload over to rank to. The completion comes when payload may be reused.
	Send(to int, key Key, payload []byte, done Completer, id uint64)
	// Recv offers buf to rank from. The completion comes when buf is full.
	Recv(from int, key Key, buf []byte, done Completer, id uint64)

	// Flush sets off what has been handed over for rank to. It does not wait for anything.
	Flush(to int)

	// Enter tells rank to which collective this rank has entered.
	Enter(to int, n Entry)
	// Abort tells rank to that a group has failed and why, or with a *Doubt that this rank fears so.
	Abort(to int, group uint64, reason error)

	// Attach delivers the notices of a group to s, those that came before included; it fails if the group is attached.
	Attach(group uint64, s Sink) error
	// Detach ends delivery for a group.
	Detach(group uint64)

	// Counters returns what has passed between this rank and peer.
	Counters(peer int) Counters
	// LastHeard returns when the peer last gave a sign of life.
	LastHeard(peer int) time.Time

	// Fail ends everything: every group here and on every peer that can be reached fails with reason.
	Fail(reason error)
	// Close says goodbye to the peers, ends all goroutines and releases all memory handed over. Unfinished messages complete
	// with an error on both sides.
	Close() error
}

// Key names one message between two ranks: the group, whether it belongs to a collective or to a point-to-point stream,
// the sequence number there, and the index of the message within it.
type Key struct {
	Group  uint64
	Seq    uint64
	Index  uint32
	Stream Stream
}

// Stream separates the sequence numbers of collectives and of point-to-point messages.
type Stream uint8

// The streams of a group.
const (
	StreamCollective Stream = iota // one number per collective of the group
	StreamSend                     // one number per message, counted by the sender towards one receiver
	StreamRecv                     // the same number, announced by the receiver
	streamCount
)

// Completer is told when a Send or Recv is over. It must not block.
type Completer interface {
	Complete(id uint64, err error)
}

// Entry announces that a rank has entered a collective (or a point-to-point call).
type Entry struct {
	Group  uint64
	Seq    uint64
	Stream Stream
	Call   Call
}

// Call says what a rank entered; the members of a group must agree on it.
type Call struct {
	Op      Op
	Element Element // of the vector, or Untyped
	Combine Combine // of a reduction
	Bytes   int64   // size of the vector, or -1 where ranks may differ
	Detail  uint64  // digest of whatever else must agree: root, chunks, lanes
	Label   string  // the caller's words: bucket, block, recipe line
}

// Sink receives the notices of one group. Its methods must not block or call the transport.
type Sink interface {
	Entered(from int, e Entry)
	Aborted(from int, reason error)
	// Lost reports that peer can no longer be reached; err wraps ErrLeft if it closed its transport in good order.
	Lost(peer int, err error)
}

// ErrLeft marks a peer that closed its transport in good order.
var ErrLeft = errors.New("it has left the job")

// ErrClosed is returned by operations on a transport or group that this rank has closed.
var ErrClosed = errors.New("comm: closed")

// Counters counts bytes between two ranks. Payload is what was handed over or read in shared memory; wire is what went
// through a connection, frames and notices included (equal to payload where the transport has no connections).
type Counters struct {
	PayloadSent, PayloadReceived int64
	WireSent, WireReceived       int64
}

// Sum returns the total of the counters over all peers of t.
func Sum(t Transport) Counters {
	var s Counters
	for p := range t.World() {
		if p == t.Rank() {
			continue
		}
		c := t.Counters(p)
		s.PayloadSent += c.PayloadSent
		s.PayloadReceived += c.PayloadReceived
		s.WireSent += c.WireSent
		s.WireReceived += c.WireReceived
	}
	return s
}

// Op is a kind of collective.
type Op uint8

// The operations of a group.
const (
	OpBarrier Op = iota + 1
	OpBroadcast
	OpAllGather
	OpAllGatherBytes
	OpGather
	OpReduceScatterTree
	OpAllReduceTree
	OpSend
	OpAllToAll
	OpScatter
	OpAllReduceOf
	OpReduceScatterOf
	opCount
)

// String returns the name used in errors and traces, such as all_reduce.
func (o Op) String() string {
	names := [...]string{"none", "barrier", "broadcast", "all_gather", "all_gather_bytes", "gather", "reduce_scatter", "all_reduce", "send_recv", "all_to_all", "scatter", "all_reduce", "reduce_scatter"}
	if int(o) < len(names) {
		return names[o]
	}
	return "unknown"
}
