//go:build !unix

package plugin

import (
	"context"
	"os"
)

func startAndStay(c *child, started chan<- error) {
	started <- c.cmd.Start()
	<-c.ended
}

func killGroup(p *os.Process) { _ = p.Kill() }

// gone cannot be told here.
func gone(int) bool { return false }

// lockFile has no locks here.
func lockFile(context.Context, string) (unlock func(), alone bool, err error) {
	return func() {}, false, nil
}

// private cannot be told here.
func private(string) error { return nil }
