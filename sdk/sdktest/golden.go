// Package sdktest reads recorded tensors in tests of optimizers: safetensors files, as numpy and PyTorch write them.
package sdktest

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
)

// Tensor is a recorded tensor of float32 or float64 elements.
type Tensor struct {
	Shape  []int
	Values []float64
}

// Read reads a safetensors file.
func Read(path string) (map[string]Tensor, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if len(b) < 8 || binary.LittleEndian.Uint64(b) > uint64(len(b)-8) {
		return nil, fmt.Errorf("%s is no safetensors file", path)
	}
	head, data := b[8:8+binary.LittleEndian.Uint64(b)], b[8+binary.LittleEndian.Uint64(b):]
	var entries map[string]json.RawMessage
	if err := json.Unmarshal(head, &entries); err != nil {
		return nil, fmt.Errorf("%s: header: %w", path, err)
	}
	out := map[string]Tensor{}
	for name, raw := range entries {
		if name == "__metadata__" {
			continue
		}
		var e struct {
			DType   string `json:"dtype"`
			Shape   []int  `json:"shape"`
			Offsets [2]int `json:"data_offsets"`
		}
		if err := json.Unmarshal(raw, &e); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", path, name, err)
		}
		lo, hi := e.Offsets[0], e.Offsets[1]
		if lo < 0 || hi < lo || hi > len(data) {
			return nil, fmt.Errorf("%s: %s lies outside the file", path, name)
		}
		t := Tensor{Shape: e.Shape}
		switch e.DType {
		case "F32":
			for at := lo; at+4 <= hi; at += 4 {
				t.Values = append(t.Values, float64(math.Float32frombits(binary.LittleEndian.Uint32(data[at:]))))
			}
		case "F64":
			for at := lo; at+8 <= hi; at += 8 {
				t.Values = append(t.Values, math.Float64frombits(binary.LittleEndian.Uint64(data[at:])))
			}
		default:
			continue
		}
		out[name] = t
	}
	return out, nil
}

// Float32 is the values as float32.
func (t Tensor) Float32() []float32 {
	out := make([]float32, len(t.Values))
	for i, v := range t.Values {
		out[i] = float32(v)
	}
	return out
}
