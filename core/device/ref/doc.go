// Package ref is the oracle: it computes graphs in float64, with the reference that
// each operation's entry in core/graph carries.
//
// Run interprets a graph directly and rounds nothing. Device runs programs like
// every other device: its arenas hold the types that the program says, each kernel
// computes in float64 and rounds its results when it stores them. Both are slow and
// simple, and everything else is compared with them.
package ref
