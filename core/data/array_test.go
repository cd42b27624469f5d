package data

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func readCSV(t *testing.T, text string, cfg CSVConfig) *Array {
	t.Helper()
	a, err := ReadCSV(strings.NewReader(text), "t.csv", cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestCSV(t *testing.T) {
	const plain = "1,2,0\n3,4,1\n\n5.5,-6e1,2\n"
	for name, c := range map[string]struct {
		text string
		cfg  CSVConfig
	}{
		"no header":        {plain, CSVConfig{}},
		"header":           {"x, y, class\n" + plain, CSVConfig{}},
		"label by name":    {"class,x,y\n0,1,2\n1,3,4\n2,5.5,-60\n", CSVConfig{Label: "class"}},
		"label by number":  {"0,1,2\n1,3,4\n2,5.5,-60\n", CSVConfig{Label: "0"}},
		"label from end":   {"1,0,2\n3,1,4\n5.5,2,-60\n", CSVConfig{Label: "-2"}},
		"semicolons, CRLF": {"1; 2; 0\r\n3; 4; 1\r\n5.5; -60; 2\r\n", CSVConfig{Comma: ';'}},
		"quotes":           {"\"1\",2,0\n3,\"4\",1\n5.5,-60,2", CSVConfig{}},
		"scale":            {"2,4,0\n6,8,1\n11,-120,2\n", CSVConfig{Scale: 0.5}},
	} {
		a := readCSV(t, c.text, c.cfg)
		if want := []float32{1, 2, 3, 4, 5.5, -60}; !slices.Equal(a.features, want) {
			t.Errorf("%s: features %v, want %v", name, a.features, want)
		}
		if want := []int32{0, 1, 2}; !slices.Equal(a.labels, want) || a.Classes() != 3 {
			t.Errorf("%s: labels %v of %d classes", name, a.labels, a.Classes())
		}
		if s := a.Fields()[0].Shape; !slices.Equal(s, []int{2}) {
			t.Errorf("%s: shape %v", name, s)
		}
	}
	if a := readCSV(t, "1,2,3,4,0\n", CSVConfig{Shape: []int{1, 2, 2}, Classes: 7}); a.Classes() != 7 || !slices.Equal(a.Fields()[0].Shape, []int{1, 2, 2}) || a.Bytes() != 20 {
		t.Errorf("%d classes, shape %v, %d bytes", a.Classes(), a.Fields()[0].Shape, a.Bytes())
	}
}

func TestCSVErrorsNameThePlace(t *testing.T) {
	for _, c := range []struct {
		text string
		cfg  CSVConfig
		want string
	}{
		{"", CSVConfig{}, "t.csv has no samples"},
		{"a,b\n", CSVConfig{}, "t.csv has no samples"},
		{"1\n", CSVConfig{}, `t.csv:1:1: one column only`},
		{"1,2,0\n1,x,0\n", CSVConfig{}, `t.csv:2:3: feature in column 1 is "x", which is no finite number`},
		{"a,b,c\n1,,0\n", CSVConfig{}, `t.csv:2:3: feature "b" is ""`},
		{"1,2,0\n1,NaN,0\n", CSVConfig{}, `t.csv:2:3: feature in column 1 is "NaN"`},
		{"1,2,0\n1,1e99,0\n", CSVConfig{}, `"1e99", which is no finite number`},
		{"1,2,0\n\n\n1,2,0.5\n", CSVConfig{}, `t.csv:4:5: label in column 2 is "0.5"`},
		{"a,b,c\n1,2,-1\n", CSVConfig{}, `t.csv:2:5: label "c" is "-1"`},
		{"1,2,5\n", CSVConfig{Classes: 5}, "with 5 classes labels are 0 to 4"},
		{"1,2,0\n1,2\n", CSVConfig{}, "t.csv:2:1: 2 columns, where the first line has 3"},
		{"1,2,0\n1,\"2,0\n", CSVConfig{}, "t.csv:2:"},
		{"a,b,c\n1,2,0\n", CSVConfig{Label: "d"}, `no column is called "d"; the header has a, b, c`},
		{"1,2,0\n", CSVConfig{Label: "d"}, "the first line is no header"},
		{"1,2,0\n", CSVConfig{Label: "3"}, "no column 3; the line has columns 0 to 2"},
		{"1,2,0\n", CSVConfig{Shape: []int{3}}, "t.csv: data: 1 samples of shape [3] need 3 features, there are 2"},
	} {
		if _, err := ReadCSV(strings.NewReader(c.text), "t.csv", c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: error %v, want %q", c.text, err, c.want)
		}
	}
	if _, err := ReadCSVFile(filepath.Join(t.TempDir(), "missing.csv"), CSVConfig{}); err == nil || !strings.Contains(err.Error(), "missing.csv") {
		t.Errorf("error %v", err)
	}
}

func TestCSVFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.csv")
	if err := os.WriteFile(path, []byte("1,0\n2,1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	a, err := ReadCSVFile(path, CSVConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if a.Len() != 2 {
		t.Errorf("%d samples", a.Len())
	}
}

func TestArrayIntoBatch(t *testing.T) {
	a := readCSV(t, "1,2,0\n3,4,1\n5,6,2\n", CSVConfig{})
	s := newSampler(t, SamplerConfig{Samples: 3, GlobalBatch: 4, MicroBatch: 4})
	b := NewBatch(a.Fields(), 4)
	for i := range b.Column("features").Float32 {
		b.Column("features").Float32[i] = 99
	}
	if err := b.Fill(a, s, 0, 0); err != nil {
		t.Fatal(err)
	}
	if got, want := b.Column("features").Float32, []float32{1, 2, 3, 4, 5, 6, 0, 0}; !slices.Equal(got, want) {
		t.Errorf("features %v, want %v", got, want)
	}
	if got, want := b.Column("labels").Int32, []int32{0, 1, 2, Masked}; !slices.Equal(got, want) {
		t.Errorf("labels %v, want %v", got, want)
	}
	if b.Samples != 3 || b.Weight != 3 || b.Size() != 4 || BatchBytes(a.Fields(), 4) != 4*12 {
		t.Errorf("%d samples, weight %d, size %d", b.Samples, b.Weight, b.Size())
	}
	if b.Column("nothing") != nil || len(b.Column("labels").Bytes()) != 16 || b.Column("labels").Bytes()[4] != 1 {
		t.Error("columns are not what they should be")
	}
}

func TestArraySplit(t *testing.T) {
	features := make([]float32, 1000)
	labels := make([]int32, 1000)
	for i := range features {
		features[i] = float32(i)
	}
	whole, err := NewArray(features, []int{1}, labels, 2)
	if err != nil {
		t.Fatal(err)
	}
	train, held, err := whole.Split(0.2)
	if err != nil {
		t.Fatal(err)
	}
	if n := held.Len(); n < 150 || n > 250 || train.Len()+n != 1000 || held.Classes() != 2 {
		t.Errorf("%d held out, %d kept, of 1000", n, train.Len())
	}
	union := slices.Concat(train.features, held.features)
	slices.Sort(union)
	if !slices.Equal(union, features) || !slices.IsSorted(train.features) || !slices.IsSorted(held.features) {
		t.Error("the parts are not the whole, in order")
	}
	// The first 500 go where they went.
	half, err := NewArray(features[:500], []int{1}, labels[:500], 2)
	if err != nil {
		t.Fatal(err)
	}
	_, heldHalf, err := half.Split(0.2)
	if err != nil {
		t.Fatal(err)
	}
	if want := held.features[:len(heldHalf.features)]; !slices.Equal(heldHalf.features, want) {
		t.Error("appending samples moved others")
	}
	for _, c := range []struct {
		n        int
		fraction float64
	}{{2, 1e-9}, {2, 1 - 1e-9}} {
		few, err := NewArray(features[:c.n], []int{1}, labels[:c.n], 2)
		if err != nil {
			t.Fatal(err)
		}
		if train, held, err := few.Split(c.fraction); err != nil || train.Len() != 1 || held.Len() != 1 {
			t.Errorf("%v of %d: %v", c.fraction, c.n, err)
		}
	}
	one, err := NewArray(features[:1], []int{1}, labels[:1], 2)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := one.Split(0.5); err == nil || !strings.Contains(err.Error(), "one sample") {
		t.Errorf("error %v", err)
	}
	for _, f := range []float64{0, 1, math.NaN()} {
		if _, _, err := whole.Split(f); err == nil {
			t.Errorf("holdout %v was accepted", f)
		}
	}
}

func TestNewArrayRefuses(t *testing.T) {
	for _, c := range []struct {
		features []float32
		shape    []int
		labels   []int32
		classes  int
		want     string
	}{
		{[]float32{1}, []int{0}, []int32{0}, 1, "empty dimension"},
		{nil, []int{1}, nil, 1, "at least one sample"},
		{[]float32{1}, []int{2}, []int32{0}, 1, "need 2 features, there are 1"},
		{[]float32{1}, []int{1}, []int32{3}, 3, "sample 0 has label 3; labels are 0 to 2"},
		{[]float32{1}, []int{1}, []int32{-1}, 0, "label -1"},
	} {
		if _, err := NewArray(c.features, c.shape, c.labels, c.classes); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q", err, c.want)
		}
	}
}

func TestArrayFingerprint(t *testing.T) {
	a := readCSV(t, "1,2,0\n3,4,1\n", CSVConfig{})
	h := sha256.New()
	h.Write([]byte("starling array fingerprint v1\n"))
	for _, v := range []uint64{2, 1, 2} {
		h.Write(binary.LittleEndian.AppendUint64(nil, v))
	}
	for _, v := range []float32{1, 2, 3, 4} {
		h.Write(binary.LittleEndian.AppendUint32(nil, math.Float32bits(v)))
	}
	h.Write([]byte{0, 0, 0, 0, 1, 0, 0, 0})
	if got, want := a.Fingerprint(), hex.EncodeToString(h.Sum(nil)); got != want {
		t.Errorf("fingerprint %s, want %s", got, want)
	}
	if b := readCSV(t, "1,2,1\n3,4,1\n", CSVConfig{}); b.Fingerprint() == a.Fingerprint() {
		t.Error("another label, the same fingerprint")
	}
}

func TestDigits(t *testing.T) {
	cfg := DigitsConfig{Samples: 2000, Seed: 1, Noise: 0.2}
	a, err := Digits(cfg)
	if err != nil {
		t.Fatal(err)
	}
	// Frozen: runs on other machines must see these images.
	if got, want := a.Fingerprint(), "f3787fca7312c383609656a48695bbcb87bd4e1f4c3db035a69f0392d0d61f5f"; got != want {
		t.Errorf("fingerprint %s, want %s", got, want)
	}
	count := [10]int{}
	for _, y := range a.labels {
		count[y]++
	}
	if slices.Min(count[:]) < 140 {
		t.Errorf("labels are uneven: %v", count)
	}
	if lo, hi := slices.Min(a.features), slices.Max(a.features); lo < -0.2 || hi > 1.2 {
		t.Errorf("pixels from %v to %v", lo, hi)
	}
	// A sample depends on its number alone.
	cfg.Samples = 100
	few, err := Digits(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(few.features, a.features[:100*DigitSize*DigitSize]) {
		t.Error("fewer samples are other samples")
	}
	for _, bad := range []DigitsConfig{{Samples: 0}, {Samples: 1, Noise: 2}, {Samples: 1, Noise: float32(math.NaN())}} {
		if _, err := Digits(bad); err == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
}

// The task can be learned and is not trivial: the nearest of 1500 training images is right for most
// images, not for all.
func TestDigitsAreATask(t *testing.T) {
	a, err := Digits(DigitsConfig{Samples: 1700, Seed: 3, Noise: 0.2})
	if err != nil {
		t.Fatal(err)
	}
	const px = DigitSize * DigitSize
	right := 0
	for i := 1500; i < 1700; i++ {
		x := a.features[i*px:][:px]
		best, label := float32(math.MaxFloat32), int32(-1)
		for j := range 1500 {
			y := a.features[j*px:][:px]
			d := float32(0)
			for k := range x {
				d += (x[k] - y[k]) * (x[k] - y[k])
			}
			if d < best {
				best, label = d, a.labels[j]
			}
		}
		if label == a.labels[i] {
			right++
		}
	}
	if right < 150 || right == 200 {
		t.Errorf("nearest neighbours label %d of 200 images right", right)
	}
}

func TestBytesTokenizer(t *testing.T) {
	var tok Tokenizer = Bytes{}
	text := []byte("Go \xff\x00é")
	ids := tok.Encode([]int32{7}, text)
	if len(ids) != 1+len(text) || ids[0] != 7 || ids[4] != 255 {
		t.Errorf("ids %v", ids)
	}
	back, err := tok.Decode([]byte(">"), ids[1:])
	if err != nil || string(back) != ">"+string(text) {
		t.Errorf("%q, %v", back, err)
	}
	for _, id := range []int32{-1, 256} {
		if _, err := tok.Decode(nil, []int32{65, id}); err == nil || !strings.Contains(err.Error(), "position 1") {
			t.Errorf("id %d: error %v", id, err)
		}
	}
	if tok.Vocab() != 256 || tok.Name() != "bytes" {
		t.Errorf("%s of %d", tok.Name(), tok.Vocab())
	}
}

// Whatever a table holds, it becomes finite features and labels in range, or an error that names it.
func FuzzReadCSV(f *testing.F) {
	f.Add("x,y,class\n1,2,0\n3,4,1\n", "class")
	f.Add("1;2;0\r\n\"3\",4,1", "-2")
	f.Add("\"a\n\",\n", "")
	f.Fuzz(func(t *testing.T, text, label string) {
		a, err := ReadCSV(strings.NewReader(text), "t.csv", CSVConfig{Label: label})
		if err != nil {
			if !strings.Contains(err.Error(), "t.csv") {
				t.Fatalf("error %v does not name the table", err)
			}
			return
		}
		if len(a.features) != a.each*len(a.labels) || slices.Min(a.labels) < 0 || int(slices.Max(a.labels)) >= a.Classes() {
			t.Fatalf("%d features, labels %v of %d classes", len(a.features), a.labels, a.Classes())
		}
		for _, v := range a.features {
			if d := v - v; d != 0 {
				t.Fatalf("feature %v", v)
			}
		}
	})
}

func TestRegressionSamples(t *testing.T) {
	a, err := ReadCSV(strings.NewReader("\ufeffx,y\n1,0.5\n2,-1.5\n3,7\n4,8\n5,9\n"), "t.csv", CSVConfig{Target: "y", Scale: 2})
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewSampler(SamplerConfig{Samples: a.Len(), GlobalBatch: 4, MicroBatch: 4})
	if err != nil {
		t.Fatal(err)
	}
	b := NewBatch(a.Fields(), 4)
	if err := b.Fill(a, s, 1, 0); err != nil {
		t.Fatal(err)
	}
	if x, y := b.Column("features").Float32, b.Column("targets").Float32; !slices.Equal(x, []float32{10, 0, 0, 0}) || !slices.Equal(y, []float32{9, 0, 0, 0}) {
		t.Errorf("the short batch has features %v and targets %v", x, y)
	}
	if b.Weight != 1 || b.Samples != 1 {
		t.Errorf("the short batch weighs %d with %d samples, want 1 and 1", b.Weight, b.Samples)
	}
	labelled, err := NewArray([]float32{1}, []int{1}, []int32{0}, 1)
	if err != nil {
		t.Fatal(err)
	}
	real, err := NewRegression([]float32{1}, []int{1}, []float32{0})
	if err != nil {
		t.Fatal(err)
	}
	if labelled.Fingerprint() == real.Fingerprint() {
		t.Error("labels and targets have one fingerprint")
	}
	train, held, err := a.Split(0.4)
	if err != nil {
		t.Fatal(err)
	}
	if train.Len()+held.Len() != 5 || held.Len() < 1 || held.Classes() != 0 || len(held.targets) != int(held.Len()) {
		t.Errorf("the split has %d and %d samples", train.Len(), held.Len())
	}
}
