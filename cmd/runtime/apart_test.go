//go:build linux

package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"starling/core/comm"
	"starling/sdk/vec"
)

// apartRecipe is small, and has three ranks.
const apartRecipe = `
load("@std//models/mlp.star", "mlp")
ranks = param("ranks", 3, "data-parallel ranks")
steps = param("steps", 12, "optimizer steps")
digits = data.digits(samples = 400, seed = 1)
model = mlp(classes = 10, widths = [64])
def loss(batch):
    return nn.cross_entropy(model(batch.features), batch.labels)
train(
    loss       = loss,
    data       = loader(digits.train, global_batch = 48, micro_batch = 8),
    optimizer  = optim.sgd(lr = 0.01),
    parallel   = parallel.mesh(data = ranks, timeout = 20),
    checkpoint = checkpoint(every = 4),
    steps      = steps,
)
`

// namespaces makes network namespaces, each with an interface of its own on one bridge in the first: several hosts on one
// machine. It skips the test where that is not allowed. Host i has the addresses 10.77.8.(i+1) and fd77::(i+1).
func namespaces(t *testing.T, n int) []string {
	t.Helper()
	tag := fmt.Sprint(os.Getpid())
	var names []string
	ip := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Skipf("no network namespaces here (they need root and iproute2): ip %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	for i := range n {
		names = append(names, fmt.Sprintf("starH%d-%s", i, tag))
	}
	t.Cleanup(func() {
		for _, n := range names {
			_ = exec.Command("ip", "netns", "del", n).Run()
		}
	})
	hub := names[0]
	for _, name := range names {
		ip("netns", "add", name)
		ip("-n", name, "link", "set", "lo", "up")
	}
	ip("-n", hub, "link", "add", "br0", "type", "bridge")
	ip("-n", hub, "link", "set", "br0", "up")
	for i, name := range names {
		device := "eth0"
		if i == 0 {
			device = "br0" // the bridge is an interface of its own host
		} else {
			ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", fmt.Sprintf("v%d", i), "netns", hub)
			ip("-n", hub, "link", "set", fmt.Sprintf("v%d", i), "master", "br0", "up")
			ip("-n", name, "link", "set", "eth0", "up")
		}
		ip("-n", name, "addr", "add", fmt.Sprintf("10.77.8.%d/24", i+1), "dev", device)
		ip("-n", name, "addr", "add", fmt.Sprintf("fd77::%d/64", i+1), "dev", device, "nodad")
	}
	return names
}

func inside(name string) []string { return []string{"ip", "netns", "exec", name} }

