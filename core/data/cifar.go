package data

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// CIFARConfig says where images in CIFAR-10's form come from.
type CIFARConfig struct {
	// Pattern is a glob of files in the dataset's binary form, such as cifar-10-batches-bin/data_batch_*.bin, relative to Dir. Empty means
	// that Samples images are drawn instead, by Seed.
	Pattern, Dir string
	Samples      int
	Seed         uint64
}

// CIFARClasses is the number of classes, CIFARSize the height and width of an image in pixels.
const (
	CIFARClasses = 10
	CIFARSize    = 32
)

const (
	cifarPixels = 3 * CIFARSize * CIFARSize
	cifarRecord = 1 + cifarPixels // a label, then the red, green and blue plane, row by row
	// cifarMost bounds the records of a file: the published ones have 10,000.
	cifarMost = 1 << 20
)

// cifarLevels gives a pixel's value by its channel: of mean 0 and variance 1 over CIFAR-10's training images.
var cifarLevels = pixelLevels([]float64{0.4914, 0.4822, 0.4465}, []float64{0.2470, 0.2435, 0.2616})

// CIFAR reads or draws images [3, 32, 32] (channel, row, column) of ten classes. Files are read in order of their path.
func CIFAR(ctx context.Context, cfg CIFARConfig) (*Array, error) {
	if cfg.Pattern == "" {
		return drawCIFAR(cfg)
	}
	pattern, err := expand(ctx, cfg.Pattern, cfg.Dir)
	if err != nil {
		return nil, err
	}
	root, found, err := walk(ctx, pattern)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("data: %s matches no file; unpack CIFAR-10's binary version there, or leave files out to train on drawn images", pattern)
	}
	slices.SortFunc(found, func(a, b match) int { return slices.Compare([]byte(a.rel), []byte(b.rel)) })
	var pixels []uint8
	var labels []int32
	for _, m := range found {
		path := filepath.Join(root, filepath.FromSlash(m.rel))
		file, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("data: opening images: %w", err)
		}
		pixels, labels, err = readCIFAR(file, path, pixels, labels)
		file.Close()
		if err != nil {
			return nil, err
		}
	}
	return newPixels(pixels, cifarShape(), labels, CIFARClasses, cifarLevels)
}

func cifarShape() []int { return []int{3, CIFARSize, CIFARSize} }

// readCIFAR appends the records of one file, which errors call name.
func readCIFAR(r io.Reader, name string, pixels []uint8, labels []int32) ([]uint8, []int32, error) {
	var record [cifarRecord]byte
	for i := 0; ; i++ {
		switch n, err := io.ReadFull(r, record[:]); {
		case errors.Is(err, io.EOF) && i > 0:
			return pixels, labels, nil
		case errors.Is(err, io.EOF):
			return nil, nil, fmt.Errorf("data: %s is empty; a file of CIFAR-10's binary version has records of %d bytes", name, cifarRecord)
		case errors.Is(err, io.ErrUnexpectedEOF):
			return nil, nil, fmt.Errorf("data: %s ends after %d of the %d bytes of record %d: it is cut short, or no file of CIFAR-10's binary version", name, n, cifarRecord, i)
		case err != nil:
			return nil, nil, fmt.Errorf("data: %s: %w", name, err)
		}
		if record[0] >= CIFARClasses {
			return nil, nil, fmt.Errorf("data: %s: record %d has label %d; labels are 0 to %d: it is no file of CIFAR-10's binary version", name, i, record[0], CIFARClasses-1)
		}
		if i == cifarMost {
			return nil, nil, fmt.Errorf("data: %s has more than %d records", name, cifarMost)
		}
		labels = append(labels, int32(record[0]))
		pixels = append(pixels, record[1:]...)
	}
}

// drawCIFAR draws images that a small net can tell apart: of each class a figure, at a random place, in random colours over a random ground, with
// noise. Image i is a pure function of (Seed, i), and the same on every machine.
func drawCIFAR(cfg CIFARConfig) (*Array, error) {
	if cfg.Samples < 1 {
		return nil, fmt.Errorf("data: cifar10(samples = %d) must be at least 1", cfg.Samples)
	}
	pixels, labels := make([]uint8, cfg.Samples*cifarPixels), make([]int32, cfg.Samples)
	for i := range labels {
		labels[i] = drawFigure(pixels[i*cifarPixels:][:cifarPixels], cfg.Seed, uint64(i))
	}
	return newPixels(pixels, cifarShape(), labels, CIFARClasses, cifarLevels)
}

// figures decide by the place from the figure's middle, and by its size, whether a pixel is part of the figure of a class.
var figures = [CIFARClasses]func(x, y, r int) bool{
	func(x, y, r int) bool { return x*x+y*y <= r*r },                                                     // a disc
	func(x, y, r int) bool { return x*x+y*y <= r*r && 2*(x*x+y*y) >= r*r },                               // a ring
	func(x, y, r int) bool { return abs(x) <= r && abs(y) <= r },                                         // a square
	func(x, y, r int) bool { return max(abs(x), abs(y)) <= r && max(abs(x), abs(y)) >= r-2 },             // its outline
	func(x, y, r int) bool { return abs(x)+abs(y) <= r },                                                 // a diamond
	func(x, y, r int) bool { return max(abs(x), abs(y)) <= r && min(abs(x), abs(y)) <= 1 },               // a cross
	func(x, y, r int) bool { return max(abs(x), abs(y)) <= r && abs(abs(x)-abs(y)) <= 1 },                // a saltire
	func(x, y, r int) bool { return max(abs(x), abs(y)) <= r && (y+32)%4 < 2 },                           // rows
	func(x, y, r int) bool { return max(abs(x), abs(y)) <= r && (x+32)%4 < 2 },                           // columns
	func(x, y, r int) bool { return max(abs(x), abs(y)) <= r && ((x+32)/3%2 == 0) != ((y+32)/3%2 == 0) }, // a chequerboard
}

func drawFigure(image []uint8, seed, i uint64) int32 {
	state := mix64(mix64(seed+goldenGamma) + i)
	next := func(n int) int {
		state += goldenGamma
		return int(mix64(state) % uint64(n))
	}
	class := next(CIFARClasses)
	r := 6 + next(6)
	cx, cy := r+next(CIFARSize-2*r), r+next(CIFARSize-2*r)
	for c := range 3 {
		ground := 40 + next(100)
		ink := ground + 50 + next(66)
		for y := range CIFARSize {
			for x := range CIFARSize {
				v := ground
				if figures[class](x-cx, y-cy, r) {
					v = ink
				}
				image[(c*CIFARSize+y)*CIFARSize+x] = uint8(max(0, min(255, v+next(49)-24)))
			}
		}
	}
	return int32(class)
}

func abs(x int) int { return max(x, -x) }
