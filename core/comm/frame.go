package comm

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
)

// The wire format between two ranks, after the handshake: a sequence of frames in each direction, little-endian.
//
//	offset size
//	     0    2  magic 0x5453 ("ST")
//	     2    1  kind
//	     3    1  stream
//	     4    4  index of the message within its collective
//	     8    8  group
//	    16    8  sequence number
//	    24    8  length: of the body, or (offer) of the memory offered
//	    32       body
//
//	enter  body: op u8, element type u8, combination u8, bytes i64, detail u64, label (UTF-8)
//	offer  no body
//	data   body: payload, exactly as long as the offer
//	abort  body: reason (JSON); group 0 means every group
//	ping   no body
//	bye    no body; nothing follows
//
// Anything else is an error that ends the connection. Bodies are bounded by kind; data is only accepted for memory that
// was offered, so a peer cannot make this side allocate.
const (
	frameMagic   = 0x5453
	headerBytes  = 32
	enterFixed   = 19
	maxLabel     = 1 << 10
	maxAbortBody = 64 << 10
	maxMessage   = 1 << 30
)

type frameKind uint8

const (
	frameEnter frameKind = iota + 1
	frameOffer
	frameData
	frameAbort
	framePing
	frameBye
)

type header struct {
	kind   frameKind
	key    Key
	length int
}

func appendHeader(b []byte, h header) []byte {
	b = binary.LittleEndian.AppendUint16(b, frameMagic)
	b = append(b, byte(h.kind), byte(h.key.Stream))
	b = binary.LittleEndian.AppendUint32(b, h.key.Index)
	b = binary.LittleEndian.AppendUint64(b, h.key.Group)
	b = binary.LittleEndian.AppendUint64(b, h.key.Seq)
	return binary.LittleEndian.AppendUint64(b, uint64(h.length))
}

func parseHeader(b *[headerBytes]byte) (header, error) {
	if m := binary.LittleEndian.Uint16(b[:]); m != frameMagic {
		return header{}, fmt.Errorf("bad frame: magic %#04x instead of %#04x", m, frameMagic)
	}
	h := header{kind: frameKind(b[2]), key: Key{
		Stream: Stream(b[3]),
		Index:  binary.LittleEndian.Uint32(b[4:]),
		Group:  binary.LittleEndian.Uint64(b[8:]),
		Seq:    binary.LittleEndian.Uint64(b[16:]),
	}}
	var low, high uint64
	switch h.kind {
	case frameEnter:
		low, high = enterFixed, enterFixed+maxLabel
	case frameOffer, frameData:
		high = maxMessage
	case frameAbort:
		high = maxAbortBody
	case framePing, frameBye:
	default:
		return header{}, fmt.Errorf("bad frame: kind %d", h.kind)
	}
	n := binary.LittleEndian.Uint64(b[24:])
	if n < low || n > high {
		return header{}, fmt.Errorf("bad frame: kind %d with length %d, outside %d..%d", h.kind, n, low, high)
	}
	if h.key.Stream >= streamCount {
		return header{}, fmt.Errorf("bad frame: stream %d", h.key.Stream)
	}
	h.length = int(n)
	return h, nil
}

func appendEnter(b []byte, e Entry) []byte {
	label := e.Call.Label[:min(len(e.Call.Label), maxLabel)]
	b = appendHeader(b, header{frameEnter, Key{Group: e.Group, Seq: e.Seq, Stream: e.Stream}, enterFixed + len(label)})
	b = append(b, byte(e.Call.Op), byte(e.Call.Element), byte(e.Call.Combine))
	b = binary.LittleEndian.AppendUint64(b, uint64(e.Call.Bytes))
	b = binary.LittleEndian.AppendUint64(b, e.Call.Detail)
	return append(b, label...)
}

// labels remembers the labels of a connection, which come again and again, so that they are made only once.
type labels map[string]string

// maxLabels bounds what a peer can make this side remember.
const maxLabels = 1 << 10

func (l labels) of(b []byte) string {
	if s, ok := l[string(b)]; ok {
		return s
	}
	s := string(b)
	if len(l) < maxLabels {
		l[s] = s
	}
	return s
}

func parseEnter(h header, body []byte, known labels) (Entry, error) {
	op := Op(body[0])
	if op == 0 || op >= opCount {
		return Entry{}, fmt.Errorf("bad frame: operation %d", op)
	}
	element, combine := Element(body[1]), Combine(body[2])
	if element >= elementCount || combine >= combineCount {
		return Entry{}, fmt.Errorf("bad frame: element type %d, combination %d", element, combine)
	}
	return Entry{Group: h.key.Group, Seq: h.key.Seq, Stream: h.key.Stream, Call: Call{
		Op:      op,
		Element: element,
		Combine: combine,
		Bytes:   int64(binary.LittleEndian.Uint64(body[3:])),
		Detail:  binary.LittleEndian.Uint64(body[11:]),
		Label:   known.of(body[enterFixed:]),
	}}, nil
}

// frameHandler is told of the frames of one connection.
type frameHandler interface {
	entered(Entry) error
	offered(key Key, length int) error
	// memory returns where the payload of a data frame goes; filled is called when it is there, or is known not to come.
	memory(key Key, length int) (message, error)
	filled(m message, err error)
	aborted(group uint64, reason []byte)
	heard()
	// idle is called when all that has come has been handled.
	idle()
}

// readFrames reads frames until the peer says goodbye (nil) or something is wrong.
func readFrames(rd *bufio.Reader, h frameHandler) error {
	var head [headerBytes]byte
	var scratch []byte
	known := labels{}
	for {
		if rd.Buffered() < headerBytes {
			h.idle()
		}
		if _, err := io.ReadFull(rd, head[:]); err != nil {
			return err
		}
		h.heard()
		f, err := parseHeader(&head)
		if err != nil {
			return err
		}
		var body []byte
		if f.kind == frameEnter || f.kind == frameAbort {
			if cap(scratch) < f.length {
				scratch = make([]byte, f.length)
			}
			body = scratch[:f.length]
			if _, err := io.ReadFull(rd, body); err != nil {
				return cut(err)
			}
		}
		switch f.kind {
		case frameEnter:
			e, err := parseEnter(f, body, known)
			if err != nil {
				return err
			}
			if err := h.entered(e); err != nil {
				return err
			}
		case frameOffer:
			if err := h.offered(f.key, f.length); err != nil {
				return err
			}
		case frameData:
			m, err := h.memory(f.key, f.length)
			if err != nil {
				return err
			}
			_, err = io.ReadFull(rd, m.buf)
			err = cut(err)
			h.filled(m, err)
			if err != nil {
				return err
			}
		case frameAbort:
			h.aborted(f.key.Group, body)
		case frameBye:
			return nil
		}
	}
}

// cut turns an end of file inside a frame into an error of its own; between frames it stays io.EOF.
func cut(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
