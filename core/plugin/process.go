package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"google.golang.org/grpc"

	"starling/sdk"
	pb "starling/sdk/proto/v1"
)

// Log receives what a plugin prints and logs, line by line; level is "debug", "info", "warn" or "error".
type Log func(level, line string)

// StartOptions say how a plugin process is started.
type StartOptions struct {
	// Threads is how many threads the plugin may compute on.
	Threads int
	// Files are inherited, from descriptor FirstFile on.
	Files []*os.File
	Log   Log
	// Timeout bounds the time until the plugin answers; 0: startTimeout. With EnvWait set there is no bound.
	Timeout time.Duration
}

// startTimeout is there for what hangs: a Python that imports numpy from a slow disk, on a machine that does other work, has time.
const startTimeout = time.Minute

// protocols are the versions of the protocol that are spoken: a plugin takes the newest that it knows.
var protocols = map[int]plugin.PluginSet{sdk.ProtocolVersion: {"plugin": connection{}}}

// FirstFile is the descriptor of the first of StartOptions.Files in the plugin; the one below holds its credentials.
const FirstFile = 4

// Process is a running plugin.
type Process struct {
	Found
	client *plugin.Client
	child  *child
	conn   *grpc.ClientConn
	out    *output
	dir    string // of its socket
}

// Start runs a plugin and shakes hands with it. The error says what the plugin printed if it does not answer as one.
func Start(ctx context.Context, f Found, o StartOptions) (*Process, error) {
	host, own, err := newCredentials()
	if err != nil {
		return nil, err
	}
	config, err := host.TLS()
	if err != nil {
		return nil, err
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("starting plugin %s: %w", f.Name, err)
	}
	defer read.Close()
	b, err := json.Marshal(own)
	if err == nil {
		_, err = write.Write(b) // fits the pipe's buffer
	}
	if err = errors.Join(err, write.Close()); err != nil {
		return nil, fmt.Errorf("starting plugin %s: %w", f.Name, err)
	}
	path, err := exec.LookPath(f.Command[0])
	if f.Dir != "" && strings.ContainsRune(f.Command[0], '/') && !filepath.IsAbs(f.Command[0]) {
		path, err = exec.LookPath(filepath.Join(f.Dir, f.Command[0]))
	}
	if err != nil {
		return nil, fmt.Errorf("starting plugin %s: %w%s", f.Name, err, f.interpreter(f.Command[0]))
	}
	p := &Process{Found: f, out: newOutput(o.Log)}
	if p.dir, err = socketDir(); err != nil {
		return nil, fmt.Errorf("starting plugin %s: %w", f.Name, err)
	}
	cmd := exec.Command(path, f.Command[1:]...)
	cmd.Dir = f.Dir
	cmd.ExtraFiles = append([]*os.File{read}, o.Files...)
	p.child = &child{cmd: cmd, ended: make(chan struct{})}
	timeout := o.Timeout
	if timeout == 0 {
		timeout = startTimeout
	}
	if os.Getenv(sdk.EnvWait) != "" {
		timeout = 24 * time.Hour
	}
	p.client = plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig:  plugin.HandshakeConfig{MagicCookieKey: sdk.CookieKey, MagicCookieValue: sdk.CookieValue},
		VersionedPlugins: protocols,
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		TLSConfig:        config,
		SkipHostEnv:      true,
		Logger:           hclog.NewNullLogger(),
		Stderr:           p.out.writer(),
		SyncStdout:       p.out.writer(),
		SyncStderr:       p.out.writer(),
		StartTimeout:     timeout,
		UnixSocketConfig: &plugin.UnixSocketConfig{TempDir: p.dir},
		GRPCDialOptions:  []grpc.DialOption{grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30), grpc.MaxCallSendMsgSize(1<<30))},
		RunnerFunc: func(_ hclog.Logger, c *exec.Cmd, _ string) (runner.Runner, error) {
			// go-plugin's additions come after our own list, which holds what a plugin may know of its surroundings.
			env := environment(o.Threads)
			if f.compiled() { // an empty folder takes its place, at the price of compiling again
				env = append(env, "PYTHONPYCACHEPREFIX="+p.dir)
			}
			c.Env = append(env, append(c.Env, fmt.Sprintf("%s=%d", sdk.EnvCredentials, FirstFile-1))...)
			cmd.Env = c.Env
			return p.child, p.child.pipes()
		},
	})
	stop := context.AfterFunc(ctx, p.child.kill)
	defer stop()
	protocol, err := p.client.Client()
	if err == nil {
		var raw any
		if raw, err = protocol.Dispense("plugin"); err == nil {
			p.conn = raw.(*grpc.ClientConn)
			return p, nil
		}
	}
	p.child.settle()
	p.Kill()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return nil, p.ended(p.explain(err, timeout))
}

