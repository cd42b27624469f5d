package cpu

// How work is cut into tasks. The sizes are constants and the cuts follow shapes alone: results that
// depend on where a sum is cut stay the same at any number of threads.
const (
	// cheapBlock and costlyBlock are elements per task of an elementwise kernel that streams memory, and of
	// one that evaluates a polynomial: a few µs each, several times the price of handing out a task.
	cheapBlock  = 16384
	costlyBlock = 4096
	// sumBlock is the run of elements that one partial sum of a long reduction covers.
	sumBlock = 8192
)

// blocks is the number of pieces of at most size that n is cut into.
func blocks(n, size int) int { return (n + size - 1) / size }

// span is the range of piece i when n is cut into pieces of size.
func span(i, size, n int) (lo, hi int) { return i * size, min((i+1)*size, n) }

// rowsPerTask is how many rows of the given width make a task of about block elements.
func rowsPerTask(width, block int) int { return max(1, block/max(width, 1)) }

// parallel returns a function that runs fn for every task from 0 to n-1 on the device's threads. thread is
// below d.threads and names the scratch memory that the task may use.
func (d *Device) parallel(n int, fn func(thread, task int)) func() {
	switch {
	case n == 0:
		return func() {}
	case n == 1 || d.pool.threads == 1:
		return func() {
			for i := range n {
				fn(0, i)
			}
		}
	}
	j := &job{fn: fn, n: int64(n)}
	return func() { d.pool.run(j) }
}

// parallelSpan is parallel over n elements in pieces of size.
func (d *Device) parallelSpan(n, size int, fn func(lo, hi int)) func() {
	return d.parallel(blocks(n, size), func(_, i int) { fn(span(i, size, n)) })
}

// sequence runs kernels one after another.
func sequence(fs ...func()) func() {
	return func() {
		for _, f := range fs {
			f()
		}
	}
}
