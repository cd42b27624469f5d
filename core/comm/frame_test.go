package comm

import (
	"bufio"
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
)

// frameLog records frames as the transport would take them.
type frameLog struct {
	entries []Entry
	offers  map[Key]int
	data    map[Key][]byte // offered memory
	count   int            // of data frames that came whole
	aborts  []string
}

func (l *frameLog) entered(e Entry) error { l.entries = append(l.entries, e); return nil }
func (l *frameLog) offered(k Key, n int) error {
	if l.offers == nil {
		l.offers = map[Key]int{}
	}
	l.offers[k] = n
	return nil
}
func (l *frameLog) memory(k Key, n int) (message, error) {
	b, ok := l.data[k]
	if !ok || len(b) != n {
		return message{}, errors.New("not offered")
	}
	delete(l.data, k)
	return message{buf: b}, nil
}
func (l *frameLog) filled(_ message, err error) {
	if err == nil {
		l.count++
	}
}
func (l *frameLog) aborted(_ uint64, reason []byte) { l.aborts = append(l.aborts, string(reason)) }
func (l *frameLog) heard()                          {}
func (l *frameLog) idle()                           {}

func sampleFrames() []byte {
	key := Key{Group: 1 << 60, Seq: 3, Index: 1 << 31, Stream: StreamSend}
	b := appendEnter(nil, Entry{Group: 9, Seq: 2, Stream: StreamCollective, Call: Call{Op: OpGather, Element: BFloat16, Combine: CombineMin, Bytes: -1, Detail: 1 << 63, Label: "métrique"}})
	b = appendHeader(b, header{frameOffer, key, 77})
	b = appendHeader(b, header{frameData, key, 5})
	b = append(b, "bytes"...)
	b = appendHeader(b, header{frameAbort, Key{}, 2})
	b = append(b, "{}"...)
	b = appendHeader(b, header{kind: framePing})
	return appendHeader(b, header{kind: frameBye})
}

func TestFrames(t *testing.T) {
	key := Key{Group: 1 << 60, Seq: 3, Index: 1 << 31, Stream: StreamSend}
	buf := make([]byte, 5)
	l := &frameLog{data: map[Key][]byte{key: buf}}
	if err := readFrames(bufio.NewReader(iotest.OneByteReader(bytes.NewReader(sampleFrames()))), l); err != nil {
		t.Fatal(err)
	}
	want := []Entry{{Group: 9, Seq: 2, Call: Call{Op: OpGather, Element: BFloat16, Combine: CombineMin, Bytes: -1, Detail: 1 << 63, Label: "métrique"}}}
	if !reflect.DeepEqual(l.entries, want) || l.offers[key] != 77 || string(buf) != "bytes" || l.count != 1 || len(l.aborts) != 1 {
		t.Errorf("frames were read as %+v", l)
	}
}

func TestBadFrames(t *testing.T) {
	for name, c := range map[string]struct {
		b    []byte
		want string
	}{
		"magic":        {[]byte(strings.Repeat("x", headerBytes)), "magic"},
		"kind":         {appendHeader(nil, header{kind: 99}), "kind 99"},
		"stream":       {appendHeader(nil, header{kind: framePing, key: Key{Stream: 7}}), "stream 7"},
		"huge data":    {appendHeader(nil, header{frameData, Key{}, 1 << 40}), "length"},
		"huge label":   {appendHeader(nil, header{frameEnter, Key{}, 1 << 20}), "length"},
		"short enter":  {appendHeader(nil, header{frameEnter, Key{}, 3}), "length"},
		"huge abort":   {appendHeader(nil, header{frameAbort, Key{}, 1 << 20}), "length"},
		"ping body":    {appendHeader(nil, header{framePing, Key{}, 1}), "length"},
		"operation":    {appendEnter(nil, Entry{Call: Call{Op: 200}}), "operation 200"},
		"element type": {appendEnter(nil, Entry{Call: Call{Op: OpGather, Element: elementCount}}), "element type 7"},
		"combination":  {appendEnter(nil, Entry{Call: Call{Op: OpGather, Combine: combineCount}}), "combination 4"},
		"not offered":  {appendHeader(nil, header{frameData, Key{}, 8}), "not offered"},
		"cut in body":  {appendHeader(nil, header{frameAbort, Key{}, 8}), "unexpected EOF"},
		"cut in head":  {appendHeader(nil, header{kind: framePing})[:10], "unexpected EOF"},
		"between them": {appendHeader(nil, header{kind: framePing}), "EOF"},
	} {
		err := readFrames(bufio.NewReader(bytes.NewReader(c.b)), &frameLog{})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// FuzzFrames: whatever a peer sends, the parser neither panics nor hands out memory that was not offered.
func FuzzFrames(f *testing.F) {
	f.Add(sampleFrames())
	f.Add(appendHeader(nil, header{frameData, Key{}, 1 << 29}))
	f.Fuzz(func(t *testing.T, b []byte) {
		l := &frameLog{data: map[Key][]byte{{Group: 1 << 60, Seq: 3, Index: 1 << 31, Stream: StreamSend}: make([]byte, 5)}}
		err := readFrames(bufio.NewReader(bytes.NewReader(b)), l)
		if err == nil && len(b) < headerBytes {
			t.Errorf("%d bytes made a whole conversation", len(b))
		}
		for _, e := range l.entries {
			again, err := parseEnter(header{key: Key{Group: e.Group, Seq: e.Seq, Stream: e.Stream}}, appendEnter(nil, e)[headerBytes:], labels{})
			if err != nil || again != e {
				t.Errorf("%+v is written as %+v, %v", e, again, err)
			}
		}
		for _, a := range l.aborts {
			if decodeReason(1, []byte(a)) == nil {
				t.Errorf("reason %q is no error", a)
			}
		}
	})
}

// FuzzHello: a greeting from anybody is parsed or refused, never more.
func FuzzHello(f *testing.F) {
	f.Add(hello{version: protocolVersion, Identity: Identity{Rank: 1, World: 2, Digest: "d", Class: "c"}}.encode())
	f.Add([]byte("STARLING"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := decodeHello(b)
		if err == nil && h.version == protocolVersion && !bytes.Equal(h.encode(), b) {
			t.Errorf("%x is read as %+v", b, h)
		}
	})
}