// TestRanksOnSeveralHosts: one recipe, run here and on two "hosts" — by processes that are started separately and meet, and by a
// cluster file — over IPv4 and IPv6, ends with one hash.
func TestRanksOnSeveralHosts(t *testing.T) {
	recipe := recipeFile(t, apartRecipe)
	names := namespaces(t, 2)
	want := runtimeResult(t, filepath.Join(t.TempDir(), "here"), "exec", recipe).WeightsSHA256
	const secret = "STARLING_SECRET=a secret for these processes alone"

	for _, c := range []struct {
		name, meet, listen string
	}{
		{"IPv4", "10.77.8.1:29400", ""},
		{"IPv6 subnet and ports", "[fd77::1]:29400", "tcp:[fd77::/64]:29500-29510"},
	} {
		t.Run("separately started, "+c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "run")
			var ps []*process
			for i, host := range []string{names[0], names[1], names[0]} { // the ranks of the first become neighbours
				args := []string{"exec", recipe, "--run-dir", dir, "--rendezvous", c.meet}
				if c.listen != "" {
					args = append(args, "--listen", c.listen)
				}
				ps = append(ps, startThrough(t, inside(host), []string{fmt.Sprint("RANK=", i), "WORLD_SIZE=3", secret}, args...))
			}
			for i, p := range ps {
				if code := p.wait(t, time.Minute); code != 0 {
					t.Fatalf("process %d: exit status %d\n%s", i, code, p.stderr.String())
				}
			}
			if got := readResult(t, dir).WeightsSHA256; got != want {
				t.Errorf("weights %s, on one host %s", got, want)
			}
			contains(t, ps[0].stderr.String(), "ranks connected by", "with TLS", "shared memory among 2 ranks of this host")
			for _, p := range ps {
				if strings.Contains(p.stderr.String(), "these processes alone") {
					t.Error("the secret is in the log")
				}
			}
		})
	}
	t.Run("cluster file", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "run")
		hosts := filepath.Join(t.TempDir(), "hosts.json")
		text := fmt.Sprintf(`{"listen": "tcp:10.77.8.0/24:0", "start": ["ip", "netns", "exec", "{address}"],
			"hosts": [{"name": "a", "address": %q, "ranks": 2}, {"name": "b", "address": %q, "ranks": 1}]}`, names[0], names[1])
		if err := os.WriteFile(hosts, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := runtimeResult(t, dir, "exec", recipe, "--cluster", hosts).WeightsSHA256; got != want {
			t.Errorf("weights %s, on one host %s", got, want)
		}
	})
	t.Run("loopback", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "run")
		hosts := filepath.Join(t.TempDir(), "hosts.json")
		text := fmt.Sprintf(`{"listen": "tcp:127.0.0.1:0", "start": ["ip", "netns", "exec", "{name}"], "hosts": [{"name": %q}, {"name": %q}]}`, names[0], names[1])
		if err := os.WriteFile(hosts, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		p := start(t, "exec", recipe, "--run-dir", dir, "--cluster", hosts)
		if code := p.wait(t, 20*time.Second); code != 1 {
			t.Errorf("exit status %d, want 1", code)
		}
		contains(t, p.stderr.String(), "is the loopback interface, which other machines cannot reach")
	})
	t.Run("a host without the run folder", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "run")
		env := func(i int) []string { return []string{fmt.Sprint("RANK=", i), "WORLD_SIZE=2", secret} }
		args := []string{"exec", recipe, "--set", "ranks=2", "--rendezvous", "10.77.8.1:29400"}
		first := startThrough(t, inside(names[0]), env(0), append(args, "--run-dir", dir)...)
		eventually(t, 20*time.Second, "no run folder", func() bool { _, err := os.Stat(filepath.Join(dir, recordFile)); return err == nil })
		if err := os.Rename(filepath.Join(dir, recordFile), filepath.Join(dir, "elsewhere.json")); err != nil {
			t.Fatal(err)
		}
		startThrough(t, inside(names[1]), env(1), args...)
		if code := first.wait(t, time.Minute); code != 1 {
			t.Errorf("exit status %d, want 1", code)
		}
		contains(t, first.stderr.String(), "does not see the run folder")
	})
}

// TestACutBetweenHosts: the network between two hosts is cut in the middle of a run, with no reset. Every process ends, and
// says which rank is silent.
func TestACutBetweenHosts(t *testing.T) {
	recipe := recipeFile(t, strings.Replace(apartRecipe, "timeout = 20", "timeout = 3", 1))
	names := namespaces(t, 2)
	dir := filepath.Join(t.TempDir(), "run")
	var ps []*process
	for i, host := range names {
		ps = append(ps, startThrough(t, inside(host), []string{fmt.Sprint("RANK=", i), "WORLD_SIZE=2", "STARLING_SECRET=a secret for these processes alone"},
			"exec", recipe, "--run-dir", dir, "--rendezvous", "10.77.8.1:29400", "--set", "ranks=2", "--set", "steps=10000000"))
	}
	eventually(t, 20*time.Second, "no checkpoint", func() bool { return resumable(dir) })
	if out, err := exec.Command("ip", "-n", names[1], "link", "set", "eth0", "down").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for i, p := range ps {
		if code := p.wait(t, 40*time.Second); code != 1 {
			t.Errorf("process %d: exit status %d, want 1", i, code)
		}
	}
	contains(t, ps[0].stderr.String(), "rank 1", "--resume")
	contains(t, ps[1].stderr.String(), "rank 0")
	for _, p := range []string{"stacks-rank0.txt", "operations-rank0.txt", "stacks-rank1.txt", "operations-rank1.txt"} {
		if _, err := os.Stat(filepath.Join(dir, p)); err != nil {
			t.Error(err)
		}
	}
}

