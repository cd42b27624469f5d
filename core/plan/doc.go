// Package plan lowers a model's graph to the programs that a rank runs.
//
// Build takes the training graph through an ordered list of passes (see Passes), each of
// which leaves a graph that the verifier accepts, and lowers the result to three segments:
//
//	micro    one micro-batch: forward, backward, gradients into the Grads arena
//	norm     uses of tied parameters added together, block partials of every gradient's norm
//	update   the optimizer's operation on every parameter
//
// AddForward lowers further graphs over the same parameters (evaluation, sampling). Every
// value has its place before the first step: parameters, optimizer state and gradients have
// arenas of their own, transient values share one Work arena whose extent is the maximum over
// the segments, and what the host reads or writes lies in IO. ArenaBytes are therefore exact,
// and a run that does not fit is known before it starts.
//
// Communication is part of the program. Gradients lie in the order in which the backward pass
// completes them, cut into buckets; behind the instruction that completes a bucket stand its
// Fold (lanes of this rank are added) and its Start (the bucket is handed to the ranks), and in
// the norm segment a Wait stands before the first read of it.
//
// Check replays every segment symbolically and proves that no two values that live at the same
// time share memory. Dump prints the graph, the passes and the program; Summary gives the
// figures that a person asks for before starting a run.
//
// The package knows no device and no recipe. It knows ranks only as far as their number decides
// which lanes a rank runs, and nothing it decides changes what a run computes.
package plan
