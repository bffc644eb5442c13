package coordinator

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// first is a cluster of one, with more in its state than its log holds.
func first(t *testing.T, entries, bytes int) *tcpNode {
	t.Helper()
	n := startTCP(t, t.TempDir(), "n1", "", "", func(c *Config) { c.TrailingLogs = 1 })
	_, err := n.Init(t.Context())
	require.NoError(t, err)
	for i := range entries {
		propose(t, n.Node, "c", uint64(i+1), largeOp(fmt.Sprint("h", i), bytes))
	}
	require.NoError(t, n.Snapshot())
	return n
}

// issue 6232 of camunda: a node that joins and has no room for the leader's
// snapshot leaves nothing half received, stays a non-voter, harms nobody, and
// votes once there is room, by the same command.
func TestCamunda6232_NoRoomForTheLeadersSnapshot(t *testing.T) {
	leader := first(t, 64, 32<<10)
	dir := t.TempDir()
	resize := smallDisk(t, dir, "512k")
	joins := startTCP(t, dir, "n2", "", "")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err := leader.Join(ctx, joins.cfg.Address)
	require.ErrorContains(t, err, "it is a non-voter and has not caught up: repeat the join")
	require.NoError(t, joins.Err())
	propose(t, leader.Node, "c", 65, registerOp("goes on"))
	resize("64m")
	_, err = leader.Join(t.Context(), joins.cfg.Address)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		s, _ := joins.Stale()
		return len(s.Nodes()) == 65
	}, time.Minute, time.Millisecond)
	unfinished, err := filepath.Glob(filepath.Join(dir, "snapshots", "*.tmp"))
	require.NoError(t, err)
	require.Empty(t, unfinished)
}

// issue 14671 of camunda: a snapshot that takes longer on its way than any
// timeout, while the leader goes on, takes its own and compacts, arrives once
// and is not begun again for ever.
func TestCamunda14671_LargeSnapshotOverASlowLink(t *testing.T) {
	leader := first(t, 64, 128<<10) // 8 MiB
	slow := &slowLink{perSecond: 3 << 20}
	joins := startTCP(t, t.TempDir(), "n2", "", "", slow.before(t))
	done := make(chan error, 1)
	go func() {
		_, err := leader.Join(t.Context(), joins.cfg.Address)
		done <- err
	}()
	for i := 0; ; i++ {
		propose(t, leader.Node, "w", uint64(i+1), registerOp(fmt.Sprint("w", i%4)))
		if i%50 == 0 {
			require.NoError(t, leader.Snapshot())
		}
		select {
		case err := <-done:
			require.NoError(t, err)
			require.Less(t, slow.bytes(), int64(3*8<<20), "it was sent again and again")
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// slowLink lets so many bytes a second through to a node's raft port.
type slowLink struct {
	perSecond int

	mu   sync.Mutex // guards sent
	sent int64
}

func (s *slowLink) bytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent
}

// before puts the link between a node and the others.
func (s *slowLink) before(t *testing.T) func(*Config) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	var work sync.WaitGroup
	t.Cleanup(func() {
		stop()
		require.NoError(t, l.Close())
		work.Wait()
	})
	return func(c *Config) {
		tr, err := NewTransport(t.Context(), TransportConfig{Node: c.Node, Listen: "127.0.0.1:0", Advertise: l.Addr().String(), Timeout: time.Second, Logger: c.Logger})
		require.NoError(t, err)
		require.NoError(t, c.Transport.(*Transport).Close())
		c.Transport = tr
		real := tr.layer.listener.Addr().String()
		work.Go(func() {
			for {
				from, err := l.Accept()
				if err != nil {
					return
				}
				to, err := net.Dial("tcp", real)
				if err != nil {
					_ = from.Close()
					continue
				}
				end := context.AfterFunc(ctx, func() { _, _ = from.Close(), to.Close() })
				work.Go(func() { defer end(); s.copy(ctx, to, from) })
				work.Go(func() { _, _ = io.Copy(from, to); _, _ = from.Close(), to.Close() })
			}
		})
	}
}

func (s *slowLink) copy(ctx context.Context, to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		if n > 0 {
			s.mu.Lock()
			s.sent += int64(n)
			s.mu.Unlock()
			select {
			case <-time.After(time.Duration(n) * time.Second / time.Duration(s.perSecond)):
			case <-ctx.Done():
				return
			}
			if _, werr := to.Write(b[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// issue 1474 of rqlite: nodes of today join a cluster whose snapshot an earlier
// version wrote, and get all of it.
func TestRqlite1474_NodesJoinOnAnEarlierSnapshot(t *testing.T) {
	path := earlierSnapshot(t, "d1776f2-all-closed")
	nodes := trio(t)
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	_, err = nodes[0].Restore(t.Context(), f, true)
	require.NoError(t, err)
	want := read(t, tcpLeader(t, nodes).Node).Runs()
	require.NotEmpty(t, want)
	late := startTCP(t, t.TempDir(), "n4", "", "")
	_, err = tcpLeader(t, nodes).Join(t.Context(), late.cfg.Address)
	require.NoError(t, err)
	for _, n := range append(nodes, late) {
		require.Eventually(t, func() bool {
			s, _ := n.Stale()
			return len(s.Runs()) == len(want) && s.Clock().Epoch == 1
		}, time.Minute, time.Millisecond)
	}
}

// earlierSnapshot unpacks the newest snapshot of the kept data of an earlier version.
func earlierSnapshot(t *testing.T, name string) string {
	t.Helper()
	f, err := os.Open(filepath.Join("..", "test", "upgrade", "testdata", name+".tar.gz"))
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	found, newest := "", ""
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		if !strings.HasSuffix(h.Name, "/state.bin") || h.Name < newest {
			continue
		}
		b, err := io.ReadAll(r)
		require.NoError(t, err)
		newest, found = h.Name, filepath.Join(t.TempDir(), "state.bin")
		require.NoError(t, os.WriteFile(found, b, 0o600))
	}
	require.NotEmpty(t, found)
	return found
}
