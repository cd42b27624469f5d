package comm

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// StallError says that a collective did not finish within its deadline, and which ranks held it up. The members of the group
// confer about that, and all that can be reached return the same one.
type StallError struct {
	Group    string
	Op       string
	Seq      uint64
	Label    string
	Reporter int           // the rank whose deadline passed
	Missing  []int         // ranks that did not enter the operation
	Waiting  []int         // ranks that entered it and whose data did not come
	After    time.Duration // how long the reporter waited
	Silent   bool          // the missing ranks gave no sign of life at all (while preparing)
}

func (e *StallError) Error() string {
	what := fmt.Sprintf("%s %q (number %d of group %s)", e.Op, e.Label, e.Seq, e.Group)
	after := e.After.Round(time.Millisecond)
	switch {
	case e.Silent:
		return fmt.Sprintf("comm: %s gave no sign of life for %v while rank %d waited in %s", rankList(e.Missing), after, e.Reporter, what)
	case len(e.Missing) > 0 && len(e.Waiting) > 0:
		return fmt.Sprintf("comm: %s did not come to %s within %v, and %s stopped sending or receiving there (noticed by rank %d); see the stacks of those ranks", rankList(e.Missing), what, after,
			rankList(e.Waiting), e.Reporter)
	case len(e.Missing) > 0:
		return fmt.Sprintf("comm: %s did not come to %s within %v (noticed by rank %d); see the stacks of that rank, or raise the deadline if its work takes longer",
			rankList(e.Missing), what, after, e.Reporter)
	default:
		return fmt.Sprintf("comm: %s stopped sending or receiving in %s: no progress for %v (noticed by rank %d)", rankList(e.Waiting), what, after, e.Reporter)
	}
}

// PeerError says that a peer can no longer be reached.
type PeerError struct {
	Rank  int
	Cause error
}

func (e *PeerError) Error() string {
	return fmt.Sprintf("comm: connection to rank %d: %v", e.Rank, e.Cause)
}

// Unwrap returns the cause.
func (e *PeerError) Unwrap() error { return e.Cause }

// AbortError carries the reason for which another rank gave up: its own failure, outside any collective.
type AbortError struct {
	Rank   int // the rank that gave up
	Reason string
}

func (e *AbortError) Error() string {
	return fmt.Sprintf("comm: rank %d stopped: %s", e.Rank, e.Reason)
}

// rankList prints "rank 3" or "ranks 1, 2".
func rankList(ranks []int) string {
	if len(ranks) == 1 {
		return fmt.Sprintf("rank %d", ranks[0])
	}
	s := make([]string, len(ranks))
	for i, r := range ranks {
		s[i] = fmt.Sprint(r)
	}
	return "ranks " + strings.Join(s, ", ")
}

// String prints the call as errors show it.
func (c Call) String() string {
	s := fmt.Sprintf("%s %q", c.Op, c.Label)
	if c.Bytes >= 0 {
		s += fmt.Sprintf(" of %d bytes", c.Bytes)
	}
	if c.Element != Untyped {
		s += " of " + c.Element.String()
	}
	if c.Combine != CombineSum {
		s += " (" + c.Combine.String() + ")"
	}
	return s
}

// reason is the form in which an abort travels: exactly one field is set.
type reason struct {
	Stall    *StallError    `json:",omitempty"`
	Mismatch *MismatchError `json:",omitempty"`
	Lost     *lostReason    `json:",omitempty"`
	Abort    *AbortError    `json:",omitempty"`
	Doubt    *Doubt         `json:",omitempty"`
}

type lostReason struct {
	Rank  int
	Cause string
}

// encodeReason writes err for the peers; an error of another type than this package's becomes an AbortError of rank self.
func encodeReason(self int, err error) []byte {
	var r reason
	var lost *PeerError
	switch {
	case errors.As(err, &r.Stall), errors.As(err, &r.Mismatch), errors.As(err, &r.Abort), errors.As(err, &r.Doubt):
	case errors.As(err, &lost):
		r.Lost = &lostReason{lost.Rank, lost.Cause.Error()}
	default:
		text := err.Error()
		if len(text) > maxReasonText {
			text = text[:maxReasonText] + " …"
		}
		r.Abort = &AbortError{Rank: self, Reason: strings.ToValidUTF8(text, "?")}
	}
	b, jsonErr := json.Marshal(r)
	if jsonErr != nil || len(b) > maxAbortBody {
		b, _ = json.Marshal(reason{Abort: &AbortError{Rank: self, Reason: "for a reason too long to send"}})
	}
	return b
}

// maxReasonText keeps an encoded reason below maxAbortBody: JSON writes a byte as at most six.
const maxReasonText = 10 << 10

// decodeReason reads what encodeReason wrote; from is the rank it came from.
func decodeReason(from int, b []byte) error {
	var r reason
	if err := json.Unmarshal(b, &r); err != nil {
		return &AbortError{Rank: from, Reason: "for a reason that could not be read: " + err.Error()}
	}
	switch {
	case r.Stall != nil:
		return r.Stall
	case r.Mismatch != nil:
		return r.Mismatch
	case r.Lost != nil:
		return &PeerError{Rank: r.Lost.Rank, Cause: errors.New(r.Lost.Cause)}
	case r.Abort != nil:
		return r.Abort
	case r.Doubt != nil:
		return r.Doubt
	}
	return &AbortError{Rank: from, Reason: "for no reason given"}
}
