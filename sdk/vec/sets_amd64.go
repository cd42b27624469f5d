package vec

// supportedSets asks the processor what it executes and the operating system
// which registers it saves.
func supportedSets() []kernelSet {
	sets := []kernelSet{setGeneric}
	top, _, _, _ := cpuid(0, 0)
	if top < 7 {
		return sets
	}
	_, _, c1, _ := cpuid(1, 0)
	_, b7, _, _ := cpuid(7, 0)
	const (
		fma     = 1 << 12 // leaf 1, ECX
		osxsave = 1 << 27
		avx     = 1 << 28
		f16c    = 1 << 29

		avx2     = 1 << 5 // leaf 7, EBX
		bmi2     = 1 << 8
		avx512F  = 1 << 16
		avx512DQ = 1 << 17
		avx512BW = 1 << 30
		avx512VL = 1 << 31

		ymmState = 0x06 // XCR0: SSE, AVX
		zmmState = 0xe6 // and opmasks, both halves of ZMM
	)
	const need1 = fma | osxsave | avx | f16c
	if c1&need1 != need1 || xgetbv()&ymmState != ymmState || b7&avx2 == 0 || b7&bmi2 == 0 {
		return sets
	}
	sets = append(sets, setAVX2)
	const need7 = avx512F | avx512DQ | avx512BW | avx512VL
	if b7&need7 == need7 && xgetbv()&zmmState == zmmState {
		sets = append(sets, setAVX512)
	}
	return sets
}
