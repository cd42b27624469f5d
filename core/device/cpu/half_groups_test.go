package cpu

import (
	"bytes"
	"testing"

	"starling/core/tensor"
	"starling/sdk/vec"
)

// A right operand larger than packedHalfMost is packed and multiplied a group of strips at a time. Its columns have the bits of
// products with a few columns each, which take one group.
func TestHalfProductInSeveralGroups(t *testing.T) {
	const rows, in, strip, strips = 3, 16384, 512, 3
	if size := in / 2 * strip; packedHalfMost/size >= strips {
		t.Fatalf("%d strips of %d elements fit one group of %d: the shape tests nothing", strips, size, packedHalfMost)
	}
	d := open(t, Config{Threads: 2})
	whole := sample{op: "linear", in: []operand{hs(rows, in), hs(strips*strip, in), hs(strips * strip)}}.lay(t, d)
	run, err := d.Bind(whole.call)
	if err != nil {
		t.Fatal(err)
	}
	run()
	const esize = 2
	y := whole.call.Out[0].Bytes()
	for s := range strips {
		part := sample{op: "linear", in: []operand{hs(rows, in), hs(strip, in), hs(strip)}}.lay(t, d)
		copy(part.call.In[0].Bytes(), whole.call.In[0].Bytes())
		copy(part.call.In[1].Bytes(), whole.call.In[1].Bytes()[s*strip*in*esize:])
		copy(part.call.In[2].Bytes(), whole.call.In[2].Bytes()[s*strip*esize:])
		if run, err = d.Bind(part.call); err != nil {
			t.Fatal(err)
		}
		run()
		for r := range rows {
			got := y[(r*strips+s)*strip*esize:][:strip*esize]
			if want := part.call.Out[0].Bytes()[r*strip*esize:][:strip*esize]; !bytes.Equal(got, want) {
				t.Errorf("%s, row %d, strip %d: other bits than alone", vec.BF16Class(), r, s)
			}
		}
	}
	if whole.call.Out[0].DType != tensor.BF16 {
		t.Errorf("the result is %s", whole.call.Out[0].DType)
	}
}
