package guest

import (
	"bytes"
	"io"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

type message interface {
	Encode() []byte
}

type decoder interface {
	Decode([]byte) error
}

func samples() map[string]struct {
	in  message
	out decoder
} {
	type pair = struct {
		in  message
		out decoder
	}
	return map[string]pair{
		"hello":   {Hello{Version: 3, Proof: Proof{1, 1 << 63, 7, 0}}, &Hello{}},
		"proof":   {Proof{Processes: 9, Mounts: 77, Files: 5, IPC: 2}, &Proof{}},
		"failure": {Failure{KindUnsafe, "no"}, &Failure{}},
		"mount":   {Mount{"abc", "sb-1", 1 << 40, 10000}, &Mount{}},
		"exec": {Exec{
			[]string{"sh", "-c", "x\x00y"},
			[]string{"A=b", ""},
			"/app", []byte("in"), time.Minute,
			1, 2, 3, 4, 5, 6, true,
		}, &Exec{}},
		"exit":    {Exit{-1, 9, []byte("out"), []byte("err"), 1 << 50, 2, "time", time.Hour, 3}, &Exit{}},
		"write":   {Write{"/app/x", 0o755, []byte("data")}, &Write{}},
		"read":    {Read{"/app/x", 1 << 33}, &Read{}},
		"collect": {Collect{[]string{"/app", "/logs"}, 99}, &Collect{}},
		"entry":   {Entry{EntryLink, "app/l", 0o777, 4, "../x"}, &Entry{}},
	}
}

func TestRoundTrip(t *testing.T) {
	for name, s := range samples() {
		t.Run(name, func(t *testing.T) {
			b := s.in.Encode()
			require.NoError(t, s.out.Decode(b))
			require.Equal(t, s.in, reflect.ValueOf(s.out).Elem().Interface())
			require.Error(t, s.out.Decode(append(b, 0)), "a longer payload")
			for n := range b {
				require.Error(t, s.out.Decode(b[:n]), "cut to %d of %d bytes", n, len(b))
			}
		})
	}
}

// A hostile payload must never panic or make the reader allocate more than it holds.
func TestDecodeAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "payload")
		for _, s := range samples() {
			_ = s.out.Decode(b)
		}
	})
}

func TestFrames(t *testing.T) {
	var buf bytes.Buffer
	require.NoError(t, WriteFrame(&buf, OpExec, []byte("abc")))
	require.NoError(t, WriteFrame(&buf, OpKill, nil))
	require.NoError(t, WriteFrame(&buf, OpWrite, make([]byte, 100)))
	op, p, err := ReadFrame(&buf, 3)
	require.NoError(t, err)
	require.Equal(t, OpExec, op)
	require.Equal(t, "abc", string(p))
	op, p, err = ReadFrame(&buf, 0)
	require.NoError(t, err)
	require.Equal(t, OpKill, op)
	require.Empty(t, p)
	_, _, err = ReadFrame(&buf, 99)
	require.ErrorContains(t, err, "100 bytes where at most 99")

	_, _, err = ReadFrame(bytes.NewReader(nil), 9)
	require.Equal(t, io.EOF, err)
	_, _, err = ReadFrame(bytes.NewReader([]byte{1, 0, 0}), 9)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	_, _, err = ReadFrame(bytes.NewReader([]byte{4, 0, 0, 0, 1, 2}), 9)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
}

func TestLocate(t *testing.T) {
	for path, want := range map[string][2]string{
		"/app":              {"app", "."},
		"/app/a/b":          {"app", "a/b"},
		"/home/agent/.x":    {"home", ".x"},
		"/dev/shm/q":        {"shm", "q"},
		"/logs/verifier/..": {},
		"/app/../etc":       {},
		"/app//x":           {},
		"/app/./x":          {},
		"/app/x/":           {},
		"/application":      {},
		"app/x":             {},
		"/etc/passwd":       {},
		"/":                 {},
		"":                  {},
		"/app/a\x00b":       {},
	} {
		r, rest, err := Locate(path)
		if want[0] == "" {
			require.ErrorIs(t, err, ErrOutside, "%q", path)
			continue
		}
		require.NoError(t, err, "%q", path)
		require.Equal(t, want, [2]string{r.Name, rest}, "%q", path)
	}
}
