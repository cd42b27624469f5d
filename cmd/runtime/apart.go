package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"starling/core/cluster"
	"starling/core/comm/machine"
	"starling/core/comm/mesh"
	"starling/core/device/cpu"
	"starling/core/recipe"
	"starling/core/train"
)

// Ranks on other machines: started by this program through a cluster file, or by something else that starts every process of
// the job.

// sharedFolderPatience is how long a file system may take to show on one host what was written on another.
const sharedFolderPatience = 5 * time.Second

// enter puts this process where the launcher's paths mean the same: into its working directory, if there is one here.
func (j job) enter(rank int) error {
	if !j.Apart {
		return nil
	}
	if err := os.Chdir(j.Dir); err != nil && !(filepath.IsAbs(j.Recipe) && filepath.IsAbs(j.RunDir)) {
		return fmt.Errorf("rank %d: the launcher's working directory is not on this machine: %w; start the run in a folder that all hosts share, or give the recipe and --run-dir as absolute paths", rank, err)
	}
	for end := time.Now().Add(sharedFolderPatience); ; time.Sleep(200 * time.Millisecond) {
		_, err := os.Stat(filepath.Join(j.RunDir, recordFile))
		if err == nil {
			return nil
		}
		if time.Now().After(end) {
			host, _ := os.Hostname()
			return fmt.Errorf("rank %d on host %s does not see the run folder: %w; checkpoints are written by all ranks, so --run-dir must lie on a file system that all hosts share", rank, host, err)
		}
	}
}

// threadsOf returns how many threads a rank has of its machine, which it shares with others. A process that was bound to
// some of the cores has those to itself.
func threadsOf(neighbours int, bound bool) int {
	usable := cpu.Cores()
	if bound && runtime.NumCPU() < onlineCPUs() {
		return max(1, min(usable, runtime.NumCPU()))
	}
	return max(1, usable/neighbours)
}

// onlineCPUs counts the machine's processors, whether this process may use them or not; 0 where that cannot be told.
func onlineCPUs() int {
	b, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		return 0
	}
	n, err := countList(strings.TrimSpace(string(b)))
	if err != nil {
		return 0
	}
	return n
}

// countList counts the members of a kernel's list such as 0-3,8.
func countList(s string) (int, error) {
	n := 0
	for _, part := range strings.Split(s, ",") {
		var a, b int
		if _, err := fmt.Sscanf(part, "%d-%d", &a, &b); err == nil && b >= a {
			n += b - a + 1
		} else if _, err := fmt.Sscanf(part, "%d", &a); err == nil {
			n++
		} else {
			return 0, fmt.Errorf("list %q: %q is no number or range", s, part)
		}
	}
	return n, nil
}

// attend is exec in a process of a job that something else started, and that is not its launcher. ranks is the recipe's number, digest what
// it computes with this process's parameters, "" where that is not known before the launcher has handed over plugins. What closes stop ends the
// wait, and later the job, in order.
func attend(ctx context.Context, stop <-chan struct{}, s *cluster.Started, o execOptions, ranks int, path, digest string) error {
	a, err := o.attendance(s, ranks)
	if err != nil {
		return err
	}
	a.Stop = stop
	seat, err := cluster.Attend(ctx, a)
	switch {
	case errors.Is(err, cluster.ErrStopped):
		return &exitError{130, fmt.Errorf("interrupted while process %d of %d waited for the others", s.Number, s.World)}
	case err != nil:
		return err
	}
	var j job
	if err := json.Unmarshal(seat.Payload(), &j); err != nil {
		return seat.Fail(fmt.Errorf("the launcher's description of the job: %w", err))
	}
	if j.Digest != digest && len(j.Plugins) > 0 { // with the launcher's plugins it may be the same
		spec, err := recipe.Load(path, recipe.Options{Set: o.set, Plugins: j.resolver(seat)})
		if err == nil {
			digest, err = recipe.Digest(spec)
		}
		if err != nil {
			return seat.Fail(err)
		}
	}
	if j.Digest != digest {
		return seat.Fail(fmt.Errorf("process %d of %d was started with another recipe or other parameters than process 0 (digest %.12s there, %.12s here); give all of them the same command line", s.Number, s.World, j.Digest, digest))
	}
	return work(seat, s.Bound)
}

// attendance is where the processes of a job that something else started meet.
func (o execOptions) attendance(s *cluster.Started, ranks int) (cluster.Attendance, error) {
	secret, err := cluster.TakeSecret()
	bad := func(err error) (cluster.Attendance, error) {
		return cluster.Attendance{}, fmt.Errorf("this process is number %d of %d, started by %s (--start here ignores that): %w", s.Number, s.World, s.By, err)
	}
	switch {
	case ranks != s.World:
		return bad(fmt.Errorf("the recipe has %d rank%s; start as many processes, or choose the ranks with --set where the recipe has a param for it", ranks, plural(ranks)))
	case o.inProcess || len(o.hosts) > 0 || o.cluster != "":
		return bad(errors.New("--in-process, --hosts and --cluster have no place beside other processes"))
	case err != nil:
		return bad(err)
	}
	if o.host != "" {
		if err := machine.CheckHostName(o.host); err != nil {
			return bad(fmt.Errorf("--host, or STARLING_HOST: %w", err))
		}
	}
	address := s.Address
	if o.rendezvous != "" {
		if address, err = cluster.MeetingPlace(o.rendezvous, "--rendezvous"); err != nil {
			return bad(err)
		}
	}
	if address == "" {
		return bad(errors.New("where the processes meet is not told: give the host of process 0 and a free port there with --rendezvous host:port, STARLING_RENDEZVOUS, or MASTER_ADDR and MASTER_PORT"))
	}
	a := cluster.Attendance{Number: s.Number, World: s.World, Address: address, Secret: secret, Host: o.host, Patience: o.patience}
	if !o.quiet {
		a.Waiting = func(why error) { fmt.Fprintln(os.Stderr, "runtime:", why) }
	}
	return a, nil
}

