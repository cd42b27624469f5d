package plugin

import (
	"errors"
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
	case codes.Aborted, codes.FailedPrecondition, codes.Unknown, codes.Unimplemented:
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
