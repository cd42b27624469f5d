//go:build amd64 && !linux

package vec

// askForTiles refuses: only Linux is known to grant tile registers on request.
func askForTiles() bool { return false }
