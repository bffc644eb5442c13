package tiny

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"sort"
)

// Array is one tensor of a safetensors file, converted to float32.
type Array struct {
	Shape []int
	Data  []float32 // row-major
}

// entry is one tensor in the header of a safetensors file.
type entry struct {
	Dtype   string   `json:"dtype"`
	Shape   []int    `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
}

// maxHeader is the format's own bound on its header, in bytes.
const maxHeader = 100 << 20

// EncodeSafetensors writes float32 tensors in the safetensors format: eight
// bytes of little-endian header length, a JSON header padded with spaces to a
// multiple of eight, the data. Tensors are in name order, so that equal content
// makes equal bytes.
func EncodeSafetensors(tensors map[string]Array, metadata map[string]string) ([]byte, error) {
	names := make([]string, 0, len(tensors))
	for n := range tensors {
		names = append(names, n)
	}
	sort.Strings(names)
	header := make(map[string]any, len(names)+1) // the encoder sorts the keys
	if len(metadata) > 0 {
		header["__metadata__"] = metadata
	}
	var at int64
	for _, n := range names {
		a := tensors[n]
		if size(a.Shape) != int64(len(a.Data)) {
			return nil, fmt.Errorf("tiny: encode safetensors: %s has shape %v and %d values: %w", n, a.Shape, len(a.Data), ErrFormat)
		}
		end := at + 4*int64(len(a.Data))
		header[n] = entry{Dtype: "F32", Shape: a.Shape, Offsets: [2]int64{at, end}}
		at = end
	}
	h, err := json.Marshal(header)
	if err != nil {
		return nil, fmt.Errorf("tiny: encode safetensors: %w", err)
	}
	for len(h)%8 != 0 {
		h = append(h, ' ')
	}
	out := make([]byte, 8, 8+len(h)+int(at))
	binary.LittleEndian.PutUint64(out, uint64(len(h)))
	out = append(out, h...)
	for _, n := range names {
		for _, x := range tensors[n].Data {
			out = binary.LittleEndian.AppendUint32(out, math.Float32bits(x))
		}
	}
	return out, nil
}

// ParseSafetensors reads a safetensors file with F32, F16 or BF16 tensors. It
// returns ErrFormat for anything the format forbids: gaps, overlaps, offsets that do
// not fit the shape or the file.
func ParseSafetensors(b []byte) (map[string]Array, map[string]string, error) {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("tiny: parse safetensors: %s: %w", fmt.Sprintf(format, args...), ErrFormat)
	}
	if len(b) < 8 {
		return nil, nil, bad("%d bytes", len(b))
	}
	n := binary.LittleEndian.Uint64(b)
	if n > maxHeader || n > uint64(len(b)-8) {
		return nil, nil, bad("header of %d bytes in a file of %d", n, len(b))
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(b[8:8+n], &raw); err != nil {
		return nil, nil, bad("header: %v", err)
	}
	data := b[8+n:]
	var metadata map[string]string
	entries := make(map[string]entry, len(raw))
	names := make([]string, 0, len(raw))
	for name, r := range raw {
		if name == "__metadata__" {
			if err := json.Unmarshal(r, &metadata); err != nil {
				return nil, nil, bad("metadata: %v", err)
			}
			continue
		}
		var e entry
		d := json.NewDecoder(bytes.NewReader(r))
		d.DisallowUnknownFields()
		if err := d.Decode(&e); err != nil {
			return nil, nil, bad("tensor %s: %v", name, err)
		}
		entries[name] = e
		names = append(names, name)
	}
	sort.Slice(names, func(i, j int) bool {
		a, b := entries[names[i]], entries[names[j]]
		if a.Offsets != b.Offsets {
			return a.Offsets[0] < b.Offsets[0] || (a.Offsets[0] == b.Offsets[0] && a.Offsets[1] < b.Offsets[1])
		}
		return names[i] < names[j]
	})
	out := make(map[string]Array, len(names))
	var at int64
	for _, name := range names {
		e := entries[name]
		if e.Offsets[0] != at || e.Offsets[1] < at || e.Offsets[1] > int64(len(data)) {
			return nil, nil, bad("tensor %s lies at %v, expected from %d in %d bytes", name, e.Offsets, at, len(data))
		}
		a, err := decodeArray(e, data[e.Offsets[0]:e.Offsets[1]])
		if err != nil {
			return nil, nil, bad("tensor %s: %v", name, err)
		}
		out[name] = a
		at = e.Offsets[1]
	}
	if at != int64(len(data)) {
		return nil, nil, bad("%d bytes after the last tensor", int64(len(data))-at)
	}
	return out, metadata, nil
}

// size returns the number of values of a shape, or −1 when it is not a shape.
func size(shape []int) int64 {
	n := int64(1)
	for _, d := range shape {
		if d < 0 || (d > 0 && n > math.MaxInt32/int64(d)) {
			return -1
		}
		n *= int64(d)
	}
	return n
}

func decodeArray(e entry, b []byte) (Array, error) {
	width := map[string]int64{"F32": 4, "F16": 2, "BF16": 2}[e.Dtype]
	n := size(e.Shape)
	switch {
	case width == 0:
		return Array{}, fmt.Errorf("dtype %q is not F32, F16 or BF16", e.Dtype)
	case n < 0 || n*width != int64(len(b)):
		return Array{}, fmt.Errorf("shape %v of %s does not fit %d bytes", e.Shape, e.Dtype, len(b))
	}
	a := Array{Shape: e.Shape, Data: make([]float32, n)}
	for i := range a.Data {
		switch e.Dtype {
		case "F32":
			a.Data[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
		case "BF16":
			a.Data[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(b[2*i:])) << 16)
		case "F16":
			a.Data[i] = half(binary.LittleEndian.Uint16(b[2*i:]))
		}
	}
	return a, nil
}

// half converts an IEEE 754 binary16.
func half(h uint16) float32 {
	sign, exp, frac := float64(1), int(h>>10&0x1f), float64(h&0x3ff)
	if h>>15 == 1 {
		sign = -1
	}
	switch {
	case exp == 0x1f && frac != 0:
		return float32(math.NaN())
	case exp == 0x1f:
		return float32(math.Inf(int(sign)))
	case exp == 0:
		return float32(sign * math.Ldexp(frac, -24))
	}
	return float32(sign * math.Ldexp(1+frac/1024, exp-15))
}