// TestMPIIsTakenByItself: under mpirun, on a machine with a device that has remote access to memory, ranks of different hosts are connected by
// MPI without being told to, in a program that has it; the choice is printed, and another can be made.
func TestMPIIsTakenByItself(t *testing.T) {
	if _, err := exec.LookPath("mpirun"); err != nil {
		t.Skip("no mpirun here")
	}
	with, without := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(with, "class/infiniband/mlx5_0"), 0o755); err != nil {
		t.Fatal(err)
	}
	recipe := recipeFile(t, apartRecipe)
	const byMPI = "ranks connected by MPI (Open MPI"
	var want string
	for _, c := range []struct {
		name, system string
		args         []string
		mpi          bool
	}{
		{"a device", with, nil, comm.MPIBuilt},
		{"another choice", with, []string{"--transport", "tcp"}, false},
		{"encryption", with, []string{"--tls", "on"}, false},
		{"no device", without, nil, false},
	} {
		dir := filepath.Join(t.TempDir(), "run")
		args := append([]string{"exec", recipe, "--run-dir", dir, "--set", "ranks=2", "--set", "steps=2"}, c.args...)
		p := startThrough(t, []string{"mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", "bash", "-c", `STARLING_HOST=host$OMPI_COMM_WORLD_RANK exec "$@"`, "-"},
			[]string{"STARLING_SECRET=a secret for these processes alone", envSystem + "=" + c.system}, args...)
		if code := p.wait(t, time.Minute); code != 0 {
			t.Fatalf("%s: exit status %d\n%s", c.name, code, p.stderr.String())
		}
		contains(t, p.stderr.String(), "ranks connected by ")
		if got := strings.Contains(p.stderr.String(), byMPI); got != c.mpi {
			t.Errorf("%s: connected by MPI: %v\n%s", c.name, got, p.stderr.String())
		}
		r := readResult(t, dir)
		if want == "" {
			want = r.WeightsSHA256
		}
		if r.WeightsSHA256 != want {
			t.Errorf("%s: weights %s, want %s", c.name, r.WeightsSHA256, want)
		}
	}
}

