// Package device says what a device must offer and what a program for one is.
//
// A program is a few linear segments of instructions over operands with fixed
// places in arenas; core/plan makes it. A device allocates arenas and turns one
// instruction into one kernel. Bind does that for a whole segment before the first
// step, and Bound.Run executes it: running allocates nothing.
//
// The package knows no recipe, no optimizer by name and no ranks: communication
// appears as instructions that are handed to the Communicator of the run.
// devicetest, below it, is the suite that every device must pass.
package device
