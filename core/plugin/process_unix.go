//go:build unix

package plugin

import (
	"os"
	"runtime"
	"syscall"
)

func startAndStay(c *child, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithThread(c.cmd.SysProcAttr)
	started <- c.cmd.Start()
	<-c.ended
}

// killGroup ends the process and everything that it has started.
func killGroup(p *os.Process) {
	if syscall.Kill(-p.Pid, syscall.SIGKILL) != nil {
		_ = p.Kill()
	}
}
