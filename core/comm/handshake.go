package comm

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
)

// The handshake of a connection, dialer D and acceptor A. Integers are little-endian; a message is preceded by its length
// (u16).
//
//	D → A  hello of D
//	A → D  hello of A
//	A → D  HMAC-SHA256(secret, "starling acceptor" ‖ hello of D ‖ hello of A)
//	D → A  HMAC-SHA256(secret, "starling dialer" ‖ hello of D ‖ hello of A)
//	both   verdict: empty to go on, or why this side refuses
//
//	hello  "STARLING", version u16, rank u32 (these 14 bytes are the same in every version), world u32, nonce [32],
//	       digest, class, host (each u16 length, bytes), sharing u8
//
// Nonces are fresh, so a recorded proof is worth nothing, and the two labels differ, so a proof cannot be sent back.
const (
	protocolVersion = 4
	helloMagic      = "STARLING"
	maxHello        = 4 << 10
	nonceBytes      = 32
)

// Identity is what two ranks must agree on before they exchange anything.
type Identity struct {
	Rank, World int
	Digest      string // of the recipe
	Class       string // arithmetic class: the kernels' numeric contract, CPU or GPU
	Host        string // where it runs; this one may differ
}

// HandshakeError says that two ranks do not belong together.
type HandshakeError struct {
	Rank, Peer int    // Peer is -1 where the other side did not say who it is
	Reason     string // names both values
	final      bool   // no use in trying again, and no stranger's doing
}

func (e *HandshakeError) Error() string {
	peer := fmt.Sprintf("rank %d", e.Peer)
	if e.Peer < 0 {
		peer = "an unknown process"
	}
	return fmt.Sprintf("comm: rank %d refuses %s: %s", e.Rank, peer, e.Reason)
}

type hello struct {
	version uint16
	Identity
	nonce [nonceBytes]byte
	share Sharing
}

func (h hello) encode() []byte {
	b := []byte(helloMagic)
	b = binary.LittleEndian.AppendUint16(b, h.version)
	b = binary.LittleEndian.AppendUint32(b, uint32(h.Rank))
	b = binary.LittleEndian.AppendUint32(b, uint32(h.World))
	b = append(b, h.nonce[:]...)
	for _, s := range []string{h.Digest, h.Class, h.Host} {
		b = binary.LittleEndian.AppendUint16(b, uint16(len(s)))
		b = append(b, s...)
	}
	return append(b, byte(h.share))
}

var errHello = errors.New("its greeting is malformed; is it a Starling process?")

// decodeHello parses a hello. With another version only version and rank are read.
func decodeHello(b []byte) (h hello, err error) {
	if len(b) < len(helloMagic)+6 || string(b[:len(helloMagic)]) != helloMagic {
		return h, errHello
	}
	b = b[len(helloMagic):]
	h.version = binary.LittleEndian.Uint16(b)
	h.Rank = int(int32(binary.LittleEndian.Uint32(b[2:])))
	if h.version != protocolVersion {
		return h, nil
	}
	if b = b[6:]; len(b) < 4+nonceBytes {
		return h, errHello
	}
	h.World = int(int32(binary.LittleEndian.Uint32(b)))
	copy(h.nonce[:], b[4:])
	b = b[4+nonceBytes:]
	for _, s := range []*string{&h.Digest, &h.Class, &h.Host} {
		if len(b) < 2 {
			return h, errHello
		}
		n := int(binary.LittleEndian.Uint16(b))
		if b = b[2:]; len(b) < n {
			return h, errHello
		}
		*s, b = string(b[:n]), b[n:]
	}
	if len(b) != 1 {
		return h, errHello
	}
	h.share = Sharing(b[0])
	return h, nil
}

func writeMessage(w io.Writer, b []byte) error {
	_, err := w.Write(append(binary.LittleEndian.AppendUint16(nil, uint16(len(b))), b...))
	return err
}

func readMessage(r io.Reader) ([]byte, error) {
	var n [2]byte
	if _, err := io.ReadFull(r, n[:]); err != nil {
		return nil, err
	}
	size := int(binary.LittleEndian.Uint16(n[:]))
	if size > maxHello {
		return nil, errHello
	}
	b := make([]byte, size)
	_, err := io.ReadFull(r, b)
	return b, err
}

// proof is one side's answer to the other's challenge.
func proof(secret []byte, label string, dialer, acceptor []byte) []byte {
	m := hmac.New(sha256.New, secret)
	for _, part := range [][]byte{[]byte(label), dialer, acceptor} {
		m.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(part))))
		m.Write(part)
	}
	return m.Sum(nil)
}

