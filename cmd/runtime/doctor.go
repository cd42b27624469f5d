package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/bits"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"starling/core/cluster"
	"starling/core/comm"
	"starling/core/comm/machine"
	"starling/core/comm/mesh"
	"starling/core/device/cpu"
	"starling/core/plugin"
	"starling/sdk/vec"
)

// diagnosis is what doctor finds out about a machine.
type diagnosis struct {
	Version   string           `json:"version"`
	Go        string           `json:"go"`
	MPI       bool             `json:"mpi"`
	CPU       string           `json:"cpu"`
	Online    int              `json:"cpus_online"`
	Usable    int              `json:"cpus_usable"`
	Threads   int              `json:"threads_by_default"` // the limit of a control group counts
	Scaling   float64          `json:"scaling"`            // what Threads threads do at once, in threads that run alone
	Kernels   string           `json:"kernels"`
	BF16      string           `json:"bf16"`
	Memory    int64            `json:"memory_bytes"`
	Available int64            `json:"memory_available_bytes"`
	Group     int64            `json:"memory_limit_bytes,omitempty"` // of a control group
	Shm       int64            `json:"dev_shm_bytes"`
	Shared    string           `json:"shared_memory"` // "" if ranks can share memory, else why not
	Memlock   string           `json:"memlock"`
	Files     string           `json:"open_files"`
	HugePages string           `json:"huge_pages"`
	Plugins   []string         `json:"plugins"`
	Topology  machine.Topology `json:"topology"`
	Advice    []string         `json:"advice"`
}

func newDoctor() *cobra.Command {
	var o execOptions
	var asJSON, links bool
	var ranks int
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Show what this machine has, and measure the links between ranks",
		Long: `Show what this machine has: processor and kernels, whether its cores are real, memory and its limits, NUMA nodes, network interfaces, plugins.

With --links ranks are started as exec would start them, and every pair is measured: how long they wait for each other, and how
much they exchange.`,
		Example: `  runtime doctor
  runtime doctor --links --ranks 4 --transport tcp
  runtime doctor --links --cluster hosts.json
  runtime doctor --links --hosts a,a,b,b
  srun -n 8 runtime doctor --links`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if links {
				return o.doctorLinks(c, ranks, asJSON)
			}
			d := diagnose()
			if asJSON {
				return writeJSON(c.OutOrStdout(), d)
			}
			_, err := io.WriteString(c.OutOrStdout(), d.text())
			return err
		},
	}
	f := c.Flags()
	f.BoolVar(&asJSON, "json", false, "print JSON")
	f.BoolVar(&links, "links", false, "start ranks and measure the links between them")
	f.IntVar(&ranks, "ranks", 0, "how many ranks --links starts (default: as many as --hosts or the cluster file say or something else has started, else 2)")
	o.placementFlags(f)
	return c
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// doctorLinks starts ranks and prints what they have measured.
func (o execOptions) doctorLinks(c *cobra.Command, ranks int, asJSON bool) error {
	one, err := o.started()
	if err != nil {
		return err
	}
	if err := o.alone(one); err != nil {
		return err
	}
	switch {
	case one != nil && !c.Flags().Changed("ranks"):
		ranks = one.World
	case one != nil && one.World != ranks:
		return &exitError{2, fmt.Errorf("--ranks %d: %s has started %d processes, and each is a rank; leave --ranks out, or give --start here to ignore them", ranks, one.By, one.World)}
	case c.Flags().Changed("ranks"):
	case o.cluster != "":
		h, err := cluster.ReadHosts(o.cluster)
		if err != nil {
			return err
		}
		ranks = h.Ranks()
	default:
		ranks = max(2, len(o.hosts))
	}
	if ranks < 2 || ranks > 1024 {
		return &exitError{2, fmt.Errorf("--ranks %d: links are between 2 ranks or more, up to 1024", ranks)}
	}
	if one != nil && one.Number > 0 {
		return attend(c.Context(), nil, one, o, ranks, "", "") // signals end it as they end any process
	}
	places, meet, err := o.far(one, mesh.Axes{{Name: "data", Size: ranks}})
	if err != nil {
		return err
	}
	payload, err := json.Marshal(job{Links: true, World: ranks})
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	results, err := cluster.Launch(c.Context(), cluster.Config{
		Ranks: ranks, Listen: o.listen, Transport: o.transport, Hosts: o.hosts, TLS: o.tls, Places: places, Rendezvous: meet, Payload: payload,
		Command: func(int) *exec.Cmd { return exec.Command(self) },
	})
	if err != nil {
		return o.blame(err)
	}
	var all []linkReport
	for r, b := range results {
		var some []linkReport
		if err := json.Unmarshal(b, &some); err != nil {
			return fmt.Errorf("rank %d gave no result: %w", r, err)
		}
		all = append(all, some...)
	}
	if asJSON {
		return writeJSON(c.OutOrStdout(), all)
	}
	_, err = fmt.Fprintf(c.OutOrStdout(), "ranks connected by %s\n%s", all[0].Words, linksTable(ranks, all))
	return err
}

