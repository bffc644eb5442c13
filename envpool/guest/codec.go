package guest

import (
	"encoding/binary"
	"errors"
	"math"
	"time"
)

// errShort reports a payload that ends early or carries an impossible length.
var errShort = errors.New("guest: payload is cut short")

// enc appends fields to a payload; integers are varints, strings and byte slices carry their length.
type enc []byte

func (e *enc) int(v int64)   { *e = binary.AppendVarint(*e, v) }
func (e *enc) uint(v uint64) { *e = binary.AppendUvarint(*e, v) }

func (e *enc) str(s string) {
	e.uint(uint64(len(s)))
	*e = append(*e, s...)
}

func (e *enc) bytes(b []byte) {
	e.uint(uint64(len(b)))
	*e = append(*e, b...)
}

func (e *enc) strs(l []string) {
	e.uint(uint64(len(l)))
	for _, s := range l {
		e.str(s)
	}
}

// dec takes fields off a payload; after the first error all fields are zero.
type dec struct {
	b   []byte
	err error
}

func (d *dec) fail() { d.b, d.err = nil, errShort }

func (d *dec) int() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *dec) uint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *dec) u32() uint32 {
	v := d.uint()
	if v > math.MaxUint32 {
		d.fail()
		return 0
	}
	return uint32(v)
}

func (d *dec) bytes() []byte {
	n := d.uint()
	if n > uint64(len(d.b)) {
		d.fail()
		return nil
	}
	v := d.b[:n:n]
	d.b = d.b[n:]
	return v
}

func (d *dec) str() string { return string(d.bytes()) }

func (d *dec) strs() []string {
	n := d.uint()
	if n > uint64(len(d.b)) { // each string takes a byte at least
		d.fail()
		return nil
	}
	var l []string
	for range n {
		l = append(l, d.str())
	}
	return l
}

// end reports the first error, or bytes left over.
func (d *dec) end() error {
	if d.err == nil && len(d.b) > 0 {
		d.err = errors.New("guest: payload is longer than its message")
	}
	return d.err
}

func (p Proof) append(e *enc) {
	e.int(int64(p.Processes))
	e.uint(p.Mounts)
	e.int(int64(p.Files))
	e.int(int64(p.IPC))
}

func (p *Proof) take(d *dec) {
	p.Processes, p.Mounts, p.Files, p.IPC = int(d.int()), d.uint(), int(d.int()), int(d.int())
}

// Encode returns the payload.
func (p Proof) Encode() []byte {
	var e enc
	p.append(&e)
	return e
}

// Decode reads a payload.
func (p *Proof) Decode(b []byte) error {
	d := dec{b: b}
	p.take(&d)
	return d.end()
}

// Encode returns the payload.
func (h Hello) Encode() []byte {
	var e enc
	e.int(int64(h.Version))
	h.Proof.append(&e)
	return e
}

// Decode reads a payload.
func (h *Hello) Decode(b []byte) error {
	d := dec{b: b}
	h.Version = int(d.int())
	h.Proof.take(&d)
	return d.end()
}

// Encode returns the payload.
func (f Failure) Encode() []byte {
	var e enc
	e.uint(uint64(f.Kind))
	e.str(f.Text)
	return e
}

// Decode reads a payload.
func (f *Failure) Decode(b []byte) error {
	d := dec{b: b}
	f.Kind, f.Text = Kind(d.uint()), d.str()
	return d.end()
}

// Encode returns the payload.
func (m Mount) Encode() []byte {
	var e enc
	e.str(m.Lower)
	e.str(m.Host)
	e.int(m.Disk)
	e.int(m.Inodes)
	return e
}

// Decode reads a payload.
func (m *Mount) Decode(b []byte) error {
	d := dec{b: b}
	m.Lower, m.Host, m.Disk, m.Inodes = d.str(), d.str(), d.int(), d.int()
	return d.end()
}

// Encode returns the payload.
func (x Exec) Encode() []byte {
	e := make(enc, 0, 512+len(x.Stdin))
	e.strs(x.Argv)
	e.strs(x.Env)
	e.str(x.Dir)
	e.bytes(x.Stdin)
	for _, v := range []int64{int64(x.Timeout), x.Output, x.Flood, x.FileSize, x.OpenFiles, x.Memory, x.Pids} {
		e.int(v)
	}
	if x.Watch {
		e.uint(1)
	} else {
		e.uint(0)
	}
	return e
}

// Decode reads a payload; Stdin aliases it.
func (x *Exec) Decode(b []byte) error {
	d := dec{b: b}
	x.Argv, x.Env, x.Dir, x.Stdin = d.strs(), d.strs(), d.str(), d.bytes()
	x.Timeout = time.Duration(d.int())
	for _, p := range []*int64{&x.Output, &x.Flood, &x.FileSize, &x.OpenFiles, &x.Memory, &x.Pids} {
		*p = d.int()
	}
	x.Watch = d.uint() == 1
	return d.end()
}

// Encode returns the payload.
func (x Exit) Encode() []byte {
	e := make(enc, 0, 64+len(x.Stdout)+len(x.Stderr))
	e.int(int64(x.Code))
	e.int(int64(x.Signal))
	e.bytes(x.Stdout)
	e.bytes(x.Stderr)
	e.int(x.StdoutTotal)
	e.int(x.StderrTotal)
	e.str(x.Hit)
	e.int(int64(x.Duration))
	e.int(int64(x.CPU))
	return e
}

// Decode reads a payload; the streams alias it.
func (x *Exit) Decode(b []byte) error {
	d := dec{b: b}
	x.Code, x.Signal = int(d.int()), int(d.int())
	x.Stdout, x.Stderr = d.bytes(), d.bytes()
	x.StdoutTotal, x.StderrTotal, x.Hit = d.int(), d.int(), d.str()
	x.Duration, x.CPU = time.Duration(d.int()), time.Duration(d.int())
	return d.end()
}

// Encode returns the payload.
func (w Write) Encode() []byte {
	e := make(enc, 0, 32+len(w.Path)+len(w.Data))
	e.str(w.Path)
	e.uint(uint64(w.Mode))
	e.bytes(w.Data)
	return e
}

// Decode reads a payload; Data aliases it.
func (w *Write) Decode(b []byte) error {
	d := dec{b: b}
	w.Path, w.Mode, w.Data = d.str(), d.u32(), d.bytes()
	return d.end()
}

// Encode returns the payload.
func (r Read) Encode() []byte {
	var e enc
	e.str(r.Path)
	e.int(r.Limit)
	return e
}

// Decode reads a payload.
func (r *Read) Decode(b []byte) error {
	d := dec{b: b}
	r.Path, r.Limit = d.str(), d.int()
	return d.end()
}

// Encode returns the payload.
func (c Collect) Encode() []byte {
	var e enc
	e.strs(c.Paths)
	e.int(c.Limit)
	return e
}

// Decode reads a payload.
func (c *Collect) Decode(b []byte) error {
	d := dec{b: b}
	c.Paths, c.Limit = d.strs(), d.int()
	return d.end()
}

// Encode returns the payload.
func (n Entry) Encode() []byte {
	var e enc
	e.uint(uint64(n.Kind))
	e.str(n.Path)
	e.uint(uint64(n.Mode))
	e.int(n.Size)
	e.str(n.Target)
	return e
}

// Decode reads a payload.
func (n *Entry) Decode(b []byte) error {
	d := dec{b: b}
	n.Kind, n.Path, n.Mode, n.Size, n.Target = EntryKind(d.uint()), d.str(), d.u32(), d.int(), d.str()
	return d.end()
}
