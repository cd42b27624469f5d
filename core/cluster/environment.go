package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Started says how something else has started this process as one of a job's.
type Started struct {
	By            string // for people: "mpirun", "srun", …
	Number, World int
	Address       string // of the rendezvous, "tcp:host:port"; "" where the environment does not tell
	MPI           bool   // the processes are an MPI job
	Bound         bool   // the starter may have given each process cores of its own
}

// starter is the environment that something gives to the processes that it starts.
type starter struct {
	by, number, world string
	bound             bool
	address           func(get func(string) string) string
}

// starters are those that are known, most specific first.
var starters = []starter{
	{"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", true, func(get func(string) string) string {
		if get("OMPI_COMM_WORLD_LOCAL_SIZE") != get("OMPI_COMM_WORLD_SIZE") {
			return "" // which host has the first process is not told
		}
		return "tcp:127.0.0.1:" + port(get("PMIX_NAMESPACE")+get("OMPI_MCA_ess_base_jobid"))
	}},
	{"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", true, func(get func(string) string) string {
		first := firstHost(get("SLURM_STEP_NODELIST"))
		if first == "" {
			return ""
		}
		return "tcp:" + first + ":" + port(get("SLURM_JOB_ID")+"."+get("SLURM_STEP_ID"))
	}},
	{"mpiexec", "PMI_RANK", "PMI_SIZE", true, func(func(string) string) string { return "" }},
	{"RANK and WORLD_SIZE", "RANK", "WORLD_SIZE", false, func(func(string) string) string { return "" }},
	{"JOB_COMPLETION_INDEX and WORLD_SIZE", "JOB_COMPLETION_INDEX", "WORLD_SIZE", false, func(func(string) string) string { return "" }},
}

// The environment that any starter may give.
const (
	envRendezvous = "STARLING_RENDEZVOUS" // host:port
	envMaster     = "MASTER_ADDR"
	envMasterPort = "MASTER_PORT"
	envSecret     = "STARLING_SECRET"
	envSecretFile = "STARLING_SECRET_FILE"
)

// defaultPort is the port of a rendezvous where only its host is given.
const defaultPort = "29500"

// Environment reads how this process was started from its environment (os.Getenv): nil if it is none of several.
func Environment(get func(string) string) (*Started, error) {
	for _, s := range starters {
		number, world := get(s.number), get(s.world)
		if number == "" || world == "" {
			continue
		}
		n, errN := strconv.Atoi(number)
		w, errW := strconv.Atoi(world)
		if errN != nil || errW != nil || w < 1 || n < 0 || n >= w {
			return nil, fmt.Errorf("cluster: the environment has %s=%q and %s=%q: want a number below the number of processes; unset them if this process is not one of several", s.number, number, s.world, world)
		}
		if w == 1 {
			return nil, nil
		}
		out := &Started{By: s.by, Number: n, World: w, Bound: s.bound, MPI: s.by == "mpirun" || s.by == "mpiexec" || get("PMIX_NAMESPACE") != ""}
		switch {
		case get(envRendezvous) != "":
			var err error
			if out.Address, err = MeetingPlace(get(envRendezvous), envRendezvous); err != nil {
				return nil, err
			}
		case get(envMaster) != "":
			p := cmp.Or(get(envMasterPort), defaultPort)
			if get("TORCHELASTIC_USE_AGENT_STORE") == "True" { // torchrun listens at MASTER_PORT itself
				p = port(get("TORCHELASTIC_RUN_ID") + get(envMaster) + p)
			}
			var err error
			if out.Address, err = MeetingPlace(joinHost(get(envMaster), p), envMaster+" with "+envMasterPort); err != nil {
				return nil, err
			}
		default:
			out.Address = s.address(get)
		}
		return out, nil
	}
	return nil, halfSet(get)
}

// Single reports whether something else has started this process as the only one of its job, as mpirun -np 1 does.
func Single(get func(string) string) bool {
	return slices.ContainsFunc(starters, func(s starter) bool { return get(s.number) != "" && get(s.world) == "1" })
}

// halfSet refuses an environment that tells a part of what makes this process one of several: each would train by itself.
func halfSet(get func(string) string) error {
	have, want := "", ""
	switch {
	case get("RANK") != "":
		have, want = "RANK", "WORLD_SIZE"
	case get("WORLD_SIZE") != "":
		have, want = "WORLD_SIZE", "RANK"
	case get(envRendezvous) != "":
		have, want = envRendezvous, "RANK and WORLD_SIZE"
	default:
		return nil
	}
	return fmt.Errorf("cluster: the environment has %s=%q but no %s, so it does not tell which of how many processes this is; set it too, or unset %s or give --start here if this process is on its own", have, get(have), want, have)
}

// joinHost is net.JoinHostPort for a host that may have its brackets already.
func joinHost(host, port string) string {
	if strings.Contains(host, ":") && !strings.HasPrefix(host, "[") {
		host = "[" + host + "]"
	}
	return host + ":" + port
}

// port derives a port from the name of a job, so that jobs which share a host rarely choose one port.
func port(job string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(job))
	return strconv.Itoa(20000 + int(h.Sum32()%10000))
}

// firstHost is the first of a Slurm list of hosts such as "gpu[03-05,7],login1".
func firstHost(list string) string {
	head, rest, ok := strings.Cut(list, "[")
	if !ok || strings.Contains(head, ",") {
		head, _, _ = strings.Cut(head, ",")
		return head
	}
	numbers, tail, _ := strings.Cut(rest, "]")
	if i := strings.IndexAny(numbers, "-,"); i >= 0 {
		numbers = numbers[:i]
	}
	if i := strings.IndexAny(tail, ",["); i >= 0 {
		tail = tail[:i]
	}
	return head + numbers + tail
}

// TakeSecret reads the job's secret from STARLING_SECRET or the file that STARLING_SECRET_FILE names, and removes both from the
// environment, which children would inherit. It must be random: whoever sees a greeting at the rendezvous can try guesses against
// the certificate in it for as long as they like.
func TakeSecret() ([]byte, error) {
	text, file := os.Getenv(envSecret), os.Getenv(envSecretFile)
	_ = os.Unsetenv(envSecret)
	_ = os.Unsetenv(envSecretFile)
	if text == "" && file == "" {
		return nil, errors.New("cluster: the processes of this job were started separately, and need a secret by which they know each other: in the shell or job script that starts them, " +
			envSecret + "=$(openssl rand -hex 32); export " + envSecret + " (mpirun to other hosts: -x " + envSecret + "), or put one into a file that only you can read, and its path into " + envSecretFile)
	}
	from := envSecret
	if text == "" {
		from = file
		b, err := readPrivate(file)
		if err != nil {
			return nil, fmt.Errorf("cluster: the job's secret, by %s: %w", envSecretFile, err)
		}
		text = strings.TrimSpace(string(b))
	}
	if len(text) < minSecret {
		return nil, fmt.Errorf("cluster: the job's secret in %s has %d bytes, and must have at least %d and be random, not a phrase, which can be guessed: openssl rand -hex 32 makes one", from, len(text), minSecret)
	}
	return []byte(text), nil
}

// readPrivate reads a file that nobody else may read.
func readPrivate(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if open := info.Mode().Perm() & readableByOthers(info); info.Mode().IsRegular() && open != 0 {
		return nil, fmt.Errorf("others can read or write %s (mode %04o): chmod 600 %s, or in a secret volume of Kubernetes set defaultMode: 0400", path, info.Mode().Perm(), path)
	}
	return io.ReadAll(f)
}
