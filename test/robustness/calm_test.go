package robustness

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/coordinator"
	"github.com/rlfleet/rlfleet/coordinator/client"
	"github.com/rlfleet/rlfleet/store"
	"github.com/rlfleet/rlfleet/store/file"
)

// mirror makes an object store the coordinator's manifest store.
type mirror struct{ store.ObjectStore }

func (m mirror) Keys(ctx context.Context, prefix string) ([]string, error) {
	var out []string
	for info, err := range m.List(ctx, prefix) {
		if err != nil {
			return nil, err
		}
		out = append(out, info.Key)
	}
	return out, nil
}

// TestCalm runs the workload on one node to which nothing happens: what the
// checks complain about here is their own.
func TestCalm(t *testing.T) {
	dir := t.TempDir()
	objects, err := file.Open(filepath.Join(dir, "store"))
	require.NoError(t, err)
	cfg := coordinator.DefaultConfig(filepath.Join(dir, "node"))
	cfg.Mirror = mirror{objects}
	n, err := coordinator.Open(t.Context(), cfg)
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- n.Serve(l) }()

	h := newHistory()
	admin, err := client.New(t.Context(), client.DefaultConfig("setup", l.Addr().String()))
	require.NoError(t, err)
	defer admin.Close()
	w, err := startWorkload(t.Context(), h, slog.New(slog.DiscardHandler), 1, admin, func(name string) (*client.Client, error) {
		return client.New(t.Context(), client.DefaultConfig(name, l.Addr().String()))
	})
	require.NoError(t, err)
	<-time.After(4 * time.Second)
	require.NoError(t, w.close())
	view, err := admin.View(t.Context(), "")
	require.NoError(t, err)
	require.NoError(t, n.Close())
	require.NoError(t, <-served)

	events, bad := readChain(t.Context(), objects, runID)
	bad = append(bad, sweep(events, h.ops, h.steps)...)
	bad = append(bad, fences(h.ops)...)
	bad = append(bad, holders(h.holds)...)
	bad = append(bad, left(view.Records)...)
	require.Empty(t, bad)
	require.NoError(t, linear(h.ops, filepath.Join(dir, "history")))
	t.Logf("%d operations, %d steps, %d events", len(h.ops), len(h.steps), len(events))
	require.NotEmpty(t, h.steps)
}
