package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// What a worker lacks it can ask its launcher for, over the control connection: files that are on the launcher's machine alone.
// The connection has shown who is at its ends, so what comes is the launcher's.

const (
	// partBytes is how much of an answer goes into one message: little enough that signs of life and news are not held up for long.
	partBytes = 256 << 10
	// partTimeout bounds the time between two pieces of an answer.
	partTimeout = 2 * sendTimeout
)

// serve answers a worker's request.
func serve(to *control, answer func(io.Writer, []byte) error, request []byte) {
	send := writerFunc(func(b []byte) (int, error) {
		return len(b), to.send(message{Kind: kindPart, Data: b})
	})
	err := errors.New("the launcher hands nothing over")
	if answer != nil {
		w := bufio.NewWriterSize(send, partBytes)
		if err = answer(w, request); err == nil {
			err = w.Flush()
		}
	}
	last := message{Kind: kindPart}
	if err != nil {
		last.Text = clip(err.Error())
	}
	_ = to.send(last) // a lost connection is noticed elsewhere
}

type writerFunc func([]byte) (int, error)

// Write sends pieces that a message holds, however much is written at a time.
func (f writerFunc) Write(b []byte) (n int, err error) {
	for len(b) > 0 && err == nil {
		var k int
		k, err = f(b[:min(len(b), partBytes)])
		n, b = n+k, b[k:]
	}
	return n, err
}

// Fetch asks the launcher for something, before Join. The answer must be read to its end, or until an error, before the next call.
func (s *Seat) Fetch(ctx context.Context, request []byte) (io.ReadCloser, error) {
	if err := s.w.link(message{Kind: kindAsk, Data: request}); err != nil {
		return nil, fmt.Errorf("cluster: asking the launcher: %w", err)
	}
	return &answer{ctx: ctx, w: s.w}, nil
}

// answer reads what comes for a request.
type answer struct {
	ctx  context.Context
	w    *Worker
	rest []byte
	err  error
}

// Read implements io.Reader.
func (a *answer) Read(b []byte) (int, error) {
	for len(a.rest) == 0 && a.err == nil {
		timer := time.NewTimer(partTimeout)
		select {
		case m := <-a.w.parts:
			switch {
			case m.Text != "":
				a.err = errors.New(m.Text)
			case len(m.Data) == 0:
				a.err = io.EOF
			}
			a.rest = m.Data
		case <-timer.C:
			a.giveUp(fmt.Errorf("cluster: the launcher sent nothing for %v", partTimeout))
		case <-a.w.ctx.Done():
			a.err = context.Cause(a.w.ctx)
		case <-a.ctx.Done():
			a.giveUp(context.Cause(a.ctx))
		}
		timer.Stop()
	}
	n := copy(b, a.rest)
	a.rest = a.rest[n:]
	if n == 0 && len(b) > 0 {
		return 0, a.err
	}
	return n, nil
}

// giveUp ends the rank with the answer: what comes late has no reader, and nothing behind it would be heard.
func (a *answer) giveUp(err error) {
	a.err = err
	a.w.lose(err)
}

// Close takes what is left, so that the connection is free again.
func (a *answer) Close() error {
	_, _ = io.Copy(io.Discard, a)
	return nil
}
