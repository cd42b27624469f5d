package cluster

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"
)

type readWriter struct{ bytes.Buffer }

func (*readWriter) Close() error                     { return nil }
func (*readWriter) SetReadDeadline(time.Time) error  { return nil }
func (*readWriter) SetWriteDeadline(time.Time) error { return nil }

// FuzzControl: whatever comes over a control connection is read or refused, and takes no more memory than came.
func FuzzControl(f *testing.F) {
	var b readWriter
	if err := (&control{conn: &b}).send(message{Kind: kindHello, Protocol: controlProtocol, Rank: 3, World: 4, Host: "a"}); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add(binary.LittleEndian.AppendUint32(nil, maxControl+1))
	f.Add(append(binary.LittleEndian.AppendUint32(nil, maxControl), "{}"...))
	f.Fuzz(func(t *testing.T, in []byte) {
		m, err := readControl(bytes.NewReader(in))
		if err != nil {
			return
		}
		var again readWriter
		if err := (&control{conn: &again}).send(m); err != nil {
			t.Fatal(err)
		}
		if n, err := readControl(&again); err != nil || n.Kind != m.Kind || n.Text != m.Text || n.Rank != m.Rank {
			t.Errorf("%+v was sent as %+v, %v", m, n, err)
		}
	})
}
