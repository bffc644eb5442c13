// Package tbevents writes scalars to event files that TensorBoard reads.
//
// A file is a sequence of records, each framed as in TFRecord (little endian):
//
//	length   uint64
//	crc      uint32  masked CRC-32C of the eight bytes of length
//	data     length bytes, an Event message
//	crc      uint32  masked CRC-32C of data
//
// The Event and Summary messages are those of TensorFlow's event.proto and
// summary.proto; only the fields written here are encoded. Files are only
// appended to: each Writer makes one of its own, and TensorBoard shows all
// files of a directory as one series.
package tbevents

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers of Event, Summary and Summary.Value.
const (
	eventWallTime    = 1 // double, seconds since 1970
	eventStep        = 2 // int64
	eventFileVersion = 3 // string
	eventSummary     = 5 // Summary
	summaryValue     = 1 // repeated Summary.Value
	valueTag         = 1 // string
	valueSimple      = 2 // float
)

// fileVersion is what the first event of every file says.
const fileVersion = "brain.Event:2"

// maskDelta is TFRecord's: a CRC that is stored beside data which holds CRCs is rotated and shifted by it.
const maskDelta = 0xa282ead8

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Scalar is one value of one series.
type Scalar struct {
	Tag   string // a slash makes groups: train/reward_mean
	Value float64
}

// Writer appends events to one file. It is not safe for concurrent use.
type Writer struct{ f *os.File }

// Create makes a new event file in dir, named after the time and the host; it
// makes dir when there is none. An existing file is never touched.
func Create(dir string, at time.Time) (*Writer, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("tbevents: create: %w", err)
	}
	f, err := createFile(dir, at)
	if err != nil {
		return nil, err
	}
	w := &Writer{f: f}
	e := protowire.AppendTag(head(at, 0), eventFileVersion, protowire.BytesType)
	if err := w.record(protowire.AppendString(e, fileVersion)); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return w, nil
}

// createFile numbers the files of one second.
func createFile(dir string, at time.Time) (*os.File, error) {
	host, err := os.Hostname()
	if err != nil || host == "" || strings.ContainsRune(host, filepath.Separator) {
		host = "localhost"
	}
	name := filepath.Join(dir, fmt.Sprintf("events.out.tfevents.%d.%s", at.Unix(), host))
	for n := 0; ; n++ {
		path := name
		if n > 0 {
			path = fmt.Sprintf("%s.%d", name, n)
		}
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_EXCL, 0o644)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("tbevents: create: %w", err)
		}
		return f, nil
	}
}

// Path returns the path of the file.
func (w *Writer) Path() string { return w.f.Name() }

// Write appends one event with all the scalars. Values are stored as float32;
// one that is not finite is left out, because it would spoil the chart's axis.
func (w *Writer) Write(at time.Time, step int64, values ...Scalar) error {
	var summary []byte
	for _, s := range values {
		if math.IsNaN(s.Value) || math.IsInf(s.Value, 0) {
			continue
		}
		v := protowire.AppendTag(nil, valueTag, protowire.BytesType)
		v = protowire.AppendString(v, s.Tag)
		v = protowire.AppendTag(v, valueSimple, protowire.Fixed32Type)
		v = protowire.AppendFixed32(v, math.Float32bits(float32(s.Value)))
		summary = protowire.AppendTag(summary, summaryValue, protowire.BytesType)
		summary = protowire.AppendBytes(summary, v)
	}
	if summary == nil {
		return nil
	}
	e := protowire.AppendTag(head(at, step), eventSummary, protowire.BytesType)
	return w.record(protowire.AppendBytes(e, summary))
}

// head starts an event.
func head(at time.Time, step int64) []byte {
	b := protowire.AppendTag(nil, eventWallTime, protowire.Fixed64Type)
	b = protowire.AppendFixed64(b, math.Float64bits(float64(at.UnixMicro())/1e6))
	b = protowire.AppendTag(b, eventStep, protowire.VarintType)
	return protowire.AppendVarint(b, uint64(step))
}

// record appends one framed record with one write: a kill leaves at most its beginning, which readers ignore.
func (w *Writer) record(data []byte) error {
	b := binary.LittleEndian.AppendUint64(make([]byte, 0, len(data)+16), uint64(len(data)))
	b = binary.LittleEndian.AppendUint32(b, masked(b))
	b = append(b, data...)
	b = binary.LittleEndian.AppendUint32(b, masked(data))
	if _, err := w.f.Write(b); err != nil {
		return fmt.Errorf("tbevents: write %s: %w", w.f.Name(), err)
	}
	return nil
}

func masked(b []byte) uint32 {
	crc := crc32.Checksum(b, castagnoli)
	return (crc>>15 | crc<<17) + maskDelta
}

// Close closes the file.
func (w *Writer) Close() error {
	if err := w.f.Close(); err != nil {
		return fmt.Errorf("tbevents: close: %w", err)
	}
	return nil
}