// killedError is a failure of a process that somebody else has killed: starting it again may help.
type killedError struct{ error }

func (e *killedError) Unwrap() error { return e.error }

// ended marks an error of a process that was killed by a signal from outside. A crash of the plugin's own is no such signal.
func (p *Process) ended(err error) error {
	if strings.Contains(p.child.status(), "signal: killed") && !p.child.killing.Load() {
		return &killedError{err}
	}
	return err
}

// explain makes an error of the handshake readable.
func (p *Process) explain(err error, timeout time.Duration) error {
	text := err.Error()
	printed, odd := strings.CutPrefix(text, "Unrecognized remote plugin message: ")
	printed, _, _ = strings.Cut(printed, "\n")
	var why string
	switch {
	case odd && printed != "":
		why = fmt.Sprintf("it printed %q before its handshake; a plugin must print nothing to its standard output before sdk.Serve, standard error is free", printed)
	case odd || strings.Contains(text, "exited before"):
		why = "it is no plugin of Starling, or it failed before it served: it ended without a handshake (" + p.child.status() + ")"
	case strings.Contains(text, "core protocol") || strings.Contains(text, "core API"):
		why = "it answered with something that is no plugin's handshake: " + text
	case strings.Contains(text, "incompatible API version"):
		why = fmt.Sprintf("it speaks another version of the protocol than this runtime, which speaks version %d: build it against this runtime's SDK, or use the runtime that it was made for (%s)", sdk.ProtocolVersion, text)
	case strings.Contains(text, "timeout while waiting"):
		why = fmt.Sprintf("it did not answer within %v", timeout)
	default:
		why = text
	}
	return fmt.Errorf("plugin %s: %s%s%s", p.Path, why, p.out.quoted(), p.interpreter(p.child.cmd.Path))
}

// interpreter is the end of an error of a plugin in Python that does not start: it says what ran it and how that is changed.
func (f Found) interpreter(path string) string {
	if !f.python {
		return ""
	}
	return fmt.Sprintf("\n    its Python is %s; %s names another interpreter, by its absolute path, such as that of a virtual environment: %s=DIR/bin/python",
		path, EnvPython, EnvPython)
}

// Manifest asks the plugin what it is.
func (p *Process) Manifest() (sdk.Manifest, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	m, err := pb.NewPluginClient(p.conn).Describe(ctx, &pb.DescribeRequest{})
	if err != nil {
		p.child.settle()
		return sdk.Manifest{}, p.ended(fmt.Errorf("plugin %s: asking for its manifest: %w%s", p.Path, err, p.out.quoted()))
	}
	out, err := sdk.ManifestOf(m)
	if err != nil {
		return out, fmt.Errorf("plugin %s: its manifest cannot be used: %w", p.Path, err)
	}
	return out, checked(out, p.Found)
}

// Kill ends the plugin and its children at once, and returns when it is gone.
func (p *Process) Kill() {
	p.child.kill()
	if p.conn != nil {
		p.conn.Close()
	}
	p.client.Kill()
	os.RemoveAll(p.dir)
}

// PID is the process's number.
func (p *Process) PID() int { return p.child.process.Load().Pid }

// connection is go-plugin's client side: the bare gRPC connection.
type connection struct{ plugin.NetRPCUnsupportedPlugin }

// GRPCServer is the other side's.
func (connection) GRPCServer(*plugin.GRPCBroker, *grpc.Server) error {
	return errors.New("a runtime does not serve plugins")
}

// GRPCClient returns the connection.
func (connection) GRPCClient(_ context.Context, _ *plugin.GRPCBroker, c *grpc.ClientConn) (any, error) {
	return c, nil
}

// longestSocketDir leaves room for the names that go-plugin adds to a socket's path, which the system limits to some 100 bytes.
const longestSocketDir = 40

// socketPrefix begins the name of a folder of a socket; the number of the process that made it follows.
const socketPrefix = "starling-plugin-"