// TestMpirunStartsTheRanks: a real mpirun, whose processes meet; the same hash, and a rank that is killed is named.
func TestMpirunStartsTheRanks(t *testing.T) {
	if _, err := exec.LookPath("mpirun"); err != nil {
		t.Skip("no mpirun here")
	}
	mpirun := []string{"mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "3"}
	recipe := recipeFile(t, apartRecipe)
	want := runtimeResult(t, filepath.Join(t.TempDir(), "here"), "exec", recipe).WeightsSHA256
	dir := filepath.Join(t.TempDir(), "run")
	p := startThrough(t, mpirun, []string{"STARLING_SECRET=a secret for these processes alone"}, "exec", recipe, "--run-dir", dir)
	if code := p.wait(t, time.Minute); code != 0 {
		t.Fatalf("exit status %d\n%s", code, p.stderr.String())
	}
	if got := readResult(t, dir).WeightsSHA256; got != want {
		t.Errorf("weights %s, without mpirun %s", got, want)
	}
	// Between hosts by MPI, where the program has it.
	through := filepath.Join(t.TempDir(), "mpi")
	p = startThrough(t, append(mpirun, "bash", "-c", `STARLING_HOST=host$((OMPI_COMM_WORLD_RANK/2)) exec "$@"`, "-"), []string{"STARLING_SECRET=a secret for these processes alone"}, "exec", recipe, "--run-dir", through, "--transport", "mpi")
	if code := p.wait(t, 2*time.Minute); comm.MPIBuilt {
		if code != 0 {
			t.Fatalf("exit status %d\n%s", code, p.stderr.String())
		}
		contains(t, p.stderr.String(), "ranks connected by MPI (Open MPI", "shared memory among 2 ranks of this host")
		if got := readResult(t, through).WeightsSHA256; got != want {
			t.Errorf("weights %s by MPI, want %s", got, want)
		}
	} else {
		contains(t, p.stderr.String(), "this program was built without it")
	}
	p = startThrough(t, mpirun, nil, "exec", recipe, "--run-dir", filepath.Join(t.TempDir(), "run"))
	if code := p.wait(t, time.Minute); code == 0 {
		t.Error("a job without a secret ran")
	}
	contains(t, p.stderr.String(), "need a secret")
	p = startThrough(t, mpirun, []string{"STARLING_SECRET=a secret for these processes alone"}, "exec", recipe, "--set", "ranks=2", "--run-dir", filepath.Join(t.TempDir(), "run"))
	if code := p.wait(t, time.Minute); code == 0 {
		t.Error("3 processes ran 2 ranks")
	}
	contains(t, p.stderr.String(), "the recipe has 2 ranks")
}

// TestAKilledRankSaysHowToGoOn: after the first checkpoint, the error ends with the command that resumes, and it works.
func TestAKilledRankSaysHowToGoOn(t *testing.T) {
	recipe := recipeFile(t, strings.Replace(slowRecipe, "every = 0", "every = 5", 1))
	dir := filepath.Join(t.TempDir(), "run")
	p := start(t, "exec", recipe, "--run-dir", dir)
	eventually(t, 30*time.Second, "no checkpoint", func() bool { return resumable(dir) })
	var pid int
	if _, err := fmt.Sscan(children(t, dir)[0], &pid); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if code := p.wait(t, 20*time.Second); code != 1 {
		t.Errorf("exit status %d, want 1", code)
	}
	contains(t, p.stderr.String(), "was killed by signal 9", "go on from the last checkpoint with: runtime exec "+recipe+" --run-dir "+dir+" --resume")
}

// TestASmallDevShm: containers often give /dev/shm 64 MB or less; the ranks share memory all the same.
func TestASmallDevShm(t *testing.T) {
	small := []string{"unshare", "-m", "sh", "-c", `mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$@"`, "-"}
	if out, err := exec.Command(small[0], append(small[1:], "true")...).CombinedOutput(); err != nil {
		t.Skipf("no mount namespaces here (they need root and unshare): %v: %s", err, out)
	}
	dir := filepath.Join(t.TempDir(), "run")
	p := startThrough(t, small, nil, "exec", recipeFile(t, apartRecipe), "--run-dir", dir)
	if code := p.wait(t, time.Minute); code != 0 {
		t.Fatalf("exit status %d\n%s", code, p.stderr.String())
	}
	contains(t, p.stderr.String(), "shared memory among 3 ranks of this host")
}

// TestKernelsThatDiffer: ranks whose processors multiply bfloat16 otherwise are refused when they meet, where that decides bits, and
// work together where it does not.
func TestKernelsThatDiffer(t *testing.T) {
	if vec.BF16Class() == vec.BF16FMA {
		t.Skip("this processor has no instructions for bfloat16, without which all ranks compute alike")
	}
	hosts := filepath.Join(t.TempDir(), "hosts.json")
	text := `{"listen": "tcp:127.0.0.1:0", "hosts": [{"name": "a", "start": []}, {"name": "b", "start": ["env", "STARLING_KERNELS=avx2"]}]}`
	if err := os.WriteFile(hosts, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	recipe := recipeFile(t, strings.Replace(apartRecipe, "steps      = steps", `precision = {"bf16": precision.bf16(), "fp32": precision.fp32()}[param("precision", "fp32", "")], steps = steps`, 1))
	dir := filepath.Join(t.TempDir(), "run")
	p := start(t, "exec", recipe, "--run-dir", dir, "--cluster", hosts, "--set", "ranks=2", "--set", "precision=bf16")
	if code := p.wait(t, time.Minute); code != 1 {
		t.Errorf("exit status %d, want 1", code)
	}
	contains(t, p.stderr.String(), "in arithmetic class", `"bf16 fma"`, `"bf16 `+vec.BF16Class()+`"`, "their results would differ in bits", "set STARLING_BF16 on every rank to a class that all have: fma")
	want := runtimeResult(t, filepath.Join(t.TempDir(), "here"), "exec", recipe, "--set", "ranks=2").WeightsSHA256
	if got := runtimeResult(t, filepath.Join(t.TempDir(), "run"), "exec", recipe, "--cluster", hosts, "--set", "ranks=2").WeightsSHA256; got != want {
		t.Errorf("weights %s with two kernel sets, %s with one", got, want)
	}
}

// TestASignalToOneOfSeveralProcesses: batch systems signal the processes they have started. Whichever is asked to end, a checkpoint
// is written and all end in order; it can be gone on from in the same way.
func TestASignalToOneOfSeveralProcesses(t *testing.T) {
	recipe := recipeFile(t, strings.Replace(apartRecipe, "every = 4", "every = 0", 1))
	want := runtimeResult(t, filepath.Join(t.TempDir(), "here"), "exec", recipe, "--set", "ranks=2", "--set", "steps=1200").WeightsSHA256
	dir := filepath.Join(t.TempDir(), "run")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	meet := l.Addr().String()
	_ = l.Close()
	both := func(more ...string) []*process {
		var ps []*process
		for i := range 2 {
			ps = append(ps, startThrough(t, nil, []string{fmt.Sprint("RANK=", i), "WORLD_SIZE=2", "STARLING_SECRET=a secret for these processes alone"},
				append([]string{"exec", recipe, "--run-dir", dir, "--rendezvous", meet, "--set", "ranks=2", "--set", "steps=1200"}, more...)...))
		}
		return ps
	}
	ps := both()
	running(t, ps[0], dir)
	if err := ps[1].cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := ps[0].wait(t, 30*time.Second); code != 130 {
		t.Errorf("the launcher's exit status is %d, want 130\n%s", code, ps[0].stderr.String())
	}
	if code := ps[1].wait(t, 30*time.Second); code != 0 {
		t.Errorf("the other's exit status is %d, want 0\n%s", code, ps[1].stderr.String())
	}
	for i, p := range both("--resume") {
		if code := p.wait(t, time.Minute); code != 0 {
			t.Fatalf("process %d: exit status %d\n%s", i, code, p.stderr.String())
		}
	}
	if got := readResult(t, dir).WeightsSHA256; got != want {
		t.Errorf("weights %s, without a stop %s", got, want)
	}
}

// TestUnlikeProcessesAreRefused: processes that were started separately with other parameters would not train one model.
func TestUnlikeProcessesAreRefused(t *testing.T) {
	recipe := recipeFile(t, apartRecipe)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	meet := l.Addr().String()
	_ = l.Close()
	var ps []*process
	for i := range 2 {
		ps = append(ps, startThrough(t, nil, []string{fmt.Sprint("RANK=", i), "WORLD_SIZE=2", "STARLING_SECRET=a secret for these processes alone"},
			"exec", recipe, "--run-dir", filepath.Join(t.TempDir(), "run"), "--rendezvous", meet, "--set", "ranks=2", "--set", fmt.Sprint("steps=", 4+i)))
	}
	for i, p := range ps {
		if code := p.wait(t, time.Minute); code != 1 {
			t.Errorf("process %d: exit status %d, want 1\n%s", i, code, p.stderr.String())
		}
		contains(t, p.stderr.String(), "process 1 of 2 was started with another recipe or other parameters than process 0")
	}
}

// TestASignalWhileWaiting: processes that wait for each other end when they are asked to, as an interrupted run does; an address without
// a port is refused before there is a run folder.
func TestASignalWhileWaiting(t *testing.T) {
	recipe := recipeFile(t, apartRecipe)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	meet := l.Addr().String()
	_ = l.Close()
	dir := filepath.Join(t.TempDir(), "run")
	begin := func(rank int, meet string) *process {
		return startThrough(t, nil, []string{fmt.Sprint("RANK=", rank), "WORLD_SIZE=3", "STARLING_SECRET=a secret for these processes alone"},
			"exec", recipe, "--run-dir", dir, "--rendezvous", meet)
	}
	for rank := range 2 {
		p := begin(rank, "localhost")
		if code := p.wait(t, 20*time.Second); code == 0 {
			t.Error("a rendezvous without a port was taken")
		}
		contains(t, p.stderr.String(), "--rendezvous", "localhost:29500")
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("a refused job has left a run folder")
	}
	first, other := begin(0, meet), begin(1, meet)
	eventually(t, 20*time.Second, "no launcher", func() bool {
		c, err := net.Dial("tcp", meet)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	time.Sleep(500 * time.Millisecond) // rank 0's process and the other come
	for _, p := range []*process{other, first} {
		if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if code := p.wait(t, 20*time.Second); code != 130 {
			t.Errorf("exit status %d, want 130\n%s", code, p.stderr.String())
		}
		contains(t, p.stderr.String(), "interrupted")
	}
}
