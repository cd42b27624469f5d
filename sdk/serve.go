package sdk

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "starling/sdk/proto/v1"
)

// What the two sides of a connection must agree on. A plugin in another language needs them too.
const (
	// ProtocolVersion is the version of the protocol that this module speaks.
	ProtocolVersion = 1
	// CookieKey and CookieValue are a variable in a plugin's environment, by which it knows that a runtime started it.
	CookieKey   = "STARLING_PLUGIN"
	CookieValue = "served-to-a-rank"
	// EnvCredentials names the inherited descriptor from which a plugin reads its Credentials, once.
	EnvCredentials = "STARLING_PLUGIN_CREDENTIALS"
	// EnvWait, if set, makes a plugin wait for a debugger before it serves.
	EnvWait = "STARLING_PLUGIN_WAIT"
)

// Credentials are what a plugin serves with: both ends trust certificates of one authority only, which the runtime made for this
// connection. They travel as JSON, all three in PEM.
type Credentials struct {
	CA   string `json:"ca"`
	Cert string `json:"cert"`
	Key  string `json:"key"`
}

// Serve serves the plugin to the runtime that started this program, and does not return before the runtime is done with it.
// Whatever the program prints goes to the run's log.
func Serve(p Plugin) {
	m, err := Describe(p)
	if err != nil {
		fmt.Fprintf(os.Stderr, "plugin %s cannot be served: %v\n", m.Name, err)
		os.Exit(1)
	}
	if os.Getenv(CookieKey) == CookieValue {
		go endWithParent(os.Getppid())
		if os.Getenv(EnvWait) != "" {
			awaitDebugger()
		}
	} else {
		fmt.Fprintf(os.Stderr, "%s %s is a plugin of Starling: the runtime starts it when a recipe names it, with plugin.%s(%q, …).\n", m.Name, m.Version, m.Kind(), m.Name)
		os.Exit(1)
	}
	// go-plugin sends what is printed through the connection, and loses it when the process dies. The pipe behind standard
	// error keeps it, so everything goes there from the first call on.
	stderr := os.Stderr
	var once sync.Once
	direct := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		once.Do(func() { os.Stdout, os.Stderr = stderr, stderr })
		return next(ctx, req)
	}
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig:  plugin.HandshakeConfig{MagicCookieKey: CookieKey, MagicCookieValue: CookieValue},
		VersionedPlugins: map[int]plugin.PluginSet{ProtocolVersion: {"plugin": &server{plugin: p, manifest: m}}},
		TLSProvider:      credentials,
		Logger:           hclog.New(&hclog.LoggerOptions{Level: hclog.Warn, Output: os.Stderr, JSONFormat: true}),
		GRPCServer: func(o []grpc.ServerOption) *grpc.Server {
			return grpc.NewServer(append(o, grpc.MaxRecvMsgSize(1<<30), grpc.MaxSendMsgSize(1<<30), grpc.ChainUnaryInterceptor(direct))...)
		},
	})
}

// Describe returns the manifest as Serve hands it to the runtime, with what the plugin's type says filled in, and reports everything that is wrong with
// it. A plugin's own tests call it.
func Describe(p Plugin) (m Manifest, err error) {
	defer func() {
		if x := recover(); x != nil {
			err = fmt.Errorf("Manifest panicked: %v", x)
		}
	}()
	m = p.Manifest()
	switch p.(type) {
	case Optimizer:
		if m.Optimizer == nil {
			return m, fmt.Errorf("%T is an optimizer, and its manifest has no Optimizer, which says how it sees parameters and what state it keeps", p)
		}
		if _, ok := p.(Upgrader); !ok && len(m.Optimizer.UpgradesFrom) > 0 {
			return m, fmt.Errorf("the manifest says that it upgrades from %s, and %T has no method Upgrade", strings.Join(m.Optimizer.UpgradesFrom, ", "), p)
		}
		info := *m.Optimizer
		info.Journal = info.Granularity == Elementwise
		m.Optimizer = &info
	case Sink:
		m.Sink = true
	case Schedule:
		m.Schedule = true
	case Compressor:
		m.Compressor = true
	default:
		return m, fmt.Errorf("%T is neither an Optimizer nor a Sink nor a Schedule nor a Compressor", p)
	}
	return m, m.Validate()
}