// socketDir makes a private folder with a short path. What ranks that were killed have left there goes.
func socketDir() (string, error) {
	base := os.TempDir()
	if len(base) > longestSocketDir {
		base = "/tmp"
	}
	sweepOnce.Do(func() { sweep(base) })
	return os.MkdirTemp(base, fmt.Sprintf("%s%d-", socketPrefix, os.Getpid()))
}

var sweepOnce sync.Once

// sweep removes the folders of processes that are gone. Those of another user, or of one that has a number again, stay.
func sweep(base string) {
	old, _ := filepath.Glob(filepath.Join(base, socketPrefix+"*"))
	for _, dir := range old {
		var pid int
		if _, err := fmt.Sscanf(filepath.Base(dir), socketPrefix+"%d-", &pid); err == nil && pid != os.Getpid() && gone(pid) {
			os.RemoveAll(dir)
		}
	}
}

// passed lists the variables of the environment that a plugin gets to see.
var passed = []string{"PATH", "HOME", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "SYSTEMROOT", "STARLING_KERNELS", sdk.EnvWait}

// environment is what a plugin knows of its surroundings: nothing that could be a secret.
func environment(threads int) []string {
	var env []string
	for _, k := range passed {
		if v, ok := os.LookupEnv(k); ok {
			env = append(env, k+"="+v)
		}
	}
	for _, k := range []string{"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"} {
		env = append(env, fmt.Sprintf("%s=%d", k, max(1, threads)))
	}
	return append(env, "PYTHONUNBUFFERED=1", "PYTHONDONTWRITEBYTECODE=1")
}

// child is the process behind a Process. It is started from a thread that lives as long as it does, because the kernel ends
// it with that thread.
type child struct {
	cmd            *exec.Cmd
	stdout, stderr io.ReadCloser
	process        atomic.Pointer[os.Process] // once it runs
	ended          chan struct{}
	once           sync.Once
	killing        atomic.Bool // by us, before it had ended
}

var _ runner.Runner = (*child)(nil)

func (c *child) pipes() (err error) {
	if c.stdout, err = c.cmd.StdoutPipe(); err != nil {
		return err
	}
	c.stderr, err = c.cmd.StderrPipe()
	return err
}

// Start implements runner.Runner.
func (c *child) Start(context.Context) error {
	started := make(chan error)
	go startAndStay(c, started)
	if err := <-started; err != nil {
		c.once.Do(func() { close(c.ended) })
		return err
	}
	c.process.Store(c.cmd.Process)
	return nil
}

// Wait implements runner.Runner.
func (c *child) Wait(context.Context) error {
	err := c.cmd.Wait()
	c.once.Do(func() { close(c.ended) })
	return err
}

// Kill implements runner.Runner.
func (c *child) Kill(context.Context) error {
	c.settle() // go-plugin kills what is about to end by itself
	c.kill()
	return nil
}

func (c *child) kill() {
	select {
	case <-c.ended:
	default:
		c.killing.Store(true)
	}
	if p := c.process.Load(); p != nil {
		killGroup(p)
	}
}

// settle gives a process that is ending a moment to be seen as ended.
func (c *child) settle() {
	select {
	case <-c.ended:
	case <-time.After(100 * time.Millisecond):
	}
}

// status tells how the process ended.
func (c *child) status() string {
	select {
	case <-c.ended:
		if s := c.cmd.ProcessState; s != nil {
			return s.String()
		}
		return "it never ran"
	case <-time.After(time.Second):
		return "it still runs"
	}
}

// Stdout implements runner.Runner.
func (c *child) Stdout() io.ReadCloser { return c.stdout }

// Stderr implements runner.Runner.
func (c *child) Stderr() io.ReadCloser { return c.stderr }

// Name implements runner.Runner.
func (c *child) Name() string { return c.cmd.Path }

// ID implements runner.Runner.
func (c *child) ID() string {
	if p := c.process.Load(); p != nil {
		return fmt.Sprint(p.Pid)
	}
	return ""
}

// Diagnose implements runner.Runner.
func (c *child) Diagnose(context.Context) string { return "" }

// PluginToHost implements runner.Runner: both live in one file system.
func (c *child) PluginToHost(network, addr string) (string, string, error) { return network, addr, nil }

// HostToPlugin implements runner.Runner.
func (c *child) HostToPlugin(network, addr string) (string, string, error) { return network, addr, nil }
