//go:build unix && !linux

package plugin

import "syscall"

// dieWithThread does nothing here: the plugin notices that its parent is gone.
func dieWithThread(*syscall.SysProcAttr) {}
