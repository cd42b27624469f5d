package vec

import "syscall"

// askForTiles asks for the right to use tile registers; it holds for every thread of the process.
func askForTiles() bool {
	const (
		archPrctl         = 158
		archReqXcompPerm  = 0x1023
		xfeatureXtileData = 18
	)
	_, _, errno := syscall.RawSyscall(archPrctl, archReqXcompPerm, xfeatureXtileData, 0)
	return errno == 0
}