// started reads how this process was started; nil if it is on its own.
func (o execOptions) started() (*cluster.Started, error) {
	switch o.start {
	case "auto", "":
		return cluster.Environment(os.Getenv)
	case "here":
		return nil, nil
	}
	return nil, &exitError{2, fmt.Errorf("--start %s: choose auto, or here to ignore the environment of srun, mpirun and others", o.start)}
}

// alone refuses flags about other processes where nothing has started any.
func (o execOptions) alone(one *cluster.Started) error {
	switch {
	case one != nil || cluster.Single(os.Getenv):
	case o.host != "" && o.host != os.Getenv(envHost):
		return &exitError{2, fmt.Errorf("--host %s names this machine where srun, mpirun or others have started the processes, and none have; leave it out, or name the host of each rank with --hosts", o.host)}
	case o.rendezvous != "":
		return &exitError{2, fmt.Errorf("--rendezvous %s is where processes meet that srun, mpirun or others have started, and the environment does not say that this is one of them; start all of them so, or set RANK and WORLD_SIZE for each; leave --rendezvous out if this is the only one", o.rendezvous)}
	}
	return nil
}

// blame names the flag, or what else has given it, of a setting that makes no sense.
func (o execOptions) blame(err error) error {
	var bad *cluster.ValueError
	if !errors.As(err, &bad) {
		return err
	}
	from := "--" + strings.ToLower(bad.Of)
	switch {
	case bad.Of == "hosts" && len(o.hosts) == 0:
		from = "parallel.mesh(hosts = …)"
	case bad.Of == "transport" && o.transport != "" && o.transport == os.Getenv(envTransport):
		from = envTransport
	}
	return &exitError{2, fmt.Errorf("%s: %w", from, bad.Unwrap())}
}

// far returns where the ranks of a run are that are not simply started here: on the hosts of a cluster file, or coming by themselves.
func (o execOptions) far(s *cluster.Started, axes mesh.Axes) (places []cluster.Place, meet *cluster.Rendezvous, err error) {
	if s != nil {
		a, err := o.attendance(s, axes.Ranks())
		if err != nil {
			return nil, nil, err
		}
		at := a.Address
		if i := strings.LastIndexByte(at, ':'); !strings.HasPrefix(at, "tcp:127.") {
			at = "tcp:" + at[i:] // every interface: the name by which others find this host may mean another one here
		}
		return nil, &cluster.Rendezvous{Address: at, Secret: a.Secret, Host: a.Host, MPI: s.MPI}, nil
	}
	if o.cluster == "" {
		return nil, nil, nil
	}
	h, err := cluster.ReadHosts(o.cluster)
	if err != nil {
		return nil, nil, err
	}
	if places, err = h.Places(axes); err != nil {
		return nil, nil, fmt.Errorf("--cluster %s: %w", o.cluster, err)
	}
	return places, nil, nil
}

// declared returns the hosts that --hosts or the recipe names, and what there is to say about them. What is known of the hosts
// otherwise, by a cluster file or by the processes that have come, goes before what the recipe says.
func (o execOptions) declared(m train.Mesh, cluster bool, s *cluster.Started) (hosts, notes []string) {
	switch {
	case len(o.hosts) > 0:
		hosts = o.hosts
	case len(m.Hosts) == 0:
	case s != nil:
		notes = append(notes, fmt.Sprintf("the recipe's hosts are not used: the processes that %s has started say where they are", s.By))
	case cluster:
		notes = append(notes, "the recipe's hosts are not used: those of the cluster file are")
	default:
		hosts = m.Hosts
	}
	return hosts, notes
}

// together refuses flags about processes where the ranks are goroutines of one.
func (o execOptions) together() error {
	if !o.inProcess {
		return nil
	}
	for _, f := range [][2]string{{"cluster", o.cluster}, {"listen", o.listen}, {"tls", o.tls}, {"transport", o.transport}} {
		if f[1] != "" && (f[0] != "transport" || f[1] != os.Getenv(envTransport)) {
			return &exitError{2, fmt.Errorf("--in-process with --%s %s: the ranks of one process have no connections; leave one of the two out", f[0], f[1])}
		}
	}
	return nil
}

// splitNote warns of ranks that share a copy of the parameters and lie on several hosts, "" where none do. hosts are the ranks'.
func splitNote(m train.Mesh, hosts []string) string {
	axes := m.Axes()
	blocks, split := axes.Split(hosts)
	if len(axes) < 2 || split == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d copies of the parameters are shared between hosts: hosts that take a multiple of shard = %d ranks would keep each copy on one", split, blocks, m.Shard)
}