// credentials reads what the runtime left in the inherited descriptor.
func credentials() (*tls.Config, error) {
	fd, err := strconv.Atoi(os.Getenv(EnvCredentials))
	if err != nil {
		return nil, fmt.Errorf("%s does not name a descriptor: %w", EnvCredentials, err)
	}
	f := os.NewFile(uintptr(fd), "credentials")
	b, err := io.ReadAll(f)
	f.Close()
	if err != nil {
		return nil, fmt.Errorf("reading the credentials: %w", err)
	}
	var c Credentials
	if err := json.Unmarshal(b, &c); err != nil {
		return nil, fmt.Errorf("reading the credentials: %w", err)
	}
	return c.TLS()
}

// TLS is the configuration of one end: it shows its certificate and accepts those of the same authority.
func (c Credentials) TLS() (*tls.Config, error) {
	cert, err := tls.X509KeyPair([]byte(c.Cert), []byte(c.Key))
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(c.CA)) {
		return nil, errors.New("the authority's certificate does not parse")
	}
	return &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
		ServerName: "localhost", MinVersion: tls.VersionTLS13}, nil
}

// endWithParent ends the process when the rank that started it is gone, where the kernel has not done so.
func endWithParent(parent int) {
	for range time.Tick(time.Second) {
		if os.Getppid() != parent {
			os.Exit(1)
		}
	}
}

// awaitDebugger waits until a debugger traces this process.
func awaitDebugger() {
	fmt.Fprintf(os.Stderr, "plugin waits for a debugger: dlv attach %d\n", os.Getpid())
	for {
		b, err := os.ReadFile("/proc/self/status")
		if err != nil {
			return
		}
		if _, rest, ok := strings.Cut(string(b), "TracerPid:\t"); ok && !strings.HasPrefix(rest, "0\n") {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// server is the plugin's side of the connection.
type server struct {
	plugin.NetRPCUnsupportedPlugin
	pb.UnimplementedPluginServer
	plugin   Plugin
	manifest Manifest
}

// GRPCServer registers what the plugin serves.
func (s *server) GRPCServer(_ *plugin.GRPCBroker, g *grpc.Server) error {
	pb.RegisterPluginServer(g, s)
	switch p := s.plugin.(type) {
	case Optimizer:
		pb.RegisterOptimizerServer(g, &optimizerServer{optimizer: p, manifest: s.manifest})
	case Sink:
		pb.RegisterSinkServer(g, &sinkServer{sink: p, manifest: s.manifest})
	case Schedule:
		pb.RegisterScheduleServer(g, &scheduleServer{schedule: p})
	case Compressor:
		pb.RegisterCompressorServer(g, &compressorServer{compressor: p})
	}
	return nil
}

// GRPCClient is the other side's.
func (s *server) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, errors.New("a plugin does not call plugins")
}

// Describe returns the manifest.
func (s *server) Describe(context.Context, *pb.DescribeRequest) (*pb.Manifest, error) {
	return s.manifest.Proto(), nil
}

// sinkServer serves a sink.
type sinkServer struct {
	pb.UnimplementedSinkServer
	sink     Sink
	manifest Manifest
}

// Open implements the service.
func (s *sinkServer) Open(_ context.Context, r *pb.OpenRequest) (*pb.OpenResponse, error) {
	return &pb.OpenResponse{}, guarded("Open", func() error {
		return s.sink.Open(Run{hypersOf(r.Settings), r.Folder, r.Recipe, int(r.Step)})
	})
}

// Write implements the service.
func (s *sinkServer) Write(_ context.Context, r *pb.WriteRequest) (*pb.WriteResponse, error) {
	var records []Record
	for _, x := range r.Records {
		records = append(records, Record{x.Kind, int(x.Step), time.Unix(0, int64(x.Time*1e9)), x.Values})
	}
	return &pb.WriteResponse{}, guarded("Write", func() error { return s.sink.Write(records) })
}

// Close implements the service.
func (s *sinkServer) Close(context.Context, *pb.CloseRequest) (*pb.CloseResponse, error) {
	return &pb.CloseResponse{}, guarded("Close", s.sink.Close)
}

func hypersOf(m map[string]*pb.Value) Hypers {
	h := Hypers{map[string]any{}}
	for k, v := range m {
		h.values[k] = OfValue(v)
	}
	return h
}

// guarded turns an error or a panic of the plugin's code into an error with its name.
func guarded(what string, f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = status.Errorf(codes.Aborted, "%s panicked: %s", what, panicText(p))
		}
	}()
	if err := f(); err != nil {
		return status.Errorf(codes.Aborted, "%s: %v", what, err)
	}
	return nil
}
