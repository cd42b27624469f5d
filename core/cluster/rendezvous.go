package cluster

import (
	"crypto/rand"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"starling/core/comm"
	"starling/core/comm/mesh"
)

// Ranks that something else starts (srun, mpirun, a batch system, Kubernetes) come to the launcher by themselves. Each has a
// number, the address of the process with number 0, and the job's secret. The connection is TLS 1.3, both sides with a certificate that
// only somebody who knows the secret can make; over it goes the control protocol, and with it the credentials of this one
// run, which are fresh.

// Rendezvous is where the ranks of such a job meet.
type Rendezvous struct {
	// Address is where the launcher listens: "tcp:host:port", all interfaces where host is empty.
	Address string
	// Secret is known to all processes of the job and to nobody else, at least 16 bytes.
	Secret []byte
	// Host names the launcher's own host, as Attendance.Host does.
	Host string
	// MPI says that what starts the ranks makes them an MPI job.
	MPI bool
}

// At is the address for people.
func (r *Rendezvous) At() string {
	host, port, err := net.SplitHostPort(strings.TrimPrefix(r.Address, "tcp:"))
	if err != nil || host != "" {
		return r.Address
	}
	return "port " + port + " of this machine"
}

// minSecret is how short a job's secret may be, in bytes.
const minSecret = 16

func (r *Rendezvous) validate() error {
	if len(r.Secret) < minSecret {
		return fmt.Errorf("cluster: the job's secret has %d bytes, and must have at least %d", len(r.Secret), minSecret)
	}
	if _, ok := strings.CutPrefix(r.Address, "tcp:"); !ok {
		return fmt.Errorf("cluster: rendezvous at %q; want tcp:host:port", r.Address)
	}
	_, err := MeetingPlace(r.Address, "the rendezvous")
	return err
}

// MeetingPlace returns the address of a rendezvous, "tcp:host:port", given as host:port by from: a flag or a variable.
func MeetingPlace(text, from string) (string, error) {
	text = strings.TrimPrefix(text, "tcp:")
	host, port, err := net.SplitHostPort(text)
	if n, e := strconv.Atoi(port); err != nil || e != nil || n < 1 || n > 65535 {
		if err != nil {
			host = text
		}
		return "", fmt.Errorf("cluster: %s is %q, and must be host:port with a port of 1 to 65535, such as %s", from, text, joinHost(host, defaultPort))
	}
	return "tcp:" + text, nil
}

// controlProtocol is the version of the control protocol.
const controlProtocol = 1

// remote reports whether ranks may run on other machines than the launcher's.
func (c Config) remote() bool {
	return c.Rendezvous != nil || slices.ContainsFunc(c.Places, func(p Place) bool { return len(p.Start) > 0 })
}

// autoListen is where ranks listen that may run on several machines.
const autoListen = "tcp:auto:0"

// nearby is where a rank listens that has a connection to the launcher: at the address from which that goes, which leads to
// where the others are.
func nearby(conn net.Conn) string {
	a, ok := conn.LocalAddr().(*net.TCPAddr)
	if !ok || a.IP.IsLoopback() || a.IP.IsLinkLocalUnicast() {
		return autoListen
	}
	return "tcp:" + net.JoinHostPort(a.IP.String(), "0")
}

// welcomer makes the welcomes of a job's ranks.
type welcomer struct {
	cfg         Config
	listen      string
	share       comm.Sharing
	dir         string
	secret      []byte
	credentials []*comm.Credentials // nil without encryption
	hosts       []string            // by rank, where it is known
	oneHost     bool                // of ranks that came by themselves: all are on the launcher's
}

func newWelcomer(cfg Config, listen string, share comm.Sharing, dir string) (*welcomer, error) {
	w := &welcomer{cfg: cfg, listen: listen, share: share, dir: dir, secret: make([]byte, 32), credentials: make([]*comm.Credentials, cfg.Ranks), hosts: make([]string, cfg.Ranks)}
	_, _ = rand.Read(w.secret) // never fails
	copy(w.hosts, cfg.Hosts)
	for r := range w.hosts {
		if p := cfg.place(r); w.hosts[r] == "" {
			w.hosts[r] = p.Host
		}
		if _, err := w.address(r); err != nil {
			return nil, err
		}
	}
	if on, err := cfg.encrypted(listen); err != nil || !on {
		return w, err
	}
	a, err := comm.NewAuthority()
	if err != nil {
		return nil, err
	}
	for r := range w.credentials {
		if w.credentials[r], err = a.Issue(r); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// address returns where a rank is to listen. A port counts up with the rank in the whole job, not on its host.
func (w *welcomer) address(rank int) (string, error) {
	listen := w.cfg.place(rank).Listen
	if listen == "" {
		listen = w.listen
	}
	if listen == "" && w.cfg.remote() && !w.oneHost {
		listen = autoListen
	}
	return listenAddress(listen, w.dir, rank)
}

func (w *welcomer) welcome(rank int) message {
	at, err := w.address(rank)
	if err != nil { // was tried when the job began
		at = err.Error()
	}
	return message{Kind: kindWelcome, Rank: rank, World: w.cfg.Ranks, Secret: w.secret, Listen: at, Share: w.share, Silence: w.cfg.Silence,
		Credentials: w.credentials[rank], Host: w.hosts[rank], Beats: w.cfg.Rendezvous != nil && rank > 0 || len(w.cfg.place(rank).Start) > 0, Payload: w.cfg.Payload}
}

// lostGuest is how a process ended that was not started here, unless it has said so before.
const lostGuest = "is gone: its control connection ended without a word"

// guest is a process that has come and has no rank yet.
type guest struct {
	number int
	hello  message
	conn   net.Conn
}

// inOrder puts the guests into the order of their ranks, after rank 0 on host own: by host, in the order that suits the mesh, and by number
// within a host.
func inOrder(axes mesh.Axes, own string, here map[int]guest) []guest {
	hosts := []string{own}
	for n := range len(here) {
		hosts = append(hosts, here[n+1].hello.Host)
	}
	var out []guest
	for _, number := range axes.OrderRanks(hosts, true)[1:] {
		out = append(out, here[number])
	}
	return out
}
