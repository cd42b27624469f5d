package vec

import "testing"

// Known answers of Random123 1.14's kat_vectors for philox4x32 with 10 rounds.
func TestPhiloxKnownAnswers(t *testing.T) {
	for _, c := range []struct {
		ctr  [4]uint32
		key  [2]uint32
		want [4]uint32
	}{
		{[4]uint32{}, [2]uint32{}, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{[4]uint32{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, [2]uint32{0xffffffff, 0xffffffff}, [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [2]uint32{0xa4093822, 0x299f31d0}, [4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	} {
		if got := Philox(c.key, c.ctr); got != c.want {
			t.Errorf("Philox(%x, %x) = %x, want %x", c.key, c.ctr, got, c.want)
		}
	}
}

func TestDropoutDoesNotDependOnSplits(t *testing.T) {
	const n = 1003
	x, whole, parts := make([]float32, n), make([]float32, n), make([]float32, n)
	Fill(x, 3)
	s := Stream{Key: [2]uint32{7, 8}, Prefix: [2]uint32{9, 10}}
	const start = 1<<34 - 500 // the block index crosses 2**32
	Dropout(whole, x, 0.25, s, start)
	for i := 0; i < n; {
		j := min(n, i+1+i%37)
		Dropout(parts[i:j], x[i:j], 0.25, s, start+uint64(i))
		i = j
	}
	kept := 0
	for i := range whole {
		if whole[i] != parts[i] {
			t.Fatalf("element %d: %v whole, %v in parts", i, whole[i], parts[i])
		}
		switch whole[i] {
		case 4:
			kept++
		case 0:
		default:
			t.Fatalf("element %d: %v, want 0 or 3/(1-0.25)", i, whole[i])
		}
		word := s.Block((start + uint64(i)) / 4)[(start+uint64(i))%4]
		if kept := whole[i] != 0; kept != (word >= DropoutThreshold(0.25)) {
			t.Fatalf("element %d: kept %v for word %#x", i, kept, word)
		}
	}
	if kept < 700 || kept > 800 {
		t.Errorf("kept %d of %d elements at p = 0.25", kept, n)
	}
}
