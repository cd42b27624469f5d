package checkpoint

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
)

// WeightsHash is the SHA-256, in hexadecimal, of all tensors in ascending bytewise
// order of their names, each as float32, little-endian, in row-major order. Names and
// shapes do not enter. Tensors must be F32 and whole; a tensor may come in pieces,
// in any order.
func WeightsHash(tensors []Tensor) (string, error) {
	tensors = slices.Clone(tensors)
	slices.SortFunc(tensors, func(a, b Tensor) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Offset, b.Offset))
	})
	hash := sha256.New()
	for i := 0; i < len(tensors); {
		name, at := tensors[i].Name, int64(0)
		n, err := elements(tensors[i].DType, tensors[i].Shape)
		if err != nil {
			return "", fmt.Errorf("checkpoint: hashing weights: tensor %q: %w", name, err)
		}
		for ; i < len(tensors) && tensors[i].Name == name; i++ {
			t := tensors[i]
			if err := t.Validate(); err != nil {
				return "", fmt.Errorf("checkpoint: hashing weights: %w", err)
			}
			if t.DType != F32 {
				return "", fmt.Errorf("checkpoint: hashing weights: tensor %q is %s; only F32 is hashed", name, t.DType)
			}
			if t.Offset != at {
				return "", fmt.Errorf("checkpoint: hashing weights: tensor %q has a piece from element %d where one from %d was expected", name, t.Offset, at)
			}
			hash.Write(t.Data)
			at += t.Count()
		}
		if at != n {
			return "", fmt.Errorf("checkpoint: hashing weights: tensor %q has %d elements of %d", name, at, n)
		}
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}
