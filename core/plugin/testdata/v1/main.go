// Command v1 is a plugin that speaks version 1 of the protocol as it was when that version was frozen: pb is a copy of the
// generated code of that day, and nothing of the present SDK is in it. It must keep loading.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	pluginv1 "v1/pb"
)

func main() {
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig:  plugin.HandshakeConfig{MagicCookieKey: "STARLING_PLUGIN", MagicCookieValue: "served-to-a-rank"},
		VersionedPlugins: map[int]plugin.PluginSet{1: {"plugin": &sgd{}}},
		TLSProvider:      credentials,
		GRPCServer:       plugin.DefaultGRPCServer,
	})
}

func credentials() (*tls.Config, error) {
	fd, err := strconv.Atoi(os.Getenv("STARLING_PLUGIN_CREDENTIALS"))
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(os.NewFile(uintptr(fd), "credentials"))
	if err != nil {
		return nil, err
	}
	var c struct{ CA, Cert, Key string }
	if err := json.Unmarshal(b, &c); err != nil {
		return nil, err
	}
	cert, err := tls.X509KeyPair([]byte(c.Cert), []byte(c.Key))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(c.CA))
	return &tls.Config{Certificates: []tls.Certificate{cert}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}, nil
}

// sgd is gradient descent with momentum, through the ring of slots.
type sgd struct {
	plugin.NetRPCUnsupportedPlugin
	pluginv1.UnimplementedPluginServer
	pluginv1.UnimplementedOptimizerServer

	setup    *pluginv1.SetupRequest
	memories [][]byte
	scratch  []byte
}

func (s *sgd) GRPCServer(_ *plugin.GRPCBroker, g *grpc.Server) error {
	pluginv1.RegisterPluginServer(g, s)
	pluginv1.RegisterOptimizerServer(g, s)
	return nil
}

func (s *sgd) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, errors.New("no client")
}

func (s *sgd) Describe(context.Context, *pluginv1.DescribeRequest) (*pluginv1.Manifest, error) {
	least := 0.0
	return &pluginv1.Manifest{Name: "v1", Version: "1.0.0", Doc: "gradient descent with momentum, as in version 1",
		Hypers: []*pluginv1.Hyper{{Name: "momentum", Type: pluginv1.Hyper_FLOAT, Min: &least,
			Default: &pluginv1.Value{Kind: &pluginv1.Value_Float{Float: 0.5}}}},
		Optimizer: &pluginv1.OptimizerInfo{Granularity: pluginv1.OptimizerInfo_ELEMENTWISE,
			Slots: []*pluginv1.Slot{{Name: "m", Dtype: pluginv1.Slot_F32, SameShape: true}}}}, nil
}

func (s *sgd) Setup(_ context.Context, r *pluginv1.SetupRequest) (*pluginv1.SetupResponse, error) {
	for _, m := range r.Memories {
		b, err := syscall.Mmap(int(m.Fd), 0, int(m.Bytes), syscall.PROT_READ, syscall.MAP_SHARED)
		if err != nil {
			return nil, err
		}
		s.memories = append(s.memories, b)
	}
	m := r.Scratch.Memory
	b, err := syscall.Mmap(int(m.Fd), 0, int(m.Bytes), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	s.setup, s.scratch = r, b
	return &pluginv1.SetupResponse{}, err
}

func floats(b []byte, at, n int64) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(&b[at])), n)
}

func (s *sgd) Step(_ context.Context, r *pluginv1.StepRequest) (*pluginv1.StepResponse, error) {
	c := s.setup.Scratch
	momentum := float32(s.setup.Hypers["momentum"].GetFloat())
	task := int64(0)
	for _, p := range s.setup.Parameters {
		for lo := int64(0); lo < p.To-p.From; lo += c.TaskElements {
			hi := min(p.To-p.From, lo+c.TaskElements)
			if task >= r.First && task < r.Last {
				line := s.scratch[task%int64(c.Count)*64:]
				for (*atomic.Uint32)(unsafe.Pointer(&line[0])).Load() != uint32(task) {
					time.Sleep(20 * time.Microsecond)
				}
				view := func(p *pluginv1.Place) []float32 { return floats(s.memories[p.Memory], p.Offset+4*lo, hi-lo) }
				slot := c.First + task%int64(c.Count)*c.Stride
				value, m := floats(s.scratch, slot, hi-lo), floats(s.scratch, slot+(4*(hi-lo)+63)/64*64, hi-lo)
				old, gradient, state := view(p.Value), view(p.Gradient), view(p.State[0])
				for i, g := range gradient {
					m[i] = float32(momentum*state[i]) + float32(g*float32(r.GradScale))
					value[i] = old[i] - float32(float32(r.Rates[p.Group])*m[i])
				}
				binary.LittleEndian.PutUint64(line[8:], uint64(hi-lo))
				(*atomic.Uint32)(unsafe.Pointer(&line[4])).Store(uint32(task + 1))
			}
			task++
		}
	}
	return &pluginv1.StepResponse{}, nil
}
