package vec

import "fmt"

// ChannelUnit is the channels of a pixel that ChannelsLast lays together.
const ChannelUnit = 64

// ChannelsLast lays the channels of each pixel together: dst[p*64+c] = src[c*ld+p] for c below channels, 64 at most, and 0 for
// the rest.
func ChannelsLast(dst, src []uint16, ld, channels, pixels int) {
	if channels < 1 || channels > ChannelUnit || pixels < 0 || len(dst) < ChannelUnit*pixels || pixels > 0 && len(src) < (channels-1)*ld+pixels {
		panic(fmt.Sprintf("vec.ChannelsLast: %d channels of %d pixels, stride %d, from %d elements to %d", channels, pixels, ld, len(src), len(dst)))
	}
	if pixels > 0 && !channelsLast(dst, src, ld, channels, pixels) {
		channelsLastGeneric(dst, src, ld, channels, 0, pixels)
	}
}

func channelsLastGeneric(dst, src []uint16, ld, channels, p0, p1 int) {
	clear(dst[p0*ChannelUnit : p1*ChannelUnit])
	for c := range channels {
		for p, v := range src[c*ld+p0 : c*ld+p1] {
			dst[(p0+p)*ChannelUnit+c] = v
		}
	}
}

// PanelRows is the rows that TransposePanel takes.
const PanelRows = gemmNR

// PanelFloats is the room that the transpose of a panel of so many columns takes.
func PanelFloats(cols int) int { return roundUp(cols, packSquare) * PanelRows }

// TransposePanel transposes 32 rows of src, ld apart: dst[c*32+r] = src[r*ld+c]. dst has PanelFloats(cols) elements.
func TransposePanel(dst, src []float32, ld, cols int) {
	if cols < 1 || ld < cols || len(dst) < PanelFloats(cols) || len(src) < (PanelRows-1)*ld+cols {
		panic(fmt.Sprintf("vec.TransposePanel: %d columns, stride %d, from %d elements to %d", cols, ld, len(src), len(dst)))
	}
	if transposePanel(dst, src, ld, cols) {
		return
	}
	for r := range PanelRows {
		for c, v := range src[r*ld:][:cols] {
			dst[c*PanelRows+r] = v
		}
	}
}

// GatherUnits copies units of 64 elements, n for each of so many rows: dst[(r*n+i)*64] on from src[at[r*step+i]*64] on, or zeros where that is
// negative.
func GatherUnits(dst, src []uint16, rows, n int, at []int32, step int) {
	if rows < 0 || n < 0 || step < n || len(dst) < rows*n*ChannelUnit || rows > 0 && len(at) < (rows-1)*step+n {
		panic(fmt.Sprintf("vec.GatherUnits: %d rows of %d units, stride %d, from %d places to %d elements", rows, n, step, len(at), len(dst)))
	}
	if rows == 0 || n == 0 {
		return
	}
	most := int32(len(src)/ChannelUnit) - 1
	for r := range rows {
		for _, u := range at[r*step:][:n] {
			if u > most {
				panic(fmt.Sprintf("vec.GatherUnits: unit %d of %d elements", u, len(src)))
			}
		}
	}
	if gatherUnits(dst, src, rows, n, at, step) {
		return
	}
	for r := range rows {
		for _, u := range at[r*step:][:n] {
			if u < 0 {
				clear(dst[:ChannelUnit])
			} else {
				copy(dst[:ChannelUnit], src[int(u)*ChannelUnit:])
			}
			dst = dst[ChannelUnit:]
		}
	}
}
