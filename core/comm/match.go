package comm

import "fmt"

// message is one side of a message: memory to read from or write to, and whom to tell.
type message struct {
	buf  []byte
	done Completer
	id   uint64
}

func (m message) complete(err error) { m.done.Complete(m.id, err) }

// lengthError says that the two sides of a message disagree.
func lengthError(from, to, sent, offered int) error {
	return fmt.Errorf("comm: rank %d sends %d bytes where rank %d expects %d", from, sent, to, offered)
}

// addressError is the answer to a message or notice addressed to its own sender, or to a rank that does not exist.
func addressError(self, peer, world int) error {
	return fmt.Errorf("comm: rank %d cannot exchange messages with rank %d in a world of %d", self, peer, world)
}
