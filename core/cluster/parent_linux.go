package cluster

import "syscall"

// dieWithParent has the kernel kill the worker when the launcher dies.
func dieWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }
