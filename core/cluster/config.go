package cluster

import (
	"cmp"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"starling/core/comm"
	"starling/core/comm/machine"
	"starling/core/comm/mesh"
)

// Config of a job. Zero values ask for the defaults.
type Config struct {
	// Ranks is the number of ranks, at least 1.
	Ranks int

	// Command returns the command of a rank; by default this binary with its own arguments. Launch adds to its environment,
	// inherited files and process attributes. (Launch only.)
	Command func(rank int) *exec.Cmd
	// Listen says where the ranks listen for each other: "" for Unix sockets in a private directory that lives until they
	// are connected; "tcp:host:port" for TCP, rank r at port + r, or any free port with port 0; see comm.Listen for what
	// host may be. (Launch only.)
	Listen string
	// Transport says how the ranks move data: TransportShared through memory that the ranks of a host share, TransportUnix
	// or TransportTCP through their connections, TransportMPI by MPI between hosts; TransportAuto, the default, through shared memory
	// where it can be had, and by MPI between hosts where there are both MPI and a network with remote access to memory. What
	// goes by MPI is not encrypted: with TLS on it is refused, and not taken by itself.
	// Left empty beside a TCP Listen it means TCP. (Launch only.)
	Transport string
	// System is the root of the system's files about the launcher's devices, by default /sys. (Launch only.)
	System string
	// TLS says whether connections over TCP are encrypted (TLS 1.3, both sides with certificates of an authority that the
	// launcher makes and keeps in memory): EncryptionOn, EncryptionOff, or by default wherever the ranks listen at anything
	// but the loopback. Ranks prove in any case that they belong to the job. (Launch only.)
	TLS string
	// Hosts names the host of each process; by default they all run on this one. Ranks of one name share memory, and sums over
	// several hosts are added inside each first. Names given here are believed, so that several hosts can be rehearsed on one
	// machine. They go before those of Places.
	Hosts []string
	// Mesh is how the ranks are used, by default along one axis: they are placed so that the axis that talks most stays nearest
	// (mesh.Axes.OrderHosts).
	Mesh mesh.Axes
	// Places says for each rank where it runs, where it listens and how it is started there, as a cluster file gives it
	// (ReadHosts); by default all are started here. (Launch only.)
	Places []Place
	// Rendezvous, if set, starts rank 0 alone: the others are started by something else and come by themselves (Attend).
	// Which of them gets which rank is decided here, so that the ranks of a host are neighbours. (Launch only.)
	Rendezvous *Rendezvous
	// Payload is handed to each worker before it joins (Seat.Payload). It may be secret. (Launch only.)
	Payload []byte
	// Serve answers what a worker asks for before it joins (Seat.Fetch): it writes the answer, or returns an error that the worker is
	// told. Several workers may ask at one time. (Launch only.)
	Serve func(w io.Writer, request []byte) error
	// Stdout and Stderr receive the workers' output line by line, each line headed "[rank 1] "; nil drops stdout and
	// passes stderr to this process's. The end of stderr is kept for the error. (Launch only.)
	Stdout, Stderr io.Writer

	// OnEvent receives what ranks pass to Worker.Event, and OnStatus what they pass to Worker.Status, each rank's in order.
	// They are called from one goroutine and must not block for long.
	OnEvent  func(rank int, event []byte)
	OnStatus func(rank int, status string)
	// OnStart is called when a worker process has been started. (Launch only.)
	OnStart func(rank, pid int)
	// OnReady is called once, when all ranks are connected.
	OnReady func()

	// Signals ask for a graceful stop, a second one ends the job; by default SIGINT and SIGTERM. An empty slice that is not
	// nil handles none.
	Signals []os.Signal
	// Stop, when closed, asks for a graceful stop, as a first signal does.
	Stop <-chan struct{}

	// JoinTimeout bounds the time until a rank says something (default 60 s, with a Rendezvous 10 minutes), and from when all know of each
	// other until all are connected, there up to 60 s. In between a rank prepares, for as long as it gives signs of life.
	JoinTimeout time.Duration
	// Silence is how long a worker may give no sign of life, to the launcher or to another worker (default 60 s); workers
	// send one every second.
	Silence time.Duration
	// Grace is how long workers get to end once the job has failed (default 3 s).
	Grace time.Duration
	// StopGrace is how long they get after a graceful stop was requested (default 2 minutes: a checkpoint may be large).
	StopGrace time.Duration
}

// ValueError is a value of a Config that makes no sense. Of names the setting: hosts, listen, transport or TLS.
type ValueError struct {
	Of  string
	err error
}

