// Package detmath has the few transcendental functions whose results reach weights,
// in float64, computed by additions and multiplications alone, in a fixed order that no
// compiler may contract. The standard library's versions are faster, but differ in the last bit between
// architectures (assembly here, fused multiply-adds there); these give the same bits everywhere.
//
// Accuracy is about 1 ulp (2 for Pow), ample for schedules, angle tables and
// initial values. The reductions and polynomials follow FDLIBM's method: range reduction in two
// or three pieces, then a minimax or Taylor polynomial on the reduced range.
package detmath
