//go:build unix

package cluster

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// controlPair returns the two ends of a control connection.
func controlPair() (ours net.Conn, theirs *os.File, err error) {
	fds, err := socketPair()
	if err != nil {
		return nil, nil, fmt.Errorf("cluster: no control connection: %w", err)
	}
	mine := os.NewFile(uintptr(fds[0]), "control")
	theirs = os.NewFile(uintptr(fds[1]), "control")
	ours, err = net.FileConn(mine)
	_ = mine.Close()
	if err != nil {
		_ = theirs.Close()
		return nil, nil, fmt.Errorf("cluster: no control connection: %w", err)
	}
	return ours, theirs, nil
}

// socketPair makes a socket pair that no other child inherits.
func socketPair() ([2]int, error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fds[0])
		syscall.CloseOnExec(fds[1])
	}
	return fds, err
}

// inheritedControl opens the control connection that the launcher left to this process.
func inheritedControl() (controlConn, error) {
	addr := os.Getenv(envControl)
	_ = os.Unsetenv(envControl) // not for this process's own children
	if addr == overStdio {
		return stdioControl()
	}
	n, ok := strings.CutPrefix(addr, "fd:")
	fd, err := strconv.Atoi(n)
	if !ok || err != nil || fd < 3 {
		return nil, fmt.Errorf("cluster: %s is %q: this process was not started by a launcher, or has joined already", envControl, addr)
	}
	syscall.CloseOnExec(fd)
	f := os.NewFile(uintptr(fd), "control")
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("cluster: the launcher's control connection: %w", err)
	}
	return conn, nil
}

// overStdio is the value of envControl where the control connection is stdin and stdout, as a remote shell passes them on.
const overStdio = "stdio"

// stdio is such a connection.
type stdio struct{ in, out *os.File }

// stdioControl takes stdin and stdout over: the process reads nothing from then on, and what it prints goes to stderr.
func stdioControl() (controlConn, error) {
	none, err := os.OpenFile(os.DevNull, os.O_RDONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("cluster: control connection over stdin: %w", err)
	}
	defer none.Close()
	var fds [2]int
	for i := range fds {
		fd, err := unix.FcntlInt(uintptr(i), unix.F_DUPFD_CLOEXEC, 3)
		if err == nil {
			err = syscall.SetNonblock(fd, true) // so that a read ends when the file is closed
		}
		if err != nil {
			return nil, fmt.Errorf("cluster: control connection over stdin and stdout: %w", err)
		}
		fds[i] = fd
	}
	if err := errors.Join(unix.Dup2(int(none.Fd()), 0), unix.Dup2(2, 1)); err != nil {
		return nil, fmt.Errorf("cluster: control connection over stdin and stdout: %w", err)
	}
	s := stdio{os.NewFile(uintptr(fds[0]), "control, stdin"), os.NewFile(uintptr(fds[1]), "control, stdout")}
	_ = s.SetWriteDeadline(time.Now().Add(sendTimeout))
	if _, err := io.WriteString(s, preamble); err != nil {
		_ = s.Close()
		return nil, fmt.Errorf("cluster: control connection over stdout: %w", err)
	}
	return s, nil
}

func (s stdio) Read(b []byte) (int, error)         { return s.in.Read(b) }
func (s stdio) Write(b []byte) (int, error)        { return s.out.Write(b) }
func (s stdio) SetReadDeadline(t time.Time) error  { return s.in.SetReadDeadline(t) }
func (s stdio) SetWriteDeadline(t time.Time) error { return s.out.SetWriteDeadline(t) }
func (s stdio) Close() error                       { return errors.Join(s.in.Close(), s.out.Close()) }

// plainWord is what every shell takes as it stands.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// throughShell returns the command that starts cmd at a place, by means of a remote shell or whatever runs a command
// elsewhere. Only the words of cmd travel, not its environment.
func throughShell(at Place, cmd *exec.Cmd) (*exec.Cmd, error) {
	words := append([]string{"env", envControl + "=" + overStdio}, cmd.Args...)
	if at.Program != "" {
		words[2] = at.Program
	}
	for _, w := range words {
		if !plainWord.MatchString(w) {
			return nil, fmt.Errorf("the word %q of the command of a rank would be changed by the shell of another host; put the program where its path has plain letters only", w)
		}
	}
	out := exec.Command(at.Start[0], append(at.Start[1:len(at.Start):len(at.Start)], words...)...)
	out.Env = cmd.Env
	return out, nil
}
