package data

import "fmt"

// DigitsConfig describes generated images of digits: a small task that is no
// language, on data that needs no download.
type DigitsConfig struct {
	Samples int
	Seed    uint64
	// Noise is the largest amount added to or taken from a pixel; 0 to 1.
	Noise float32
}

// DigitSize is the height and width of a generated image in pixels.
const DigitSize = 12

// Digits draws images of the digits 0 to 9, [1, 12, 12] each (channel, row, column):
// a 5 × 7 glyph at a random place, in a random brightness, with random strokes
// missing and uniform noise. Sample i is a pure function of (Seed, i), and the same
// on every machine. Labels are the digits.
func Digits(cfg DigitsConfig) (*Array, error) {
	if cfg.Samples < 1 {
		return nil, fmt.Errorf("data: digits(samples = %d) must be at least 1", cfg.Samples)
	}
	if !(cfg.Noise >= 0 && cfg.Noise <= 1) {
		return nil, fmt.Errorf("data: digits(noise = %v) must be 0 to 1", cfg.Noise)
	}
	const pixels = DigitSize * DigitSize
	features := make([]float32, cfg.Samples*pixels)
	labels := make([]int32, cfg.Samples)
	for i := range labels {
		labels[i] = drawDigit(features[i*pixels:][:pixels], cfg, uint64(i))
	}
	return NewArray(features, []int{1, DigitSize, DigitSize}, labels, len(glyphs))
}

func drawDigit(image []float32, cfg DigitsConfig, i uint64) int32 {
	state := mix64(mix64(cfg.Seed+goldenGamma) + i)
	next := func() uint64 {
		state += goldenGamma
		return mix64(state)
	}
	// The top 24 bits: every value is an exact float32 in [0, 1).
	uniform := func() float32 { return float32(next()>>40) * (1.0 / (1 << 24)) }

	digit := next() % uint64(len(glyphs))
	top := int(next() % (DigitSize - glyphHeight + 1))
	left := int(next() % (DigitSize - glyphWidth + 1))
	ink := 0.5 + float32(0.5*uniform())
	for row, line := range glyphs[digit] {
		for col, c := range line {
			// One pixel in sixteen is missing.
			if c == '#' && next()%16 != 0 {
				image[(top+row)*DigitSize+left+col] = ink
			}
		}
	}
	for p := range image {
		image[p] += float32(cfg.Noise * (float32(2*uniform()) - 1))
	}
	return int32(digit)
}

const (
	glyphWidth  = 5
	glyphHeight = 7
)

var glyphs = [10][glyphHeight]string{
	{" ### ", "#   #", "#  ##", "# # #", "##  #", "#   #", " ### "},
	{"  #  ", " ##  ", "  #  ", "  #  ", "  #  ", "  #  ", " ### "},
	{" ### ", "#   #", "    #", "   # ", "  #  ", " #   ", "#####"},
	{"#####", "   # ", "  #  ", "   # ", "    #", "#   #", " ### "},
	{"   # ", "  ## ", " # # ", "#  # ", "#####", "   # ", "   # "},
	{"#####", "#    ", "#### ", "    #", "    #", "#   #", " ### "},
	{"  ## ", " #   ", "#    ", "#### ", "#   #", "#   #", " ### "},
	{"#####", "    #", "   # ", "  #  ", " #   ", " #   ", " #   "},
	{" ### ", "#   #", "#   #", " ### ", "#   #", "#   #", " ### "},
	{" ### ", "#   #", "#   #", " ####", "    #", "   # ", " ##  "},
}
