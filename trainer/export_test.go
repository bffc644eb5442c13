package trainer

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/coordinator/client"
	"github.com/rlfleet/rlfleet/policy"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	"github.com/rlfleet/rlfleet/store"
)

// TwoSteps is a recorded run of two steps over the files of a version 0.
type TwoSteps struct {
	Store   *memory
	init    policy.Digest
	batches [][]*raftlog.BatchGroup
}

// NewTwoSteps records the run's episodes.
func NewTwoSteps(t *testing.T, files map[string][]byte) *TwoSteps {
	t.Helper()
	s := newMemory()
	return &TwoSteps{Store: s, init: putFiles(t, s, files), batches: twoSteps(t, s)}
}

// Train runs backends one after the other until both steps are committed; each
// but the last dies between training and the commit of step 1. It mirrors the
// log when mirror is set, and returns the versions' manifests.
func (r *TwoSteps) Train(t *testing.T, mirror bool, backends ...Backend) []policy.Digest {
	t.Helper()
	c := newCoordinator(r.init, r.batches...)
	crash := fmt.Errorf("power cut: %w", client.ErrInvalid)
	deaths := len(backends) - 1
	c.onCommit = func(s *raftlog.CommitStep) error {
		if s.Step == 1 && deaths > 0 {
			deaths--
			return crash
		}
		return nil
	}
	for i, b := range backends {
		err := worker(t, r.Store, c, b, nil).Run(t.Context())
		if i < len(backends)-1 {
			require.ErrorIs(t, err, crash)
			continue
		}
		require.NoError(t, err)
	}
	if mirror {
		c.mirror(t, r.Store)
	}
	return c.versions
}

// Replay replays a step.
func (r *TwoSteps) Replay(t *testing.T, b Backend, n int64) policy.Digest {
	t.Helper()
	cfg := DefaultConfig(testRun)
	cfg.LagMax = 1
	d, err := Replay(t.Context(), r.Store, cfg, b, n)
	require.NoError(t, err)
	return d
}

// putFiles stores a version 0.
func putFiles(t *testing.T, s store.ObjectStore, files map[string][]byte) policy.Digest {
	t.Helper()
	m := policy.Manifest{Lineage: 1, Full: true}
	for path, b := range files {
		d, err := store.PutObject(t.Context(), s, testRun, blob, b)
		require.NoError(t, err)
		m.Files = append(m.Files, policy.File{Path: path, Digest: d, Size: int64(len(b))})
	}
	raw, err := m.Encode()
	require.NoError(t, err)
	d, err := store.PutObject(t.Context(), s, testRun, blob, raw)
	require.NoError(t, err)
	return d
}
