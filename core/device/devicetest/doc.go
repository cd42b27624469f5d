// Package devicetest is the suite that every device must pass: for each operation of
// core/graph a row of cases with seeded random shapes, in which the device's kernel is
// compared with the operation's float64 reference.
//
// Each case also checks what memory planning relies on: results are written whole and
// nothing else is, inputs stay as they were, a result may lie on an input where the
// operation says so, the accumulating form adds to what is there, and a second run
// gives the same bits. Where a row says so, a NaN in an input must show in the results
// as it does in the reference. An operation without a row fails the suite.
//
// That results do not depend on the number of threads is the business of the
// devices that have threads.
package devicetest
