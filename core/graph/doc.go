// Package graph is the intermediate representation of a model: one flat list of
// operations in single-assignment form, each with the shapes and element types of
// its results, the position in the recipe that made it and the block it lies in.
//
// It owns the table of operations. An operation is one entry: a shape rule, a
// gradient rule written in terms of other operations, and a float64 reference.
// Adding an operation touches its entry, its kernels and its test row, nothing else.
// It also owns reverse-mode differentiation (a transform from graph to graph), the
// verifier and the printed form.
//
// It knows no recipe language, no device, no ranks and no memory.
package graph
