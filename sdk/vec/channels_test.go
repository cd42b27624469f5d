package vec

import (
	"math/rand/v2"
	"testing"
)

func TestChannelsLast(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 1))
	for _, set := range Sets() {
		restore, err := Use(set)
		if err != nil {
			t.Fatal(err)
		}
		for _, channels := range []int{1, 2, 3, 31, 32, 33, 63, 64} {
			for _, pixels := range []int{1, 15, 31, 32, 33, 64, 97} {
				const gap, guard = 5, 0xdead
				ld := pixels + gap
				src := make([]uint16, (channels-1)*ld+pixels)
				for i := range src {
					src[i] = uint16(r.Uint32())
				}
				dst := make([]uint16, ChannelUnit*pixels+ChannelUnit)
				for i := range dst {
					dst[i] = guard
				}
				ChannelsLast(dst, src, ld, channels, pixels)
				for i, v := range dst {
					want := uint16(guard)
					if p, c := i/ChannelUnit, i%ChannelUnit; p < pixels {
						want = 0
						if c < channels {
							want = src[c*ld+p]
						}
					}
					if v != want {
						t.Fatalf("%s, %d channels of %d pixels: element %d is %#x, not %#x", set, channels, pixels, i, v, want)
					}
				}
			}
		}
		restore()
	}
}

func TestTransposePanel(t *testing.T) {
	for _, set := range Sets() {
		restore, err := Use(set)
		if err != nil {
			t.Fatal(err)
		}
		for _, cols := range []int{1, 3, 15, 16, 17, 64, 100} {
			ld := cols + 3
			src := make([]float32, (PanelRows-1)*ld+cols)
			for i := range src {
				src[i] = float32(i)
			}
			dst := make([]float32, PanelFloats(cols)+1)
			dst[len(dst)-1] = -1
			TransposePanel(dst, src, ld, cols)
			for c := range cols {
				for row := range PanelRows {
					if got, want := dst[c*PanelRows+row], src[row*ld+c]; got != want {
						t.Fatalf("%s, %d columns: column %d of row %d is %v, not %v", set, cols, c, row, got, want)
					}
				}
			}
			if dst[len(dst)-1] != -1 {
				t.Fatalf("%s, %d columns: written past the end", set, cols)
			}
		}
		restore()
	}
}
