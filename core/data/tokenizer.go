package data

import "fmt"

// Tokenizer turns text into token ids and back.
type Tokenizer interface {
	// Name is what a plan and a run's record call it, such as "bytes".
	Name() string
	// Vocab is the number of distinct ids; ids are 0 … Vocab()-1.
	Vocab() int
	// Encode appends the ids of text to dst.
	Encode(dst []int32, text []byte) []int32
	// Decode appends the text of ids to dst. It fails on an id outside the vocabulary.
	Decode(dst []byte, ids []int32) ([]byte, error)
}

// Bytes is the tokenizer whose ids are the 256 byte values. Any input is valid.
type Bytes struct{}

// Name is "bytes".
func (Bytes) Name() string { return "bytes" }

// Vocab is 256.
func (Bytes) Vocab() int { return 256 }

// Encode appends each byte of text as an id.
func (Bytes) Encode(dst []int32, text []byte) []int32 {
	for _, b := range text {
		dst = append(dst, int32(b))
	}
	return dst
}

// Decode appends each id as a byte.
func (Bytes) Decode(dst []byte, ids []int32) ([]byte, error) {
	for i, id := range ids {
		if id < 0 || id > 255 {
			return dst, fmt.Errorf("data: token %d at position %d is no byte (0 to 255)", id, i)
		}
		dst = append(dst, byte(id))
	}
	return dst, nil
}
