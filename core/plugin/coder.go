package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"starling/core/comm"
	"starling/core/compress"
	pb "starling/sdk/proto/v1"
	"starling/sdk/shm"
	"starling/sdk/vec"
)

// CoderConfig describes a compressor to be run on one rank.
type CoderConfig struct {
	Compressor *Compressor
	Elements   int // the most of a call
	Threads    int
	// Timeout is how long one call may take; 0: a minute.
	Timeout time.Duration
	// Retries is how often the plugin is started again for one call; 0: three times.
	Retries int
	Log     Log
}

// Coder runs a plugin's compressor on one rank. Calls may come from several goroutines; they are made one after the other.
//
// A call that fails has had no effect, and the plugin remembers nothing: it is started again and asked again.
type Coder struct {
	cfg     CoderConfig
	scratch *os.File
	memory  *shm.Mapping
	request *pb.CompressorSetupRequest

	ctx  context.Context // of the coder's life
	stop context.CancelFunc

	mu       sync.Mutex
	process  *Process
	restarts int
}

var _ compress.Coder = (*Coder)(nil)

// CoderBytes is the memory that a coder for so many elements has.
func (c *Compressor) CoderBytes(elements int) int64 {
	_, _, end := c.places(elements)
	return end
}

// places says where encodings, and what they decode to, lie in a coder's memory.
func (c *Compressor) places(elements int) (encoding, decoded, end int64) {
	encoding = aligned(elements)
	decoded = (encoding + int64(c.Size(elements)) + 63) / 64 * 64
	return encoding, decoded, decoded + aligned(elements)
}

// NewCoder lays out the memory. It starts nothing.
func NewCoder(cfg CoderConfig) (*Coder, error) {
	if !shm.Supported {
		return nil, shm.ErrUnsupported
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = time.Minute
	}
	if cfg.Retries == 0 {
		cfg.Retries = 3
	}
	cfg.Elements = max(cfg.Elements, 1)
	k := &Coder{cfg: cfg}
	encoding, decoded, end := cfg.Compressor.places(cfg.Elements)
	var err error
	if k.scratch, err = shm.Create("compressor", end); err != nil {
		return nil, err
	}
	if k.memory, err = shm.Map(k.scratch.Fd(), 0, end, true); err != nil {
		k.scratch.Close()
		return nil, err
	}
	k.request = &pb.CompressorSetupRequest{Settings: values(cfg.Compressor.Settings), Memory: &pb.Memory{Fd: FirstFile, Bytes: end, Writable: true},
		Elements: int64(cfg.Elements), Encoding: encoding, Decoded: decoded}
	k.ctx, k.stop = context.WithCancel(context.Background())
	return k, nil
}

// Start starts the plugin, so that the first call does not have to.
func (k *Coder) Start(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for try := 0; ; try++ {
		err := k.start(ctx)
		var killed *killedError
		if !errors.As(err, &killed) || try == k.cfg.Retries {
			return err
		}
		k.note(err)
	}
}

func (k *Coder) start(ctx context.Context) error {
	c := k.cfg.Compressor
	if err := c.Use.verify(); err != nil {
		return err
	}
	p, err := Start(ctx, c.Use.Found, StartOptions{Threads: k.cfg.Threads, Files: []*os.File{k.scratch}, Log: k.cfg.Log})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, k.cfg.Timeout)
	defer cancel()
	l, err := setUpCompressor(ctx, p, k.request)
	if err == nil && l != c.Layout {
		err = fmt.Errorf("plugin %s: its encodings have %+v now, and had %+v when the recipe was read: the same settings must give the same layout", p.Name, l, c.Layout)
	}
	if err != nil {
		p.Kill()
		return err
	}
	k.process = p
	return nil
}

// note counts and reports a restart.
func (k *Coder) note(err error) {
	k.restarts++
	if k.cfg.Log != nil {
		k.cfg.Log("warn", fmt.Sprintf("%v; it is started again, and asked again", err))
	}
}

// Restarts counts how often the plugin was started again.
func (k *Coder) Restarts() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.restarts
}

// PID is the plugin's process, 0 while none runs.
func (k *Coder) PID() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.process == nil {
		return 0
	}
	return k.process.PID()
}

