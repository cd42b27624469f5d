package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func init() {
	children["mounted disk"] = onSmallDisk
	children["limited files"] = onLimitedFiles
}

// A disk that is full, and one that is read-only: the error says so, the last good checkpoint is there, no part of
// another is, and the run can save again once there is room.
func TestFullDisk(t *testing.T) {
	run := child(t, "mounted disk", t.TempDir())
	// A mount namespace of its own, so that the disk is gone with the child.
	run.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWNS | syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := run.CombinedOutput()
	if errors.Is(err, syscall.EPERM) || strings.Contains(string(out), errNoMount.Error()) {
		t.Skip("needs the right to mount a disk of 1 MiB; TestFullDiskByLimit covers a write that fails")
	}
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// The same where nothing can be mounted: a limit on the size of files stands for the full disk.
func TestFullDiskByLimit(t *testing.T) {
	if out, err := child(t, "limited files", t.TempDir()).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

var errNoMount = errors.New("a small disk cannot be mounted here")

func onSmallDisk(dir string) {
	mount := func(flags uintptr) error {
		return unix.Mount("starling-test", dir, "tmpfs", flags, "size=1m")
	}
	if err := errors.Join(unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), mount(0)); err != nil {
		failChild(fmt.Errorf("%w: %w", errNoMount, err))
	}
	failChild(saveTooMuch(dir, "the disk is full; free some space"))
	failChild(mount(unix.MS_REMOUNT | unix.MS_RDONLY))
	// A run that goes on while its disk turned read-only, and one that starts on such a disk.
	_, err := WriteShard(context.Background(), dir, 9, 0, []Tensor{ramp("w", 4)})
	failChild(expect(err, "read-only file system", "the folder cannot be written"))
	failChild(stillGood(dir))
}

func onLimitedFiles(dir string) {
	signal.Ignore(unix.SIGXFSZ)
	failChild(unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 512 << 10, Max: 512 << 10}))
	failChild(saveTooMuch(dir, "file too large"))
}

// saveTooMuch saves a checkpoint that fits, one that does not, and another that does.
func saveTooMuch(dir, reason string) error {
	ctx := context.Background()
	s, err := NewSaver(SaverConfig{Dir: dir, Keep: 1})
	if err != nil {
		return err
	}
	defer s.Close()
	try := func(step int64, elements int) error {
		r := SaveRequest{Step: step, Tensors: []Tensor{filled("w", elements, 1)}, Trainer: []byte("{}")}
		return errors.Join(s.Save(ctx, r), s.Wait(ctx))
	}
	if err := try(1, 1000); err != nil {
		return err
	}
	if err := expect(try(2, 1<<20), "saving step 2", reason, "the last good checkpoint is "+dir+"/step-00000001"); err != nil {
		return err
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		return fmt.Errorf("after the failure the folder holds %v (%v)", entries, err)
	}
	if err := stillGood(dir); err != nil {
		return err
	}
	return try(3, 1000)
}

func stillGood(dir string) error {
	c, skipped, err := Latest(context.Background(), dir)
	if err != nil {
		return err
	}
	if len(skipped) > 0 {
		return fmt.Errorf("skipped %v", skipped)
	}
	return c.Close()
}

func expect(err error, parts ...string) error {
	for _, p := range parts {
		if err == nil || !strings.Contains(err.Error(), p) {
			return fmt.Errorf("error %v, want one with %q", err, p)
		}
	}
	return nil
}
