package data

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// record is one record of CIFAR-10's binary form.
func record(label byte, pixel func(i int) byte) []byte {
	b := make([]byte, cifarRecord)
	b[0] = label
	for i := range cifarPixels {
		b[1+i] = pixel(i)
	}
	return b
}

func TestCIFARFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, records ...[]byte) {
		if err := os.WriteFile(filepath.Join(dir, name), bytes.Join(records, nil), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("b.bin", record(9, func(int) byte { return 255 }))
	write("a.bin", record(3, func(i int) byte { return byte(i) }), record(0, func(int) byte { return 0 }))
	write("readme.txt", []byte("not an image"))
	a, err := CIFAR(t.Context(), CIFARConfig{Pattern: "*.bin", Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if a.Len() != 3 || a.Classes() != 10 || a.Bytes() != 3*(cifarPixels+4) {
		t.Errorf("%d samples of %d classes in %d bytes", a.Len(), a.Classes(), a.Bytes())
	}
	features, labels := make([]float32, cifarPixels), make([]int32, 1)
	for i, want := range []int32{3, 0, 9} { // files in order of their path
		if err := a.Sample(int64(i), []Values{{Float32: features}, {Int32: labels}}); err != nil {
			t.Fatal(err)
		}
		if labels[0] != want {
			t.Errorf("sample %d has label %d, want %d", i, labels[0], want)
		}
		for c, stat := range [][2]float64{{0.4914, 0.2470}, {0.4822, 0.2435}, {0.4465, 0.2616}} {
			k := c*1024 + 77
			pixel := []float64{float64(byte(k)), 0, 255}[i]
			if want := (pixel/255 - stat[0]) / stat[1]; math.Abs(float64(features[k])-want) > 1e-6 {
				t.Errorf("sample %d, channel %d: %v, want %v", i, c, features[k], want)
			}
		}
	}
	train, held, err := a.Split(0.3)
	if err != nil || train.Len()+held.Len() != 3 || held.Len() < 1 {
		t.Errorf("split in %d and %d: %v", train.Len(), held.Len(), err)
	}
	if train.Fingerprint() == a.Fingerprint() {
		t.Error("the fingerprint does not depend on the samples")
	}
}

func TestCIFARRefusesWhatIsNone(t *testing.T) {
	good := record(1, func(int) byte { return 7 })
	for name, c := range map[string]struct {
		content []byte
		want    string
	}{
		"empty": {nil, "is empty"},
		"short": {append(good[:len(good):len(good)], good[:100]...), "ends after 100 of the 3073 bytes of record 1"},
		"label": {record(10, func(int) byte { return 0 }), "record 0 has label 10"},
	} {
		_, _, err := readCIFAR(bytes.NewReader(c.content), "x.bin", nil, nil)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "x.bin") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := CIFAR(t.Context(), CIFARConfig{Pattern: "*.bin", Dir: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "matches no file") {
		t.Errorf("no file: %v", err)
	}
}

// Drawn images are the same on every machine, hold every class, and a class is told by its figure, not by its colours.
func TestDrawnImages(t *testing.T) {
	a, err := CIFAR(t.Context(), CIFARConfig{Samples: 500, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	const want = "06e54efaa8e05298350df492d08fe0dee1a20b4a824e4db0c1ef18ee53826ddc"
	if got := a.Fingerprint(); got != want {
		t.Errorf("fingerprint %s, want %s", got, want)
	}
	var count [CIFARClasses]int
	var light [CIFARClasses]float64
	for i, y := range a.labels {
		count[y]++
		for _, p := range a.pixels[i*cifarPixels:][:cifarPixels] {
			light[y] += float64(p) / cifarPixels
		}
	}
	for y, n := range count {
		if mean := light[y] / float64(n); n < 25 || mean < 80 || mean > 140 {
			t.Errorf("class %d: %d images of mean brightness %.0f", y, n, mean)
		}
	}
}

func FuzzCIFAR(f *testing.F) {
	f.Add(record(1, func(i int) byte { return byte(i) }))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		pixels, labels, err := readCIFAR(bytes.NewReader(b), "f", nil, nil)
		if err == nil && (len(labels) != len(b)/cifarRecord || len(pixels) != len(labels)*cifarPixels || len(b)%cifarRecord != 0) {
			t.Errorf("%d bytes gave %d labels and %d pixels", len(b), len(labels), len(pixels))
		}
	})
}