// handshake proves to the other side that this rank belongs to the job and learns who it is. expect is the rank that was
// dialled, or -1 when accepting. Deadlines are set on the connection by the caller.
func handshake(conn io.ReadWriter, self Identity, share Sharing, secret []byte, expect int) (Identity, error) {
	dialing := expect >= 0
	// A process that connects may be anybody until it has proven otherwise; one that listens where a rank should is fatal.
	refuse := &HandshakeError{Rank: self.Rank, Peer: expect, final: dialing}
	broken := func(err error) (Identity, error) {
		refuse.Reason = "the connection ended during the handshake: " + cut(err).Error()
		refuse.final = false
		return Identity{Rank: -1}, refuse
	}
	mine := hello{version: protocolVersion, Identity: self, share: share}
	_, _ = rand.Read(mine.nonce[:]) // never fails
	my := mine.encode()
	if len(my) > maxHello {
		return Identity{Rank: -1}, fmt.Errorf("comm: recipe digest, arithmetic class and host are longer than %d bytes", maxHello)
	}
	if dialing {
		if err := writeMessage(conn, my); err != nil {
			return broken(err)
		}
	}
	their, err := readMessage(conn)
	if err == errHello {
		refuse.Reason = err.Error()
		return Identity{Rank: -1}, refuse
	} else if err != nil {
		return broken(err)
	}
	theirs, err := decodeHello(their)
	if err != nil {
		refuse.Reason = err.Error()
		return Identity{Rank: -1}, refuse
	}
	if !dialing {
		refuse.Peer = theirs.Rank
		if err := writeMessage(conn, my); err != nil {
			return broken(err)
		}
	}
	if theirs.version != protocolVersion {
		refuse.Reason = fmt.Sprintf("it speaks protocol version %d, this rank version %d; start every rank from the same binary", theirs.version, protocolVersion)
		return Identity{Rank: -1}, refuse
	}

	labels, d, a := [2]string{"starling dialer", "starling acceptor"}, my, their
	if !dialing {
		labels[0], labels[1] = labels[1], labels[0]
		d, a = their, my
	}
	send := func() error { _, err := conn.Write(proof(secret, labels[0], d, a)); return err }
	var answer [sha256.Size]byte
	receive := func() error { _, err := io.ReadFull(conn, answer[:]); return err }
	steps := []func() error{send, receive}
	if dialing {
		steps = []func() error{receive, send}
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return broken(err)
		}
	}
	proven := hmac.Equal(answer[:], proof(secret, labels[1], d, a))
	refuse.final = dialing || proven
	refuse.Reason = judge(mine, theirs, expect, proven)
	if refuse.Reason == "" && !certified(conn, theirs.Rank) {
		refuse.Reason = fmt.Sprintf("it says that it is rank %d, and its certificate is another rank's", theirs.Rank)
	}
	if err := writeMessage(conn, []byte(refuse.Reason)); err != nil && refuse.Reason == "" {
		return broken(err)
	}
	if refuse.Reason != "" {
		return Identity{Rank: -1}, refuse
	}
	verdict, err := readMessage(conn)
	if err != nil {
		return broken(err)
	}
	if len(verdict) > 0 {
		refuse.Reason = "it refuses this rank: " + strings.ToValidUTF8(string(bytes.TrimSpace(verdict)), "?")
		return Identity{Rank: -1}, refuse
	}
	return theirs.Identity, nil
}

// judge returns why self will not talk to theirs, or "".
func judge(self, theirs hello, expect int, proven bool) string {
	switch {
	case !proven:
		return "it does not know this job's secret; it belongs to another job, or to none"
	case theirs.World != self.World:
		return fmt.Sprintf("rank %d is in a world of %d ranks, rank %d in one of %d", theirs.Rank, theirs.World, self.Rank, self.World)
	case expect >= 0 && theirs.Rank != expect:
		return fmt.Sprintf("rank %d answers at the address of rank %d", theirs.Rank, expect)
	case expect < 0 && (theirs.Rank <= self.Rank || theirs.Rank >= self.World):
		return fmt.Sprintf("rank %d may not connect to rank %d: higher ranks connect to lower ones", theirs.Rank, self.Rank)
	case theirs.Digest != self.Digest:
		return fmt.Sprintf("rank %d runs the recipe with digest %q, rank %d the one with %q; start every rank with the same recipe and parameters", theirs.Rank, theirs.Digest, self.Rank, self.Digest)
	case theirs.Class != self.Class:
		return fmt.Sprintf("rank %d computes in arithmetic class %q, rank %d in %q; their results would differ in bits, so set STARLING_BF16 on every rank to a class that all have: fma is on every processor", theirs.Rank, theirs.Class, self.Rank, self.Class)
	case theirs.share != self.share:
		return fmt.Sprintf("rank %d is set to transport %v, rank %d to %v; give every rank the same choice", theirs.Rank, theirs.share, self.Rank, self.share)
	}
	return ""
}
