// Package train is the trainer: what a run is (Spec), and the loop that carries it out on one rank.
//
// A step is: for each lane of this rank, for each micro-batch of the lane, run the program's micro segment;
// its collectives run meanwhile; then norm, clipping and update; then what is due (evaluation, checkpoint,
// sample, hooks). The state of the loop is one struct that a checkpoint stores whole.
//
// It knows no recipe language (core/recipe makes a Spec), no placement of memory
// (core/plan decides it) and no transport (core/cluster hands it a group).
package train