func (e *ValueError) Error() string { return "cluster: " + e.Of + ": " + e.err.Error() }
func (e *ValueError) Unwrap() error { return e.err }

func badValue(of, format string, args ...any) error {
	return &ValueError{of, fmt.Errorf(format, args...)}
}

// Validate reports values that make no sense, where one setting is to blame as a *ValueError.
func (c Config) Validate() error {
	if c.Ranks < 1 {
		return fmt.Errorf("cluster: a job of %d ranks; it needs at least 1", c.Ranks)
	}
	if c.JoinTimeout < 0 || c.Silence < 0 || c.Grace < 0 || c.StopGrace < 0 {
		return fmt.Errorf("cluster: negative timeout")
	}
	if len(c.Hosts) != 0 && len(c.Hosts) != c.Ranks {
		return badValue("hosts", "%d host names for %d ranks; name the host of each rank, as in a,a,b,b", len(c.Hosts), c.Ranks)
	}
	for i, h := range c.Hosts {
		if err := machine.CheckHostName(h); err != nil {
			return badValue("hosts", "host name %d of %d: %w", i+1, len(c.Hosts), err)
		}
	}
	if len(c.Mesh) > 0 && c.Mesh.Ranks() != c.Ranks {
		return fmt.Errorf("cluster: a mesh %v for %d ranks", c.Mesh, c.Ranks)
	}
	if len(c.Places) != 0 && len(c.Places) != c.Ranks {
		return fmt.Errorf("cluster: %d places for %d ranks", len(c.Places), c.Ranks)
	}
	if r := c.Rendezvous; r != nil {
		if err := r.validate(); err != nil {
			return err
		}
	}
	listen, _, err := c.transport()
	if err != nil {
		return err
	}
	if _, err := c.encrypted(listen); err != nil {
		return err
	}
	_, err = listenAddress(listen, "", c.Ranks-1)
	return err
}

// inOrder gives the processes ranks by their hosts' names, where those are declared, and each its place with it.
func (c Config) inOrder() Config {
	if len(c.Hosts) == 0 {
		return c
	}
	hosts, places := c.Hosts, c.Places
	c.Hosts, c.Places = nil, nil
	for _, p := range c.Mesh.OrderRanks(hosts, false) {
		c.Hosts = append(c.Hosts, hosts[p])
		if len(places) > 0 {
			c.Places = append(c.Places, places[p])
		}
	}
	return c
}

// HostsOf returns the host of each rank of a mesh whose processes run on the hosts named.
func HostsOf(axes mesh.Axes, processes []string) []string {
	return Config{Mesh: axes, Hosts: processes}.inOrder().Hosts
}

// place returns where rank runs.
func (c Config) place(rank int) Place {
	if len(c.Places) == 0 {
		return Place{}
	}
	return c.Places[rank]
}

// The values of Config.TLS.
const (
	EncryptionOn  = "on"
	EncryptionOff = "off"
)

// encrypted reports whether connections at listen are encrypted.
func (c Config) encrypted(listen string) (bool, error) {
	switch c.TLS {
	case EncryptionOn:
		return true, nil
	case EncryptionOff:
		return false, nil
	case "":
		return c.remote() || strings.HasPrefix(listen, "tcp:") && CheckInterface(listen, 2) == nil, nil
	}
	return false, badValue("TLS", "%q; choose on or off", c.TLS)
}

// The values of Config.Transport.
const (
	TransportAuto   = "auto"
	TransportShared = "shm"
	TransportUnix   = "unix"
	TransportTCP    = "tcp"
	TransportMPI    = "mpi"
)

// transport returns where the ranks listen and whether they share memory.
func (c Config) transport() (listen string, share comm.Sharing, err error) {
	return c.transportOf(comm.MPIBuilt)
}

// prefersMPI reports whether MPI is taken without being asked for: it is there, the launcher's host has a device with remote access to
// memory, and nothing has to be encrypted.
func (c Config) prefersMPI(built bool) bool {
	return built && c.Rendezvous != nil && c.Rendezvous.MPI && c.TLS != EncryptionOn && (c.Transport == "" || c.Transport == TransportAuto) &&
		len(machine.RemoteMemoryDevices(cmp.Or(c.System, "/sys"))) > 0
}

