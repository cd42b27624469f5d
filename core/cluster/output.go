package cluster

import (
	"bytes"
	"io"
	"sync"
)

// lineWriter writes whole lines under a prefix.
type lineWriter struct {
	mu     *sync.Mutex // of the destination
	w      io.Writer   // nil drops everything
	prefix string
	rest   []byte // a line that has not ended
}

// maxLine is where a line that does not end is cut.
const maxLine = 64 << 10

func (l *lineWriter) Write(b []byte) (int, error) {
	if l.w == nil {
		return len(b), nil
	}
	l.rest = append(l.rest, b...)
	for {
		i := bytes.IndexByte(l.rest, '\n')
		if i < 0 && len(l.rest) < maxLine {
			return len(b), nil
		}
		if i < 0 {
			i = len(l.rest) - 1
		}
		l.emit(l.rest[:i+1])
		l.rest = append(l.rest[:0], l.rest[i+1:]...)
	}
}

// emit writes one line. A destination that fails must not end the worker.
func (l *lineWriter) emit(line []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = l.w.Write(append([]byte(l.prefix), line...))
}

// flush writes a last line without an end.
func (l *lineWriter) flush() {
	if len(l.rest) > 0 {
		l.emit(append(l.rest, '\n'))
		l.rest = nil
	}
}

// tailWriter keeps the end of what is written.
type tailWriter struct {
	mu  sync.Mutex
	buf []byte
}

// tailBytes is how much of a worker's stderr goes into the error.
const tailBytes = 4 << 10

func (t *tailWriter) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, b...)
	if len(t.buf) > 2*tailBytes {
		t.buf = append(t.buf[:0], t.buf[len(t.buf)-tailBytes:]...)
	}
	return len(b), nil
}

// String returns the last lines, at most tailBytes.
func (t *tailWriter) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.buf
	if len(b) > tailBytes {
		b = b[len(b)-tailBytes:]
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			b = b[i+1:]
		}
	}
	return string(b)
}
