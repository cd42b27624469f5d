package main

import (
	"encoding/binary"
	"hash/crc32"
	"math"
	"time"
)

// An event file is a row of records: the length of the data, a checksum of the length, the data, a checksum of the data. All are
// little-endian, and the data is a protobuf message Event. It is written here by hand: two of its messages with six fields need no compiler.

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum is TensorFlow's masked CRC-32C: rotated and shifted, so that data which holds checksums keeps a good one.
func checksum(b []byte) uint32 {
	c := crc32.Checksum(b, castagnoli)
	return (c>>15 | c<<17) + 0xa282ead8
}

// record frames the data of an event.
func record(data []byte) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(data)))
	b = binary.LittleEndian.AppendUint32(b, checksum(b))
	b = append(b, data...)
	return binary.LittleEndian.AppendUint32(b, checksum(data))
}

// split takes the first record off a file. It reports false where there is no whole one.
func split(b []byte) (data, rest []byte, ok bool) {
	if len(b) < 16 || binary.LittleEndian.Uint32(b[8:]) != checksum(b[:8]) {
		return nil, nil, false
	}
	n := binary.LittleEndian.Uint64(b)
	if n > uint64(len(b)-16) {
		return nil, nil, false
	}
	data, tail := b[12:12+n], b[12+n:]
	return data, tail[4:], binary.LittleEndian.Uint32(tail) == checksum(data)
}

// scalar is one value of an event.
type scalar struct {
	tag   string
	value float32
}

// Wire types of protobuf.
const (
	varint  = 0
	fixed64 = 1
	bytes   = 2
	fixed32 = 5
)

func key(b []byte, field, wire uint64) []byte { return binary.AppendUvarint(b, field<<3|wire) }

func message(b []byte, field uint64, data []byte) []byte {
	b = binary.AppendUvarint(key(b, field, bytes), uint64(len(data)))
	return append(b, data...)
}

// begin is an event's wall_time (1) and step (2).
func begin(at time.Time, step int64) []byte {
	b := binary.LittleEndian.AppendUint64(key(nil, 1, fixed64), math.Float64bits(float64(at.UnixMicro())/1e6))
	if step == 0 {
		return b
	}
	return binary.AppendUvarint(key(b, 2, varint), uint64(step))
}

// version is the first event of a file: file_version (3).
func version(at time.Time) []byte { return message(begin(at, 0), 3, []byte("brain.Event:2")) }

// event has a summary (5) with a value (1) for each scalar: its tag (1) and simple_value (2).
func event(at time.Time, step int64, values []scalar) []byte {
	var summary []byte
	for _, v := range values {
		x := message(nil, 1, []byte(v.tag))
		x = binary.LittleEndian.AppendUint32(key(x, 2, fixed32), math.Float32bits(v.value))
		summary = message(summary, 1, x)
	}
	return message(begin(at, step), 5, summary)
}

// fields calls f for each field of a message, with a number's bits or with the bytes of what has a length. It reports false for what is no message.
func fields(b []byte, f func(field, bits uint64, data []byte)) bool {
	for len(b) > 0 {
		k, n := binary.Uvarint(b)
		if n <= 0 {
			return false
		}
		b = b[n:]
		var bits uint64
		var data []byte
		switch k & 7 {
		case varint:
			if bits, n = binary.Uvarint(b); n <= 0 {
				return false
			}
		case fixed64:
			if n = 8; len(b) < n {
				return false
			}
			bits = binary.LittleEndian.Uint64(b)
		case fixed32:
			if n = 4; len(b) < n {
				return false
			}
			bits = uint64(binary.LittleEndian.Uint32(b))
		case bytes:
			size, m := binary.Uvarint(b)
			if m <= 0 || size > uint64(len(b)-m) {
				return false
			}
			n = m + int(size)
			data = b[m:n]
		default:
			return false
		}
		f(k>>3, bits, data)
		b = b[n:]
	}
	return true
}

// stepOf is the step of an event.
func stepOf(data []byte) (step int64, ok bool) {
	ok = fields(data, func(field, bits uint64, _ []byte) {
		if field == 2 {
			step = int64(bits)
		}
	})
	return step, ok
}
