//go:build !mpi

package comm

import "errors"

// MPIBuilt says whether this program can move data by MPI.
const MPIBuilt = false

func withMPI(Transport) (Transport, error) {
	return nil, errors.New("comm: this program was built without MPI; build it with CGO_ENABLED=1 go build -tags mpi where mpicc is installed, or choose another transport")
}
