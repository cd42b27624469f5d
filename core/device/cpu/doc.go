// Package cpu is the processor as a device: arenas in anonymous memory, a pool of
// threads and one kernel for every operation of core/graph.
//
// A kernel is made at bind time from an operation and the element types of its
// inputs (see table.go); each file *_kernels.go holds one family. Making a kernel
// settles everything that depends on shapes: how the work is cut into tasks, which
// fast path applies, how much scratch memory a thread needs. Running it then calls
// the vector kernels of sdk/vec on pieces of the operands and allocates nothing.
//
// Placement invariance rests on three rules that every kernel here keeps. Work is
// cut by shape alone, never by the number of threads, and a task computes its
// results whole. A sum that crosses tasks is added in a fixed order. Arithmetic is
// done by sdk/vec, whose sets give the same bits, or here in plain Go with every
// product that feeds an addition rounded explicitly, so that no compiler fuses it.
//
// The package knows no ranks, no programs and no recipe.
package cpu
