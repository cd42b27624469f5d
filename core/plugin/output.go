package plugin

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"sync"
)

// output collects what a plugin prints on any of its streams: every line goes to the log, the last ones are kept for errors.
type output struct {
	mu   sync.Mutex
	log  Log
	last []string
}

// keptLines is how many lines an error quotes, longestLine how much of each.
const (
	keptLines   = 12
	longestLine = 400
)

func newOutput(log Log) *output {
	if log == nil {
		log = func(string, string) {}
	}
	return &output{log: log}
}

// line takes one line; those that hclog writes say their level.
func (o *output) line(text string) {
	text = strings.TrimRight(text, " \r\n")
	if text == "" {
		return
	}
	level := "info"
	var entry struct {
		Level   string `json:"@level"`
		Message string `json:"@message"`
		Error   string `json:"error"`
	}
	if json.Unmarshal([]byte(text), &entry) == nil && entry.Message != "" {
		level, text = entry.Level, entry.Message
		if entry.Error != "" {
			text += ": " + entry.Error
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	kept := text
	if len(kept) > longestLine {
		kept = kept[:longestLine] + "…"
	}
	if o.last = append(o.last, kept); len(o.last) > keptLines {
		o.last = o.last[1:]
	}
	o.log(level, text)
}

// quoted is the last lines as the end of an error message.
func (o *output) quoted() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.last) == 0 {
		return ""
	}
	return "\n    its last output:\n      " + strings.Join(o.last, "\n      ")
}

// writer cuts a stream into lines.
func (o *output) writer() io.Writer { return &lineWriter{out: o} }

type lineWriter struct {
	mu   sync.Mutex
	out  *output
	rest []byte
}

func (w *lineWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rest = append(w.rest, b...)
	for {
		i := bytes.IndexByte(w.rest, '\n')
		if i < 0 && len(w.rest) < 1<<16 {
			return len(b), nil
		}
		if i < 0 {
			i = len(w.rest) - 1
		}
		w.out.line(string(w.rest[:i+1]))
		w.rest = w.rest[i+1:]
	}
}