// Encode implements compress.Coder.
func (k *Coder) Encode(dst []byte, x []float32) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.fits(len(x), len(dst)); err != nil {
		return err
	}
	back := k.decoded(len(x))
	err := k.call(fmt.Sprintf("encoding %d elements", len(x)), func(ctx context.Context, c pb.CompressorClient) error {
		copy(k.memory.Bytes, bytesOf(x))
		answer, err := c.Encode(ctx, &pb.EncodeRequest{Elements: int64(len(x))})
		switch {
		case err != nil:
			return err
		case answer.Bytes != int64(len(dst)):
			return fmt.Errorf("it wrote %d bytes for %d elements, and its layout says %d", answer.Bytes, len(x), len(dst))
		}
		return finite(back)
	})
	if err != nil {
		return err
	}
	copy(dst, k.encoding(len(dst)))
	vec.Sub(x, x, back)
	return nil
}

// Decode implements compress.Coder. What the plugin calls no encoding is the sender's fault, everything else a comm.OwnError.
func (k *Coder) Decode(dst []float32, src []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.fits(len(dst), len(src)); err != nil {
		return err
	}
	back := k.decoded(len(dst))
	err := k.call(fmt.Sprintf("decoding %d elements", len(dst)), func(ctx context.Context, c pb.CompressorClient) error {
		copy(k.encoding(len(src)), src)
		if _, err := c.Decode(ctx, &pb.DecodeRequest{Elements: int64(len(dst)), Bytes: int64(len(src))}); err != nil {
			return err
		}
		return finite(back)
	})
	if err != nil {
		var verdict *NotAnEncoding
		if errors.As(err, &verdict) {
			return err
		}
		return &comm.OwnError{Err: err}
	}
	copy(dst, back)
	return nil
}

func (k *Coder) fits(elements, bytes int) error {
	if want := k.cfg.Compressor.Size(elements); elements > k.cfg.Elements || bytes != want {
		return fmt.Errorf("plugin %s: %d bytes for %d elements, where %d are expected and at most %d elements", k.cfg.Compressor.Use.Name, bytes, elements, want, k.cfg.Elements)
	}
	return nil
}

func (k *Coder) encoding(bytes int) []byte {
	return k.memory.Bytes[k.request.Encoding:][:bytes]
}

func (k *Coder) decoded(elements int) []float32 {
	return Floats(k.memory.Bytes[k.request.Decoded:][:4*elements])
}

// finite reports an element that is not.
func finite(x []float32) error {
	if vec.AllFinite(x) {
		return nil
	}
	for i, v := range x {
		if v-v != 0 {
			return fmt.Errorf("its encoding of finite elements decodes to %v for element %d", v, i)
		}
	}
	return errors.New("its encoding of finite elements changes while it is read")
}

// call makes one call, and starts the plugin again where it fails.
func (k *Coder) call(what string, f func(context.Context, pb.CompressorClient) error) error {
	for try := 0; ; try++ {
		err := k.ctx.Err()
		if err != nil {
			return fmt.Errorf("plugin %s: %s: the run ends", k.cfg.Compressor.Use.Name, what)
		}
		text := ""
		if k.process == nil {
			err = k.start(k.ctx)
		}
		if err == nil {
			ctx, cancel := context.WithTimeout(k.ctx, k.cfg.Timeout)
			err = f(ctx, pb.NewCompressorClient(k.process.conn))
			cancel()
			switch {
			case err == nil:
				return nil
			case status.Code(err) == codes.InvalidArgument:
				return &NotAnEncoding{fmt.Errorf("plugin %s, %s: %w", k.cfg.Compressor.Use.Name, what, plain(err))}
			}
			text = k.drop(err)
		}
		err = fmt.Errorf("plugin %s failed in %s: %w", k.cfg.Compressor.Use.Name, what, plain(err))
		if try == k.cfg.Retries {
			return fmt.Errorf("%w\n    it was tried %d times%s", err, try+1, text)
		}
		k.note(err)
	}
}

// drop ends a process that has failed and returns its last output.
func (k *Coder) drop(err error) string {
	how := ""
	if status.Code(err) == codes.Unavailable {
		how = "\n    its process: " + k.process.child.status()
	}
	k.process.Kill()
	how += k.process.out.quoted()
	k.process = nil
	return how
}

// NotAnEncoding says that what was to be decoded is no encoding, as the plugin has found. Nothing is wrong with the plugin.
type NotAnEncoding struct{ Err error }

func (e *NotAnEncoding) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *NotAnEncoding) Unwrap() error { return e.Err }

// Close ends the plugin. A call that is running fails.
func (k *Coder) Close() {
	k.stop()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.process != nil {
		k.process.Kill()
		k.process = nil
	}
	k.memory.Unmap()
	k.scratch.Close()
}
