package plugin

import "syscall"

// dieWithThread has the kernel end the plugin when its rank dies.
func dieWithThread(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }
