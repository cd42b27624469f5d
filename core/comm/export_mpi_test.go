//go:build mpi

package comm

// KeepMPI leaves MPI running between the transports of a test.
func KeepMPI() { keepMPI = true }

// BeginMPI and EndMPI are the frame of a process's MPI life.
func BeginMPI() (rank, size int, err error) { err = mpiBegin(); return mpi.rank, mpi.size, err }

// EndMPI ends it.
func EndMPI() error { return mpiEnd() }

// EncodeReason and DecodeReason are the form in which errors travel between ranks.
func EncodeReason(self int, err error) []byte { return encodeReason(self, err) }

// DecodeReason reads it.
func DecodeReason(from int, b []byte) error { return decodeReason(from, b) }
