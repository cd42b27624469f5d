package plugin

import (
	"errors"
	"strings"
	"unsafe"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// plain drops gRPC's wrapping from an error.
func plain(err error) error {
	s, ok := status.FromError(err)
	if !ok {
		return err
	}
	switch s.Code() {
	case codes.Aborted, codes.FailedPrecondition, codes.InvalidArgument, codes.Unknown, codes.Unimplemented:
		return errors.New(s.Message())
	case codes.Unavailable:
		return errors.New("its process ended")
	case codes.DeadlineExceeded:
		return errors.New("it did not answer in time")
	}
	return errors.New(s.Code().String() + ": " + s.Message())
}

// Floats is memory as float32 values.
func Floats(b []byte) []float32 {
	if len(b) < 4 {
		return nil
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

// bytesOf is the memory of float32 values.
func bytesOf(x []float32) []byte {
	if len(x) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}

// PinCommand is the command that accepts the present file of a plugin for a recipe.
func PinCommand(name, recipe string) string {
	return "runtime plugin pin " + name + " --recipe " + Quoted(recipe)
}

// Quoted is a word as a shell takes it.
func Quoted(s string) string {
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./=:,+@%", r))
	}) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
