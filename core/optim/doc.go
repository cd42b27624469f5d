// Package optim describes optimizers and learning-rate schedules: which update operation runs on each
// parameter, which state slots it keeps, and what its table of hyper-parameters holds at each step.
//
// The arithmetic of an update is an operation of core/graph with kernels on every device. The package
// knows no ranks, no recipe language and no memory: where parameters and state lie is core/plan's business.
package optim
