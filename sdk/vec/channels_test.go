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

func TestGatherUnits(t *testing.T) {
	const units, guard = 7, 0xdead
	r := rand.New(rand.NewPCG(5, 1))
	src := make([]uint16, units*ChannelUnit)
	for i := range src {
		src[i] = uint16(r.Uint32())
	}
	for _, set := range Sets() {
		restore, err := Use(set)
		if err != nil {
			t.Fatal(err)
		}
		for range 50 {
			rows, n := 1+r.IntN(5), 1+r.IntN(10)
			step := n + r.IntN(4)
			at := make([]int32, (rows-1)*step+n)
			for i := range at {
				at[i] = int32(r.IntN(units+2)) - 2
			}
			dst := make([]uint16, rows*n*ChannelUnit+32)
			for i := range dst {
				dst[i] = guard
			}
			GatherUnits(dst, src, rows, n, at, step)
			for i, v := range dst {
				want := uint16(guard)
				if u := i / ChannelUnit; u < rows*n {
					want = 0
					if from := at[u/n*step+u%n]; from >= 0 {
						want = src[int(from)*ChannelUnit+i%ChannelUnit]
					}
				}
				if v != want {
					t.Fatalf("%s, %d rows of %d units: element %d is %#x, not %#x", set, rows, n, i, v, want)
				}
			}
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: a unit past the end is accepted", set)
				}
			}()
			GatherUnits(make([]uint16, ChannelUnit), src, 1, 1, []int32{units}, 1)
		}()
		restore()
	}
}
