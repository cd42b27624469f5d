package cluster

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"starling/core/comm"
)

// RankError names the rank whose failure ended a job. Launch and InProcess return it, and on the other ranks it is the
// cause of Worker.Context.
type RankError struct {
	Rank   int
	PID    int    // 0 in process
	Host   string // where it runs, if not simply here
	Cause  string // "failed", "was killed by signal 9 (killed)", …
	Detail string // the error it reported, if any
	Status string // what it last said it was doing, or ""
	Joined bool   // all ranks had been connected
	Stderr string // the end of its stderr, if any, and of what a shell printed before it
	Err    error  // the error it returned, in process only

	absent bool // it never came, so it has no rank yet: the cause says which processes are missing
}

func (e *RankError) Error() string {
	s := e.headline()
	if e.Stderr != "" && !strings.Contains(s, strings.TrimSpace(e.Stderr)) { // else it is what the rank has reported, or was told
		s += "\nthe end of what it printed:\n  " + strings.ReplaceAll(strings.TrimRight(e.Stderr, "\n"), "\n", "\n  ")
	}
	return s
}

// Unwrap returns the error of a rank that ran in process.
func (e *RankError) Unwrap() error { return e.Err }

// headline is the error without the stderr.
func (e *RankError) headline() string {
	who := fmt.Sprintf("rank %d", e.Rank)
	if e.PID != 0 {
		who = fmt.Sprintf("rank %d (pid %d)", e.Rank, e.PID)
	}
	if e.Host != "" {
		who += " on " + e.Host
	}
	when := "before the ranks were connected"
	if e.Joined {
		when = "after the ranks were connected"
	}
	if e.Status != "" {
		when = "during " + e.Status + ", " + when
	}
	s := fmt.Sprintf("cluster: %s %s %s", who, e.Cause, when)
	if e.absent {
		s = "cluster: " + e.Cause
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// failedElsewhere is what a worker learns from its launcher.
type failedElsewhere struct {
	rank int
	text string
	gone bool // the rank has ended, or is silent, without a word of its own
}

func (e *failedElsewhere) Error() string { return e.text }

// Unwrap makes of a rank that is gone what the others see of it themselves: the launcher may only have been quicker.
func (e *failedElsewhere) Unwrap() error {
	if !e.gone {
		return nil
	}
	return &comm.PeerError{Rank: e.rank, Cause: errors.New(e.text)}
}

// ErrLauncherGone is the cause of Worker.Context when the launcher has ended without a word.
var ErrLauncherGone = errors.New("cluster: the launcher has ended; this rank ends too")

// ErrStopped is the reason of a job that was killed on request: by a second signal, or because it did not stop in time.
var ErrStopped = errors.New("cluster: the job was stopped before it could end in order")

// blamed returns the ranks that err holds responsible: those are the ones to look for, and a rank that blames others did not
// fail first. Self is among them only by a report that all ranks make alike, which the others may still be about to make.
func blamed(self int, err error) []int {
	var (
		stall    *comm.StallError
		mismatch *comm.MismatchError
		lost     *comm.PeerError
		abort    *comm.AbortError
		other    *failedElsewhere
		rank     *RankError
		out      []int
	)
	switch {
	case errors.As(err, &other):
		out = []int{other.rank}
	case errors.As(err, &rank):
		out = []int{rank.Rank}
	case errors.As(err, &stall):
		out = append(slices.Clone(stall.Missing), stall.Waiting...)
	case errors.As(err, &mismatch):
		return mismatch.Differ()
	case errors.As(err, &lost):
		out = []int{lost.Rank}
	case errors.As(err, &abort):
		out = []int{abort.Rank}
	}
	return slices.DeleteFunc(out, func(r int) bool { return r == self })
}
