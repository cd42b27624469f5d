//go:build unix && !linux

package cpu

// adviseHuge does nothing: only Linux takes the hint.
func adviseHuge([]byte) {}
