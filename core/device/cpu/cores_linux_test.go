package cpu

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func TestQuotaOfControlGroups(t *testing.T) {
	const (
		two    = "31 23 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
		inside = "31 23 0:27 /kube/pod1 /sys/fs/cgroup ro - cgroup2 cgroup rw\n"
		one    = "30 25 0:26 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n32 25 0:28 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
	)
	for _, c := range []struct {
		name, self, mounts string
		files              map[string]string
		want               float64
	}{
		{"version 2", "0::/job\n", two, map[string]string{"/sys/fs/cgroup/job/cpu.max": "150000 100000\n"}, 1.5},
		{"no limit", "0::/job\n", two, map[string]string{"/sys/fs/cgroup/job/cpu.max": "max 100000\n"}, 0},
		{"the group above is narrower", "0::/a/b\n", two, map[string]string{"/sys/fs/cgroup/a/cpu.max": "200000 100000\n", "/sys/fs/cgroup/a/b/cpu.max": "800000 100000\n"}, 2},
		{"a container sees its part of the tree", "0::/kube/pod1/c\n", inside, map[string]string{"/sys/fs/cgroup/c/cpu.max": "50000 100000\n", "/sys/fs/cgroup/cpu.max": "400000 100000\n"}, 0.5},
		{"a container with a namespace", "0::/\n", two, map[string]string{"/sys/fs/cgroup/cpu.max": "300000 100000\n"}, 3},
		{"version 1", "4:cpuset:/\n3:cpu,cpuacct:/docker/x\n0::/\n", one + strings.ReplaceAll(two, "/sys/fs/cgroup ", "/sys/fs/cgroup/unified "),
			map[string]string{"/sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us": "250000\n", "/sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us": "100000\n"}, 2.5},
		{"version 1, no limit", "3:cpu,cpuacct:/\n", one, map[string]string{"/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n", "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n"}, 0},
		{"nothing mounted", "0::/\n", "", nil, 0},
		{"nonsense", "x\n\n:::\n", "- \na - b\n", nil, 0},
	} {
		if got := quotaOf(c.self, c.mounts, func(f string) string { return c.files[f] }); got != c.want {
			t.Errorf("%s: %v cores, want %v", c.name, got, c.want)
		}
	}
}

func TestThreadsWaitAwakeOnlyWithACoreEach(t *testing.T) {
	for _, c := range []struct {
		threads, ranks, processors int
		quota                      float64
		want                       bool
	}{
		{2, 1, 2, 0, true}, {2, 1, 2, 2, true}, {2, 1, 2, 1.5, false}, {1, 2, 2, 0, true}, {2, 2, 2, 0, false}, {2, 2, 8, 3, false}, {2, 2, 8, 4, true},
	} {
		if got := maySpin(c.threads, c.ranks, c.processors, c.quota); got != c.want {
			t.Errorf("%d ranks of %d threads on %d processors, %v cores' time: %v", c.ranks, c.threads, c.processors, c.quota, got)
		}
	}
	for _, c := range []struct {
		processors int
		quota      float64
		want       int
	}{{8, 0, 8}, {8, 2, 2}, {8, 2.5, 3}, {8, 0.3, 1}, {2, 16, 2}} {
		if got := coresOf(c.processors, c.quota); got != c.want {
			t.Errorf("%d processors, %v cores' time: %d, want %d", c.processors, c.quota, got, c.want)
		}
	}
	// Room made for goroutines that do not compute is no core.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(atStart + 6))
	if d := open(t, Config{Threads: atStart + 2}); d.pool.spin != 0 {
		t.Error("more threads than cores wait awake")
	}
	if d := open(t, Config{}); d.Threads() != Cores() {
		t.Errorf("%d threads on %d cores", d.Threads(), Cores())
	}
}

// A process in a control group with the time of one core opens a device of one thread. Needs the right to make such a group.
func TestDeviceInAControlGroup(t *testing.T) {
	if os.Getenv("STARLING_TEST_QUOTA") != "" {
		d := open(t, Config{})
		fmt.Printf("quota %v threads %d spin %v\n", quota(), d.Threads(), open(t, Config{Threads: 2}).pool.spin > 0)
		return
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Skip(err)
	}
	set := map[string]string{"cpu.max": "100000 100000"}
	point, _ := mountOf(string(mounts), true)
	dir := filepath.Join(point, fmt.Sprintf("starling-test-%d", os.Getpid()))
	if b, _ := os.ReadFile(filepath.Join(point, "cgroup.subtree_control")); !strings.Contains(" "+strings.TrimSpace(string(b))+" ", " cpu ") {
		set = map[string]string{"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "100000"}
		point, _ = mountOf(string(mounts), false)
		dir = filepath.Join(point, filepath.Base(dir))
	}
	if point == "" {
		t.Skip("no control groups that limit processor time")
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skip("no right to make a control group: ", err)
	}
	defer os.Remove(dir)
	for name, v := range set {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(v), 0o644); err != nil {
			t.Skip("control groups without limits of processor time: ", err)
		}
	}
	c := exec.Command("/bin/sh", "-c", `echo $$ > "$1/cgroup.procs" && exec "$2" -test.run '^TestDeviceInAControlGroup$' -test.count 1`, "sh", dir, os.Args[0])
	c.Env = append(os.Environ(), "STARLING_TEST_QUOTA=1")
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if !strings.Contains(string(out), "quota 1 threads 1 spin false") {
		t.Errorf("a process with the time of one core says:\n%s", out)
	}
}
