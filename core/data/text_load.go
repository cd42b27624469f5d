package data

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
)

// pieceBytes is the unit of reading and of the fingerprint.
const pieceBytes = 4 << 20

// A piece is up to pieceBytes of one file, read and hashed by one worker.
type piece struct {
	file *TextFile
	off  int64
	n    int64
	sum  [sha256.Size]byte
}

// Load reads the whole corpus on every core. progress, unless nil, is called about
// a hundred times, by one goroutine at a time and never backwards, the last time
// with everything read.
//
// The memory is TextIndex.Bytes, allocated once outside the Go heap, so that a
// corpus never doubles what the garbage collector lets a process grow to.
func (x *TextIndex) Load(ctx context.Context, progress func(Progress)) (*Text, error) {
	memory, err := allocBytes(int(x.Bytes()))
	if err != nil {
		return nil, fmt.Errorf("data: allocating %d bytes for %s: %w", x.Bytes(), x.Pattern, err)
	}
	pieces := x.pieces()
	if err := x.read(ctx, memory, pieces, progress); err != nil {
		_ = freeBytes(memory)
		return nil, err
	}
	if err := sealBytes(memory); err != nil {
		_ = freeBytes(memory)
		return nil, fmt.Errorf("data: protecting the corpus from writes: %w", err)
	}
	return &Text{index: x, memory: memory, fingerprint: fingerprint(pieces)}, nil
}

func (x *TextIndex) pieces() []piece {
	var out []piece
	for i := range x.Files {
		f := &x.Files[i]
		for off := int64(0); off < f.Size; off += pieceBytes {
			out = append(out, piece{file: f, off: off, n: min(pieceBytes, f.Size-off)})
		}
	}
	return out
}

func (x *TextIndex) read(ctx context.Context, memory []byte, pieces []piece, progress func(Progress)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var wg sync.WaitGroup
	report := newReporter(x, progress)
	for range min(runtime.GOMAXPROCS(0), len(pieces)) {
		wg.Go(func() {
			for ctx.Err() == nil {
				k := next.Add(1) - 1
				if k >= int64(len(pieces)) {
					return
				}
				p := &pieces[k]
				if err := x.readPiece(memory, p); err != nil {
					cancel(fmt.Errorf("data: reading %s: %w", x.path(p.file), err))
					return
				}
				report.add(p)
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

func (x *TextIndex) readPiece(memory []byte, p *piece) error {
	file, err := os.Open(x.path(p.file))
	if err != nil {
		return err
	}
	defer file.Close()
	dst := memory[p.file.at+p.off:][:p.n]
	if n, err := file.ReadAt(dst, p.off); int64(n) < p.n {
		if err == io.EOF {
			return fmt.Errorf("%w: it ends at byte %d of %d", ErrChanged, p.off+int64(n), p.file.Size)
		}
		return err
	}
	if p.off+p.n == p.file.Size {
		var more [1]byte
		if n, _ := file.ReadAt(more[:], p.file.Size); n > 0 {
			return fmt.Errorf("%w: it grew past %d bytes", ErrChanged, p.file.Size)
		}
		memory[p.file.at+p.file.Size] = Separator
	}
	p.sum = sha256.Sum256(dst)
	return nil
}

// fingerprint hashes the pieces' hashes, which are in file order, as the package
// comment defines.
func fingerprint(pieces []piece) string {
	h := sha256.New()
	io.WriteString(h, "starling text fingerprint v1\n")
	var size [8]byte
	for _, p := range pieces {
		if p.off == 0 {
			binary.LittleEndian.PutUint64(size[:], uint64(len(p.file.Path)))
			h.Write(size[:])
			io.WriteString(h, p.file.Path)
			binary.LittleEndian.PutUint64(size[:], uint64(p.file.Size))
			h.Write(size[:])
		}
		h.Write(p.sum[:])
	}
	return hex.EncodeToString(h.Sum(nil))
}

// reporter turns finished pieces into calls of a progress function.
type reporter struct {
	mu     sync.Mutex
	call   func(Progress)
	done   Progress
	report int64 // bytes at which the next call is due
}

func newReporter(x *TextIndex, call func(Progress)) *reporter {
	r := &reporter{call: call, done: Progress{TotalFiles: len(x.Files)}}
	for _, f := range x.Files {
		r.done.TotalBytes += f.Size
	}
	return r
}

func (r *reporter) add(p *piece) {
	if r.call == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done.Bytes += p.n
	if p.off == 0 {
		r.done.Files++
	}
	if r.done.Bytes >= r.report || r.done.Bytes == r.done.TotalBytes {
		r.report = r.done.Bytes + r.done.TotalBytes/100
		r.call(r.done)
	}
}