// transportOf is transport in a program that was built with or without MPI.
func (c Config) transportOf(built bool) (listen string, share comm.Sharing, err error) {
	mpi := c.Rendezvous != nil && c.Rendezvous.MPI
	switch {
	case c.Transport == TransportMPI && c.Ranks == 1 && built: // started alone, by mpirun or not: nothing travels
		return c.Listen, comm.ShareNever, nil
	case c.Transport == TransportMPI && !mpi:
		return "", 0, badValue("transport", "mpi, and no mpirun or srun with MPI has started the ranks; start the program with one of them, or choose auto")
	case c.Transport == TransportMPI && c.TLS == EncryptionOn:
		return "", 0, badValue("transport", "mpi with TLS on: what goes by MPI is not encrypted; choose transport tcp, or leave TLS out where the network is trusted")
	case c.Transport == TransportMPI && !built:
		return "", 0, badValue("transport", "mpi, and this program was built without it; build it with CGO_ENABLED=1 go build -tags mpi where mpicc is installed")
	case c.Transport == TransportMPI, c.prefersMPI(built):
		return c.Listen, comm.ShareMPI, nil
	case c.Transport == "" && (c.Listen == "" || len(c.Hosts) > 0 || c.remote()), c.Transport == TransportAuto:
		return c.Listen, comm.ShareAuto, nil
	case c.Transport == TransportShared && c.Ranks > 1:
		return c.Listen, comm.ShareAlways, nil
	case c.Transport == TransportTCP && c.Listen == "" && c.remote():
		return autoListen, comm.ShareNever, nil
	case c.Transport == TransportTCP && c.Listen == "":
		return "tcp:127.0.0.1:0", comm.ShareNever, nil
	case c.Transport == TransportUnix && c.Listen != "":
		return "", 0, badValue("transport", "unix, and the ranks are to listen at %s; leave one of the two out", c.Listen)
	case slices.Contains([]string{"", TransportShared, TransportUnix, TransportTCP}, c.Transport):
		return c.Listen, comm.ShareNever, nil
	}
	return "", 0, badValue("transport", "%q; choose auto, shm, unix, tcp or mpi", c.Transport)
}

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	if c.Rendezvous != nil {
		def(&c.JoinTimeout, defaultPatience)
	}
	def(&c.JoinTimeout, 60*time.Second)
	def(&c.Silence, 60*time.Second)
	def(&c.Grace, 3*time.Second)
	def(&c.StopGrace, 2*time.Minute)
	if len(c.Mesh) == 0 {
		c.Mesh = mesh.Axes{{Name: "rank", Size: c.Ranks}}
	}
	c = c.inOrder()
	if c.Signals == nil {
		c.Signals = []os.Signal{os.Interrupt, syscall.SIGTERM}
	}
	return c
}

// listenAddress returns where a rank listens, given Config.Listen and the private directory for Unix sockets.
func listenAddress(listen, dir string, rank int) (string, error) {
	if listen == "" {
		return "unix:" + dir + "/" + strconv.Itoa(rank), nil
	}
	rest, ok := strings.CutPrefix(listen, "tcp:")
	host, port, err := net.SplitHostPort(rest)
	if _, _, isRange := strings.Cut(port, "-"); ok && err == nil && isRange {
		if _, _, err := comm.PortRange(port); err != nil {
			return "", badValue("listen", "bad address %q: %w", listen, err)
		}
		return listen, nil
	}
	n, convErr := strconv.Atoi(port)
	switch {
	case !ok || err != nil || convErr != nil || n < 0:
		return "", badValue("listen", "bad address %q: want tcp:host:port or tcp:host:first-last, such as tcp:eth0:0 or tcp:10.0.0.0/8:29500-29600, or nothing for Unix sockets", listen)
	case n > 0 && n+rank > 65535:
		return "", badValue("listen", "rank %d would listen on port %d, past 65535; choose a lower port than %d", rank, n+rank, n)
	case n > 0:
		port = strconv.Itoa(n + rank)
	}
	return "tcp:" + net.JoinHostPort(host, port), nil
}

// CheckInterface refuses an address that the ranks of other hosts cannot reach: with more than one host, a Unix socket or
// a loopback interface.
func CheckInterface(addr string, hosts int) error {
	if hosts <= 1 {
		return nil
	}
	rest, ok := strings.CutPrefix(addr, "tcp:")
	if !ok {
		return fmt.Errorf("cluster: %s can only be reached on its own machine, and the job has %d hosts; listen on tcp:host:port", addr, hosts)
	}
	host, _, err := net.SplitHostPort(rest)
	if err != nil {
		return fmt.Errorf("cluster: bad address %q: %w", addr, err)
	}
	if ip := net.ParseIP(host); strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback() {
		return fmt.Errorf("cluster: %s is the loopback interface, which other machines cannot reach, and the job has %d hosts; listen on the address of a network interface they share", addr, hosts)
	}
	return nil
}
