//go:build unix

package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
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

// gone reports that there is no process of a number.
func gone(pid int) bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

// lockFile takes a lock that one process of a machine has at a time, and waits for it until ctx ends; a process that ends lets go of it.
// alone is false where the file system has no locks.
func lockFile(ctx context.Context, path string) (unlock func(), alone bool, err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, false, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil || !errors.Is(err, unix.EWOULDBLOCK) {
			return func() { f.Close() }, err == nil, nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			f.Close()
			return nil, false, fmt.Errorf("waiting for another process to free %s: %w", path, context.Cause(ctx))
		}
	}
}

// private reports a folder in which others could put programs.
func private(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if s, ok := info.Sys().(*syscall.Stat_t); !info.IsDir() || ok && int(s.Uid) != os.Getuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("folder %s for plugins that are handed over must be a folder that belongs to you and is writable by nobody else (chmod 700 %s)", dir, dir)
	}
	return nil
}