func diagnose() diagnosis {
	d := diagnosis{Version: version, Go: runtime.Version(), MPI: comm.MPIBuilt, Online: onlineCPUs(), Usable: runtime.NumCPU(), Threads: cpu.Cores(),
		Kernels: vec.Active(), BF16: vec.BF16Class(), Topology: machine.Discover("/sys")}
	advise := func(format string, args ...any) { d.Advice = append(d.Advice, fmt.Sprintf(format, args...)) }
	d.CPU = field("/proc/cpuinfo", "model name")
	d.Memory, d.Available = kib(field("/proc/meminfo", "MemTotal")), kib(field("/proc/meminfo", "MemAvailable"))
	for _, path := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		b, err := os.ReadFile(path)
		if n, e := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil && e == nil && n < d.Memory {
			d.Group = n
		}
	}
	if err := comm.CheckSharing(); err != nil {
		d.Shared = err.Error()
		advise("ranks of this machine cannot share memory (%v); they will use Unix sockets, which are slower", err)
	}
	d.limits()
	if b, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled"); err == nil {
		d.HugePages = strings.TrimSpace(string(b))
		if strings.Contains(d.HugePages, "[never]") {
			advise("huge pages are off: large buffers are touched more slowly (echo madvise > /sys/kernel/mm/transparent_hugepage/enabled)")
		}
	}
	d.Scaling = scaling(d.Threads)
	if d.Threads > 1 && d.Scaling < 0.7*float64(d.Threads) {
		advise("%d threads at once do the work of %.1f: the cores are shared with another machine or process, or two of them are one; fewer threads (--threads) may be as fast", d.Threads, d.Scaling)
	}
	if d.Usable > d.Threads {
		advise("a control group limits this process to the time of %d of %d processors", d.Threads, d.Usable)
	}
	if len(d.Topology.Nodes) > 1 {
		advise("there are %d NUMA nodes; start ranks with one per node bound to it (srun --cpu-bind=ldoms, mpirun --map-by numa)", len(d.Topology.Nodes))
	}
	if len(d.Topology.RemoteMemory) > 0 && !d.MPI {
		advise("%s could carry data between hosts by MPI, and this program was built without it: CGO_ENABLED=1 go build -tags mpi", strings.Join(d.Topology.RemoteMemory, ", "))
	}
	if found, err := plugin.List(plugin.Dirs(".")); err == nil {
		for _, p := range found {
			d.Plugins = append(d.Plugins, p.Name)
		}
	}
	return d
}

