package vec

// fmaRound runs a round of multiply-adds out of registers and returns how many
// it made.
func fmaRound() int {
	const n = 20000
	switch active {
	case setAVX512:
		fmaLoopAVX512(n)
		return n * 12 * 16
	case setAVX2:
		fmaLoopAVX2(n)
		return n * 12 * 8
	}
	return fmaRoundGeneric()
}

// pairRound is fmaRound of pairs of bfloat16.
func pairRound() int {
	const n = 20000
	pairLoopAVX512(n)
	return n * 20 * 32
}
