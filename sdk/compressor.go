package sdk

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "starling/sdk/proto/v1"
	"starling/sdk/shm"
	"starling/sdk/vec"
)

// Compressor makes gradients small enough for slow links.
//
// The runtime keeps what an encoding loses and adds it to what is sent next (error feedback), and it owns the exchange: a compressor turns
// vectors into bytes and back, and remembers nothing, because it may be killed and started again between any two calls. The same
// arguments must give the same bits in every process and on every processor. Calls come one at a time.
type Compressor interface {
	Plugin
	// Setup is called before everything else with the recipe's settings, and says how large encodings are. It reports settings that
	// do not go together.
	Setup(settings Hypers) (Layout, error)
	// Encode writes the encoding of x, whose elements are finite, to dst, which has the layout's size and is zeroed. Any part of
	// a vector may come, of 1 element or of millions. x is to be left as it is.
	Encode(dst []byte, x []float32) error
	// Decode writes the elements that src encodes to dst; src has the layout's size for them. It comes from another rank: what
	// is no encoding is an error. Elements that are not finite are refused by the runtime.
	Decode(dst []float32, src []byte) error
}

// Layout says how many bytes an encoding has. It depends on the number of elements alone, so that every rank knows what it will receive.
type Layout struct {
	Head       int // bytes in front
	Block      int // elements of a block
	BlockBytes int // bytes of each block, the last of which may be incomplete
}

// MaxBlock is the largest Layout.Block, and bounds Head and BlockBytes.
const MaxBlock = 1 << 24

// Size is the number of bytes of n elements.
func (l Layout) Size(n int) int {
	if n == 0 {
		return 0
	}
	return l.Head + (n+l.Block-1)/l.Block*l.BlockBytes
}

// Validate reports a layout that makes no sense, or nothing smaller.
func (l Layout) Validate() error {
	switch {
	case l.Block < 1 || l.Block > MaxBlock:
		return fmt.Errorf("layout: a block of %d elements: must be of 1 to %d", l.Block, MaxBlock)
	case l.Head < 0 || l.Head > MaxBlock || l.BlockBytes < 0 || l.Head+l.BlockBytes < 1:
		return fmt.Errorf("layout: %d bytes in front and %d for each block: must be at least 0, with the former at most %d, and something must be sent", l.Head, l.BlockBytes, MaxBlock)
	case l.BlockBytes >= 4*l.Block:
		return fmt.Errorf("layout: %d bytes for %d elements are no fewer than the %d of the elements themselves", l.BlockBytes, l.Block, 4*l.Block)
	}
	return nil
}

// compressorServer serves a compressor.
type compressorServer struct {
	pb.UnimplementedCompressorServer
	compressor Compressor
	layout     Layout
	max        int // elements of a call; 0: there is no memory
	x, decoded []float32
	encoding   []byte
}

// Setup implements the service.
func (s *compressorServer) Setup(_ context.Context, r *pb.CompressorSetupRequest) (*pb.CompressorSetupResponse, error) {
	if s.max > 0 {
		return nil, status.Error(codes.FailedPrecondition, "Setup is called once")
	}
	if err := vec.Init(); err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	err := guarded("Setup", func() (err error) {
		if s.layout, err = s.compressor.Setup(hypersOf(r.Settings)); err != nil {
			return err
		}
		return s.layout.Validate()
	})
	if err == nil && r.Memory != nil {
		if err = s.mapMemory(r); err != nil {
			err = status.Error(codes.FailedPrecondition, err.Error())
		}
	}
	return &pb.CompressorSetupResponse{Head: int64(s.layout.Head), Block: int64(s.layout.Block), BlockBytes: int64(s.layout.BlockBytes)}, err
}

func (s *compressorServer) mapMemory(r *pb.CompressorSetupRequest) error {
	n, size := r.Elements, int64(s.layout.Size(int(r.Elements)))
	if n < 1 || r.Encoding < 4*n || r.Decoded < r.Encoding+size || r.Memory.Bytes < r.Decoded+4*n || r.Decoded%4 != 0 {
		return fmt.Errorf("%d elements, their encoding at %d and what it decodes to at %d do not fit into %d bytes", n, r.Encoding, r.Decoded, r.Memory.Bytes)
	}
	m, err := shm.Map(uintptr(r.Memory.Fd), 0, r.Memory.Bytes, true)
	if err != nil {
		return err
	}
	s.max = int(n)
	s.x, s.encoding, s.decoded = floats(m.Bytes[:4*n]), m.Bytes[r.Encoding:r.Encoding+size], floats(m.Bytes[r.Decoded:r.Decoded+4*n])
	return nil
}

// part is what a call for n elements works on.
func (s *compressorServer) part(n int64) (x []float32, encoding []byte, decoded []float32, err error) {
	if n < 0 || n > int64(s.max) {
		return nil, nil, nil, fmt.Errorf("%d elements, and Setup has named at most %d", n, s.max)
	}
	size := s.layout.Size(int(n))
	return s.x[:n:n], s.encoding[:size:size], s.decoded[:n:n], nil
}

// Encode implements the service.
func (s *compressorServer) Encode(_ context.Context, r *pb.EncodeRequest) (*pb.EncodeResponse, error) {
	x, encoding, decoded, err := s.part(r.Elements)
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	clear(encoding)
	if err := guarded("Encode", func() error { return s.compressor.Encode(encoding, x) }); err != nil {
		return nil, err
	}
	err = guarded("Decode of what Encode has made", func() error { return s.compressor.Decode(decoded, encoding) })
	return &pb.EncodeResponse{Bytes: int64(len(encoding))}, err
}

// Decode implements the service.
func (s *compressorServer) Decode(_ context.Context, r *pb.DecodeRequest) (*pb.DecodeResponse, error) {
	_, encoding, decoded, err := s.part(r.Elements)
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	if r.Bytes != int64(len(encoding)) {
		return nil, status.Errorf(codes.InvalidArgument, "%d bytes encode no %d elements, %d do", r.Bytes, len(decoded), len(encoding))
	}
	var verdict error
	if err := guarded("Decode", func() error { verdict = s.compressor.Decode(decoded, encoding); return nil }); err != nil {
		return nil, err
	}
	if verdict == nil && !vec.AllFinite(decoded) {
		verdict = errors.New("the encoding stands for elements that are not finite")
	}
	if verdict != nil {
		return nil, status.Error(codes.InvalidArgument, verdict.Error())
	}
	return &pb.DecodeResponse{}, nil
}
