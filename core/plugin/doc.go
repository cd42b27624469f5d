// Package plugin is the runtime's side of plugins: where they are found and how they are pinned, the processes that serve them, and
// the optimizers, compressors and sinks that these processes are to the rest of the program.
//
// A plugin process belongs to one rank. Control messages go over gRPC with mutual TLS; parameters, gradients and state lie in memory that the
// plugin maps read-only, and results come back through scratch slots that the runtime checks before it copies them to their
// place. So a plugin cannot damage a run: whatever becomes of it, every element of parameters and state is either as it was before the step
// or as it is after it, and which of them is known. The package knows no recipes and no plan; what a plugin may see is
// described to it as ranges of memory.
package plugin
