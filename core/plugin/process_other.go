//go:build !unix

package plugin

import "os"

func startAndStay(c *child, started chan<- error) {
	started <- c.cmd.Start()
	<-c.ended
}

func killGroup(p *os.Process) { _ = p.Kill() }
