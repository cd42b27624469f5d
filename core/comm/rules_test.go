package comm

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestBrokenRules: a peer that sends a frame of a wrong type or length, or payload that nobody asked for, is dropped and named,
// with what was wrong.
func TestBrokenRules(t *testing.T) {
	for name, c := range map[string]struct {
		frame []byte
		want  string
	}{
		"no frame":     {slices.Repeat([]byte("x"), headerBytes), "bad frame: magic"},
		"type":         {appendHeader(nil, header{kind: 42}), "bad frame: kind 42"},
		"length":       {appendHeader(nil, header{frameOffer, Key{}, maxMessage + 1}), "bad frame: kind 2 with length"},
		"negative":     {appendHeader(nil, header{frameData, Key{}, -1}), "bad frame: kind 3 with length"},
		"body of ping": {appendHeader(nil, header{framePing, Key{}, 8}), "bad frame: kind 5 with length"},
		"operation":    {appendEnter(nil, Entry{Call: Call{Op: opCount}}), "bad frame: operation"},
		"unasked":      {appendHeader(nil, header{frameData, Key{Group: 7}, 8}), "payload that was not asked for"},
	} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, theirs) }()
			x := newSocketTransport(0, []net.Conn{nil, ours}, "a pipe", time.Second, time.Minute)
			defer func() {
				_ = theirs.Close()
				_ = x.Close()
			}()
			g, err := NewGroup(x, "data", []int{0, 1}, Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer g.Close()
			go func() { _, _ = theirs.Write(c.frame) }()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			var lost *PeerError
			if err := g.AllReduce(ctx, "bucket", make([]float32, 100)); !errors.As(err, &lost) || lost.Rank != 1 || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want rank 1 named with %q", err, c.want)
			}
			if _, err := theirs.Write(appendHeader(nil, header{kind: framePing})); err == nil {
				t.Error("the connection is still open")
			}
		})
	}
}

// TestCountsBeyondFourGigabytes: the arithmetic of chunks, pieces and traffic holds for vectors of more bytes than 32 bits count,
// and for none, one and odd numbers of elements.
func TestCountsBeyondFourGigabytes(t *testing.T) {
	for _, n := range []int{0, 1, 3, 1<<30 + 1, 5<<30 + 7, 1 << 40} {
		for _, ranks := range []int{1, 2, 3, 7} {
			chunks := Chunks(n, ranks, ChunkAlign)
			at := 0
			for _, c := range chunks {
				if c.Lo != at || c.Hi < c.Lo {
					t.Fatalf("chunks of %d over %d: %v", n, ranks, chunks)
				}
				at = c.Hi
				if c.Len() == 0 {
					continue
				}
				piece := DefaultPieceBytes / 4
				count := pieces(c.Len(), piece)
				if last := pieceOf(c, count-1, piece); pieceOf(c, 0, piece).Lo != c.Lo || last.Hi != c.Hi || last.Len() < 1 || last.Len() > piece {
					t.Errorf("pieces of %v end with %v", c, last)
				}
			}
			if at != n {
				t.Errorf("chunks of %d over %d end at %d", n, ranks, at)
			}
			red, err := NewReduction(ranks, Assign(ranks, ranks))
			if err != nil {
				t.Fatal(err)
			}
			sent := 0
			for r := range ranks {
				sent += red.SentBytes(r, chunks)
			}
			if want := 2 * (ranks - 1) * n * 4; sent != want {
				t.Errorf("a vector of %d over %d ranks costs %d bytes, want %d", n, ranks, sent, want)
			}
		}
	}
	e := Entry{Group: 1, Seq: 1 << 40, Call: Call{Op: OpAllReduceTree, Bytes: 5 << 40, Label: "b"}}
	if err := readFrames(bufio.NewReader(strings.NewReader(string(appendHeader(appendEnter(nil, e), header{kind: frameBye})))), entryWant{t, e, nil}); err != nil {
		t.Error(err)
	}
}

// entryWant compares the entry that comes.
type entryWant struct {
	t    *testing.T
	want Entry
	frameHandler
}

func (w entryWant) heard() {}
func (w entryWant) idle()  {}

func (w entryWant) entered(e Entry) error {
	if e != w.want {
		w.t.Errorf("%+v came as %+v", w.want, e)
	}
	return nil
}
