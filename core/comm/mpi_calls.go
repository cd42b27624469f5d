//go:build mpi

package comm

/*
#cgo pkg-config: ompi-c
#include <mpi.h>
#include <stdlib.h>

// Macros of MPI are no constants that Go could name.
static int st_world(MPI_Comm *c) {
	int e = MPI_Comm_dup(MPI_COMM_WORLD, c);
	if (e == MPI_SUCCESS) e = MPI_Comm_set_errhandler(*c, MPI_ERRORS_RETURN);
	return e;
}
static int st_part(MPI_Comm all, int n, MPI_Comm *c) { // of the first n processes, called by those alone
	MPI_Group g = MPI_GROUP_NULL, sub = MPI_GROUP_NULL;
	int range[1][3] = {{0, n - 1, 1}};
	int e = MPI_Comm_group(all, &g);
	if (e == MPI_SUCCESS) e = MPI_Group_range_incl(g, 1, range, &sub);
	if (e == MPI_SUCCESS) e = MPI_Comm_create_group(all, sub, 17, c);
	if (e == MPI_SUCCESS) e = MPI_Comm_set_errhandler(*c, MPI_ERRORS_RETURN);
	if (sub != MPI_GROUP_NULL) MPI_Group_free(&sub);
	if (g != MPI_GROUP_NULL) MPI_Group_free(&g);
	return e;
}
static int st_gather(int *mine, int *all, MPI_Comm c) { return MPI_Allgather(mine, 1, MPI_INT, all, 1, MPI_INT, c); }
static int st_isend(void *b, int n, int to, int tag, MPI_Comm c, MPI_Request *r) { return MPI_Isend(b, n, MPI_BYTE, to, tag, c, r); }
static int st_irecv(void *b, int n, int from, int tag, MPI_Comm c, MPI_Request *r) { return MPI_Irecv(b, n, MPI_BYTE, from, tag, c, r); }
static int st_probe(int tag, MPI_Comm c, int *here, int *from, int *n) {
	MPI_Status s;
	int e = MPI_Iprobe(MPI_ANY_SOURCE, tag, c, here, &s);
	if (e == MPI_SUCCESS && *here) { *from = s.MPI_SOURCE; e = MPI_Get_count(&s, MPI_BYTE, n); }
	return e;
}
static int st_recv(void *b, int n, int from, int tag, MPI_Comm c) { return MPI_Recv(b, n, MPI_BYTE, from, tag, c, MPI_STATUS_IGNORE); }
// st_test reports whether a request is over, and then how many bytes it moved and whether it was cancelled.
static int st_test(MPI_Request *r, int *over, int *n, int *cancelled) {
	MPI_Status s;
	int e = MPI_Test(r, over, &s);
	if (e == MPI_SUCCESS && *over) { MPI_Test_cancelled(&s, cancelled); MPI_Get_count(&s, MPI_BYTE, n); }
	return e;
}
static int st_cancel(MPI_Request *r) { return MPI_Cancel(r); }
static int st_tags(MPI_Comm c, int *top) {
	int *v, ok;
	int e = MPI_Comm_get_attr(c, MPI_TAG_UB, &v, &ok);
	*top = e == MPI_SUCCESS && ok ? *v : 32767;
	return e;
}
static int st_init(int *level) { return MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, level); }
static int st_multiple(void) { return MPI_THREAD_MULTIPLE; }
*/
import "C"

import (
	"fmt"
	"strings"
	"sync"
	"unsafe"
)

// The few calls of MPI that the transport needs. Counts are int, as MPI's are: maxMessage is below 2³¹.

// mpiError says which call failed and why, in MPI's words.
func mpiError(call string, code C.int) error {
	if code == C.MPI_SUCCESS {
		return nil
	}
	var text [C.MPI_MAX_ERROR_STRING]C.char
	var n C.int
	C.MPI_Error_string(code, &text[0], &n)
	return fmt.Errorf("%s: %s", call, C.GoStringN(&text[0], n))
}

// mpi is this process's place in the MPI job: MPI can be begun and ended once.
var mpi struct {
	once    sync.Once
	err     error
	all     C.MPI_Comm
	size    int
	rank    int
	topTag  int
	library string
}

