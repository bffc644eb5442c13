// Package upgrade starts today's code on what earlier commits wrote: data
// directories with snapshots and logs, and the messages that they are made of.
package upgrade

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/rlfleet/rlfleet/coordinator"
	"github.com/rlfleet/rlfleet/coordinator/fsm"
	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func gunzip(t *testing.T, path string) []byte {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	b, err := io.ReadAll(z)
	require.NoError(t, err)
	return b
}

// unpack puts a kept directory into a new one, as its process left it.
func unpack(t *testing.T, archive string) string {
	t.Helper()
	dir := t.TempDir()
	r := tar.NewReader(bytes.NewReader(gunzip(t, archive)))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		require.NoError(t, err)
		path := filepath.Join(dir, filepath.FromSlash(h.Name))
		if h.FileInfo().IsDir() {
			require.NoError(t, os.MkdirAll(path, 0o700))
			continue
		}
		b, err := io.ReadAll(r)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, b, 0o600))
	}
}

// said returns the records that the code of the time read in a directory.
func said(t *testing.T, file string) (out []*raftlog.Record) {
	t.Helper()
	lines := bufio.NewScanner(bytes.NewReader(gunzip(t, file)))
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		r := &raftlog.Record{}
		require.NoError(t, protojson.Unmarshal(lines.Bytes(), r), "a field or a name is gone")
		out = append(out, r)
	}
	require.NoError(t, lines.Err())
	require.NotEmpty(t, out)
	return out
}

// records are what a snapshot would hold.
func records(s *state.State) (out []*raftlog.Record) {
	s.Records(func(r *raftlog.Record) bool {
		out = append(out, proto.CloneOf(r))
		return true
	})
	return out
}

// lasting is what a start of today's code leaves alone: it may announce the
// node and raise the level, which moves log time and begins a grace of leases.
func lasting(records []*raftlog.Record) (out []*raftlog.Record) {
	for _, r := range records {
		if r.GetHeader() != nil || r.GetFooter() != nil || r.GetMember() != nil {
			continue
		}
		if c := r.GetClock(); c != nil {
			r = proto.CloneOf(r)
			c = r.GetClock()
			c.Cluster, c.Level, c.NowNs, c.Term, c.GraceNs = "", 0, 0, 0, 0
		}
		out = append(out, r)
	}
	return out
}

func requireSame(t *testing.T, want, got []*raftlog.Record) {
	t.Helper()
	for i, w := range want[:min(len(want), len(got))] {
		require.True(t, proto.Equal(w, got[i]), "record %d was\n%s\nand is\n%s", i, w, got[i])
	}
	require.Len(t, got, len(want))
}

func config(dir string) coordinator.Config {
	c := coordinator.DefaultConfig(dir)
	c.Tick = time.Hour // nothing expires while two states are compared
	c.SegmentBytes, c.Election, c.TrailingLogs = 64<<10, 20*time.Millisecond, 4
	return c
}

func open(t *testing.T, cfg coordinator.Config) *coordinator.Node {
	t.Helper()
	n, err := coordinator.Open(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	return n
}

func read(t *testing.T, n *coordinator.Node) *state.State {
	t.Helper()
	s, _, err := n.Read(t.Context())
	require.NoError(t, err)
	return s
}

func register(t *testing.T, n *coordinator.Node, seq uint64) {
	t.Helper()
	r, err := n.Propose(t.Context(), &raftlog.Proposal{Client: "upgraded", Seq: seq, Op: &raftlog.Op{Op: &raftlog.Op_Register{Register: &raftlog.Register{
		Node: &raftlog.NodeRef{Role: state.RoleHost, Name: "new", Incarnation: seq}, Agents: 1,
	}}}})
	require.NoError(t, err)
	require.Equal(t, raftlog.Code_CODE_OK, r.Code, r.Message)
}

// archives are the kept directories, by name.
func archives(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.tar.gz")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	out := map[string]string{}
	for _, f := range files {
		info, err := os.Stat(f)
		require.NoError(t, err)
		require.LessOrEqual(t, info.Size(), int64(100<<10), "%s: let tools/upgradedata write less", f)
		out[strings.TrimSuffix(filepath.Base(f), ".tar.gz")] = f
	}
	return out
}

// Today's code reads in every kept directory what the code that wrote it read
// there, goes on from it, and reads again what it has written itself.
func TestEarlierData(t *testing.T) {
	for name, archive := range archives(t) {
		t.Run(name, func(t *testing.T) {
			dir := unpack(t, archive)
			want := said(t, filepath.Join("testdata", name+".jsonl.gz"))

			offline, err := fsm.Open(dir)
			require.NoError(t, err)
			requireSame(t, want, records(offline))

			n := open(t, config(dir))
			requireSame(t, lasting(want), lasting(records(read(t, n))))
			register(t, n, 1)
			dedup(t, n, want)
			require.NoError(t, n.Snapshot())
			register(t, n, 2)
			ours := lasting(records(read(t, n)))
			require.NoError(t, n.Close())

			for range 2 { // once from its own snapshot and log, once more from what that start has written
				n = open(t, config(dir))
				requireSame(t, ours, lasting(records(read(t, n))))
				require.NoError(t, n.Close())
			}
		})
	}
}

// dedup repeats what each client of the time did last: its result was kept.
func dedup(t *testing.T, n *coordinator.Node, kept []*raftlog.Record) {
	t.Helper()
	for _, r := range kept {
		c := r.GetClient()
		if c == nil {
			continue
		}
		want := &raftlog.Result{}
		require.NoError(t, proto.Unmarshal(c.Result, want))
		got, err := n.Propose(t.Context(), &raftlog.Proposal{Client: c.Id, Seq: c.Seq, Op: &raftlog.Op{Op: &raftlog.Op_Tick{Tick: &raftlog.Tick{}}}})
		require.NoError(t, err)
		require.True(t, proto.Equal(want, got), "client %s repeats %d: %s, not %s", c.Id, c.Seq, got, want)
	}
}

// The directories hold what they are kept for: snapshots with a log behind
// them, logs alone, both ends of a process, and every kind of record.
func TestEarlierDataIsRich(t *testing.T) {
	kinds := map[string]bool{}
	for name, archive := range archives(t) {
		dir := unpack(t, archive)
		snapshots, err := filepath.Glob(filepath.Join(dir, "snapshots", "*", "state.bin"))
		require.NoError(t, err)
		_, err = os.Stat(filepath.Join(dir, "closed.json"))
		require.Equal(t, strings.HasSuffix(name, "-closed"), err == nil, name)
		if strings.Contains(name, "-all-") {
			require.Len(t, snapshots, 2, name)
		}
		for _, r := range said(t, filepath.Join("testdata", name+".jsonl.gz")) {
			m := r.ProtoReflect()
			kinds[string(m.WhichOneof(m.Descriptor().Oneofs().Get(0)).Name())] = true
		}
	}
	for _, k := range []string{
		"header", "clock", "run", "version", "group", "episode", "job", "step", "gang", "publish", "node", "eval", "client", "event", "footer",
	} {
		require.True(t, kinds[k], "no kept directory has a record of kind %s", k)
	}
}
