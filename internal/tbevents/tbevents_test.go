package tbevents

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var testTime = time.Unix(1_790_000_000, 250_000_000).UTC()

// event is what the plain reader below takes out of a record.
type event struct {
	wall    float64
	step    int64
	version string
	values  map[string]float64
}

// crc32c is computed bit by bit, apart from the table that the writer uses.
func crc32c(b []byte) uint32 {
	crc := ^uint32(0)
	for _, x := range b {
		crc ^= uint32(x)
		for range 8 {
			if crc&1 == 1 {
				crc = crc>>1 ^ 0x82f63b78
			} else {
				crc >>= 1
			}
		}
	}
	return ^crc
}

func unmask(m uint32) uint32 {
	rot := m - 0xa282ead8
	return rot>>17 | rot<<15
}

// fields calls f for every field of a message; num is the value of a varint or fixed field.
func fields(t *testing.T, b []byte, f func(field int, num uint64, data []byte)) {
	t.Helper()
	for len(b) > 0 {
		key, n := binary.Uvarint(b)
		require.Positive(t, n)
		b = b[n:]
		switch key & 7 {
		case 0:
			v, n := binary.Uvarint(b)
			require.Positive(t, n)
			f(int(key>>3), v, nil)
			b = b[n:]
		case 1:
			f(int(key>>3), binary.LittleEndian.Uint64(b), nil)
			b = b[8:]
		case 2:
			size, n := binary.Uvarint(b)
			require.Positive(t, n)
			f(int(key>>3), 0, b[n:n+int(size)])
			b = b[n+int(size):]
		case 5:
			f(int(key>>3), uint64(binary.LittleEndian.Uint32(b)), nil)
			b = b[4:]
		default:
			t.Fatalf("wire type %d", key&7)
		}
	}
}

// read takes a file apart by the format's description alone.
func read(t *testing.T, path string) []event {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	var out []event
	for len(b) > 0 {
		size := binary.LittleEndian.Uint64(b)
		require.Equal(t, crc32c(b[:8]), unmask(binary.LittleEndian.Uint32(b[8:])))
		data := b[12 : 12+size]
		require.Equal(t, crc32c(data), unmask(binary.LittleEndian.Uint32(b[12+size:])))
		b = b[16+size:]
		e := event{values: map[string]float64{}}
		fields(t, data, func(field int, num uint64, sub []byte) {
			switch field {
			case 1:
				e.wall = math.Float64frombits(num)
			case 2:
				e.step = int64(num)
			case 3:
				e.version = string(sub)
			case 5:
				fields(t, sub, func(_ int, _ uint64, value []byte) {
					tag := ""
					fields(t, value, func(field int, num uint64, text []byte) {
						if field == 1 {
							tag = string(text)
						} else {
							e.values[tag] = float64(math.Float32frombits(uint32(num)))
						}
					})
				})
			}
		})
		out = append(out, e)
	}
	return out
}

func TestChecksumsOfTheStandard(t *testing.T) {
	require.Equal(t, uint32(0xe3069283), crc32c([]byte("123456789")), "the check value of CRC-32C")
	require.Equal(t, uint32(0xe3069283), unmask(masked([]byte("123456789"))))
}

func TestWriteAndReadBack(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tb")
	w, err := Create(dir, testTime)
	require.NoError(t, err)
	require.NoError(t, w.Write(testTime, 0, Scalar{"train/reward_mean", 0.25}, Scalar{"train/loss", math.NaN()}))
	require.NoError(t, w.Write(testTime.Add(time.Second), 300, Scalar{"train/reward_mean", -1e9}, Scalar{"eval/held-out", 0.5}))
	require.NoError(t, w.Write(testTime, 301, Scalar{"train/loss", math.Inf(1)}), "nothing to write is no error")
	require.NoError(t, w.Close())
	require.Equal(t, []event{
		{wall: 1790000000.25, version: "brain.Event:2", values: map[string]float64{}},
		{wall: 1790000000.25, values: map[string]float64{"train/reward_mean": 0.25}},
		{wall: 1790000001.25, step: 300, values: map[string]float64{"train/reward_mean": -1e9, "eval/held-out": 0.5}},
	}, read(t, w.Path()))
	require.Regexp(t, `/events\.out\.tfevents\.1790000000\.[^/]+$`, w.Path())
}

// Two writers of one second get files of their own.
func TestFilesAreNeverShared(t *testing.T) {
	dir := t.TempDir()
	a, err := Create(dir, testTime)
	require.NoError(t, err)
	b, err := Create(dir, testTime)
	require.NoError(t, err)
	require.Equal(t, a.Path()+".1", b.Path())
	require.NoError(t, a.Write(testTime, 1, Scalar{"x", 1}))
	require.NoError(t, b.Write(testTime, 2, Scalar{"x", 2}))
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
	require.Len(t, read(t, a.Path()), 2)
	require.Len(t, read(t, b.Path()), 2)
}

func TestCreateFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	_, err := Create(path, testTime)
	require.ErrorContains(t, err, "tbevents: create")
}

const reader = `
import json, sys
try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError:
    sys.exit(77)
acc = EventAccumulator(sys.argv[1])
acc.Reload()
print(json.dumps({t: [[e.step, e.value, e.wall_time] for e in acc.Scalars(t)] for t in acc.Tags()["scalars"]}))
`

// TensorBoard's own reader gets the same points, from two files as from one.
func TestTensorBoardReadsIt(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("NOT CHECKED against TensorBoard: there is no python3 on this machine")
	}
	dir := t.TempDir()
	for i := range int64(2) {
		w, err := Create(dir, testTime.Add(time.Duration(i)*time.Hour))
		require.NoError(t, err)
		for k := range int64(3) {
			step := 3*i + k
			require.NoError(t, w.Write(testTime.Add(time.Duration(step)*time.Hour), step, Scalar{"train/reward_mean", float64(step) / 4}))
		}
		require.NoError(t, w.Close())
	}
	cmd := exec.Command(python, "-W", "ignore", "-c", reader, dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == 77 {
		t.Skip("NOT CHECKED against TensorBoard: this machine's python3 has no package tensorboard")
	}
	require.NoError(t, err)
	var got map[string][][]float64
	require.NoError(t, json.Unmarshal(out, &got))
	var want [][]float64
	for step := range 6 {
		want = append(want, []float64{float64(step), float64(step) / 4, 1790000000.25 + 3600*float64(step)})
	}
	require.Equal(t, map[string][][]float64{"train/reward_mean": want}, got)
}