// field returns a value of a file of lines such as "name : value", "" where there is none.
func field(path, name string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if k, v, ok := strings.Cut(s.Text(), ":"); ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// kib reads a size such as "1024 kB".
func kib(s string) int64 {
	n, err := strconv.ParseInt(strings.TrimSuffix(s, " kB"), 10, 64)
	if err != nil {
		return 0
	}
	return n << 10
}

// scaling measures how much more so many threads do at once than one does alone.
func scaling(threads int) float64 {
	const window = 40 * time.Millisecond
	alone, together := 0.0, 0.0
	for range 3 { // the best of a few: others may use the machine for a moment
		alone, together = max(alone, spin(1, window)), max(together, spin(threads, window))
	}
	return together / alone
}

// spin returns how much work threads do in a while, each on its own.
func spin(threads int, window time.Duration) float64 {
	var wg sync.WaitGroup
	done := make([]uint64, threads)
	end := time.Now().Add(window)
	for i := range threads {
		wg.Go(func() {
			x := uint64(i) + 1
			n := uint64(0)
			for time.Now().Before(end) {
				for range 2000 {
					x = bits.RotateLeft64(x*0x9e3779b97f4a7c15, 31) ^ x
				}
				n++
			}
			if x != 0 { // so that the work is done
				done[i] = n
			}
		})
	}
	wg.Wait()
	total := uint64(0)
	for _, n := range done {
		total += n
	}
	return float64(total)
}

func (d diagnosis) text() string {
	yes := func(b bool, a, otherwise string) string {
		if b {
			return a
		}
		return otherwise
	}
	memory := fmt.Sprintf("%s, %s available", bytesText(d.Memory), bytesText(d.Available))
	if d.Group > 0 {
		memory += fmt.Sprintf(", %s for this control group", bytesText(d.Group))
	}
	rows := [][2]string{
		{"program", fmt.Sprintf("starling %s, %s, %s/%s, %s", d.Version, d.Go, runtime.GOOS, runtime.GOARCH, yes(d.MPI, "with MPI", "without MPI"))},
		{"processor", fmt.Sprintf("%s, %d of %d usable", d.CPU, d.Usable, d.Online)},
		{"cores", fmt.Sprintf("%d thread%s at once do the work of %.2f", d.Threads, plural(d.Threads), d.Scaling)},
		{"kernels", fmt.Sprintf("%s; bf16: %s", d.Kernels, d.BF16)},
		{"memory", memory},
		{"shared memory", yes(d.Shared == "", fmt.Sprintf("ranks can share memory (memfd); /dev/shm, which they do not need, has %s", bytesText(d.Shm)), d.Shared)},
		{"limits", fmt.Sprintf("locked memory %s, open files %s", d.Memlock, d.Files)},
		{"huge pages", d.HugePages},
	}
	for _, n := range d.Topology.Nodes {
		rows = append(rows, [2]string{fmt.Sprintf("NUMA node %d", n.ID), fmt.Sprintf("processors %s, %s", n.CPUs, bytesText(int64(n.MiB)<<20))})
	}
	for _, i := range d.Topology.Interfaces {
		if !i.Up || len(i.Addresses) == 0 {
			continue
		}
		speed := yes(i.Loopback, "loopback", "speed not known")
		if i.Mbit > 0 {
			speed = fmt.Sprintf("%d Mbit/s", i.Mbit)
		}
		rows = append(rows, [2]string{"interface " + i.Name, strings.Join(i.Addresses, ", ") + ", " + speed})
	}
	rows = append(rows,
		[2]string{"RDMA", yes(len(d.Topology.RemoteMemory) > 0, strings.Join(d.Topology.RemoteMemory, ", "), "none")},
		[2]string{"GPUs", yes(len(d.Topology.GPUs) > 0, strings.Join(d.Topology.GPUs, ", "), "none")},
		[2]string{"plugins", yes(len(d.Plugins) > 0, strings.Join(d.Plugins, ", "), "none found")})
	rows = slices.DeleteFunc(rows, func(r [2]string) bool { return r[1] == "" })
	s := table(rows)
	for _, a := range d.Advice {
		s += "\n" + a + "."
	}
	if len(d.Advice) > 0 {
		s += "\n"
	}
	return s
}
