package comm

import (
	"errors"
	"fmt"
	"sync"
)

// board delivers notices to the groups attached to a transport, in the order in which they came, and keeps those of groups
// that this rank has not made yet.
type board struct {
	mu     sync.Mutex
	sinks  map[uint64]Sink
	gone   map[uint64]bool // detached: later notices are dropped
	early  map[uint64][]func(Sink)
	queued int           // total of early
	lost   map[int]error // peers that cannot be reached
	failed func(Sink)    // the whole transport has failed
	onLost func(peer int, err error)
}

// maxEarly bounds the notices kept for groups that do not exist here yet.
const maxEarly = 1 << 16

func newBoard() *board {
	return &board{sinks: map[uint64]Sink{}, gone: map[uint64]bool{}, early: map[uint64][]func(Sink){}, lost: map[int]error{}}
}

func (b *board) attach(group uint64, s Sink) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sinks[group] != nil || b.gone[group] {
		return errors.New("its name and ranks were used before on this transport; choose another name")
	}
	b.sinks[group] = s
	early := b.early[group]
	b.queued -= len(early)
	delete(b.early, group)
	for _, deliver := range early {
		deliver(s)
	}
	if b.failed != nil {
		b.failed(s)
	}
	for peer, err := range b.lost {
		s.Lost(peer, err)
	}
	return nil
}

func (b *board) detach(group uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.sinks, group)
	b.gone[group] = true
}

// deliver hands a notice to its group, now or when the group is made.
func (b *board) deliver(group uint64, f func(Sink)) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch s := b.sinks[group]; {
	case s != nil:
		f(s)
	case b.gone[group]:
	case b.queued == maxEarly:
		return fmt.Errorf("more than %d notices for groups that this rank has not made", maxEarly)
	default:
		b.queued++
		b.early[group] = append(b.early[group], f)
	}
	return nil
}

func (b *board) entered(from int, e Entry) error {
	b.mu.Lock()
	s := b.sinks[e.Group]
	if s != nil {
		s.Entered(from, e) // under the lock, so that notices keep their order
	}
	b.mu.Unlock()
	if s != nil {
		return nil
	}
	return b.deliver(e.Group, func(s Sink) { s.Entered(from, e) })
}

// aborted fails one group, or with group 0 all of them, those still to be made included.
func (b *board) aborted(from int, group uint64, reason error) error {
	f := func(s Sink) { s.Aborted(from, reason) }
	if group != 0 {
		return b.deliver(group, f)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failed == nil {
		b.failed = f
		for _, s := range b.sinks {
			f(s)
		}
	}
	return nil
}

func (b *board) peerLost(peer int, err error) {
	b.mu.Lock()
	if b.lost[peer] == nil {
		b.lost[peer] = err
		for _, s := range b.sinks {
			s.Lost(peer, err)
		}
	}
	watch := b.onLost
	b.mu.Unlock()
	if watch != nil {
		watch(peer, err)
	}
}