// mpiBegin starts MPI, if that has not been done; all processes of the MPI job do.
func mpiBegin() error {
	mpi.once.Do(func() {
		mpi.err = func() error {
			var level C.int
			if err := mpiError("MPI_Init_thread", C.st_init(&level)); err != nil {
				return err
			}
			if level < C.st_multiple() {
				return fmt.Errorf("this MPI was built without MPI_THREAD_MULTIPLE")
			}
			if err := mpiError("MPI_Comm_dup", C.st_world(&mpi.all)); err != nil {
				return err
			}
			var n C.int
			C.MPI_Comm_size(mpi.all, &n)
			mpi.size = int(n)
			C.MPI_Comm_rank(mpi.all, &n)
			mpi.rank = int(n)
			if err := mpiError("MPI_Comm_get_attr", C.st_tags(mpi.all, &n)); err != nil {
				return err
			}
			mpi.topTag = int(n)
			var text [C.MPI_MAX_LIBRARY_VERSION_STRING]C.char
			C.MPI_Get_library_version(&text[0], &n)
			mpi.library, _, _ = strings.Cut(C.GoStringN(&text[0], n), ",")
			return nil
		}()
	})
	return mpi.err
}

// mpiEnd ends MPI. Every process of the MPI job does so, and it waits for them.
func mpiEnd() error { return mpiError("MPI_Finalize", C.MPI_Finalize()) }

// mpiComm is the communicator of a transport. It lives as long as MPI: an offer of a rank that closes later may still come to it, and
// a new communicator could have the number of one that was freed.
type mpiComm struct {
	c C.MPI_Comm
	// to and from translate ranks of the transport to and from those of the communicator.
	to, from []int
}

// mpiOpen makes the communicator of the first world processes of the MPI job; each says which rank of the transport it is.
func mpiOpen(rank, world int) (*mpiComm, error) {
	if world > mpi.size {
		return nil, fmt.Errorf("mpirun started %d processes, and the job has %d ranks", mpi.size, world)
	}
	m := &mpiComm{to: make([]int, world), from: make([]int, world)}
	if err := mpiError("MPI_Comm_create_group", C.st_part(mpi.all, C.int(world), &m.c)); err != nil {
		return nil, err
	}
	mine, all := C.int(rank), make([]C.int, world)
	if err := mpiError("MPI_Allgather", C.st_gather(&mine, &all[0], m.c)); err != nil {
		return nil, err
	}
	for i := range m.to {
		m.to[i] = -1
	}
	for i, r := range all {
		if r < 0 || int(r) >= world || m.to[r] >= 0 {
			return nil, fmt.Errorf("the MPI processes are the ranks %v, which are not each one once", all)
		}
		m.to[r], m.from[i] = i, int(r)
	}
	return m, nil
}

// mpiRequest is a message under way.
type mpiRequest struct{ r C.MPI_Request }

func pointer(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

// isend and irecv begin a message; b must stay where it is until it is over.
func (m *mpiComm) isend(b []byte, to, tag int, r *mpiRequest) error {
	return mpiError("MPI_Isend", C.st_isend(pointer(b), C.int(len(b)), C.int(m.to[to]), C.int(tag), m.c, &r.r))
}

func (m *mpiComm) irecv(b []byte, from, tag int, r *mpiRequest) error {
	return mpiError("MPI_Irecv", C.st_irecv(pointer(b), C.int(len(b)), C.int(m.to[from]), C.int(tag), m.c, &r.r))
}

// test reports whether a message is over, and how many bytes came.
func (m *mpiComm) test(r *mpiRequest) (over bool, n int, cancelled bool, err error) {
	var o, c, k C.int
	err = mpiError("MPI_Test", C.st_test(&r.r, &o, &c, &k))
	return o != 0, int(c), k != 0, err
}

func (m *mpiComm) cancel(r *mpiRequest) { C.st_cancel(&r.r) }

// poll takes a message of a tag that has come, if there is one.
func (m *mpiComm) poll(tag int, b []byte) (from int, got []byte, err error) {
	var here, source, n C.int
	if err := mpiError("MPI_Iprobe", C.st_probe(C.int(tag), m.c, &here, &source, &n)); err != nil || here == 0 {
		return -1, nil, err
	}
	if int(n) > len(b) {
		return -1, nil, fmt.Errorf("a control message of %d bytes", n)
	}
	b = b[:n]
	return m.from[source], b, mpiError("MPI_Recv", C.st_recv(pointer(b), n, source, C.int(tag), m.c))
}
