//go:build !linux && !darwin

package comm

import "syscall"

const canAttempt = false

func (w *writing) attemptAll() (int64, bool) { return 0, false }

func (rd *reading) attemptOnce(syscall.RawConn, []byte) int { return 0 }
