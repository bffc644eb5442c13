package coordinator

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/hashicorp/raft"

	"github.com/rlfleet/rlfleet/coordinator/fsm"
	"github.com/rlfleet/rlfleet/coordinator/state"
	"github.com/rlfleet/rlfleet/internal/failpoint"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// Save writes the whole state, with every write that was acknowledged before
// the call, as a snapshot file.
func (n *Node) Save(ctx context.Context, w io.Writer) error {
	s, _, err := n.Read(ctx)
	if err != nil {
		return fmt.Errorf("coordinator: save snapshot: %w", err)
	}
	return fsm.WriteSnapshot(w, s)
}

// Restore replaces the state of the whole cluster by a snapshot file. It is
// read to its end first: one that is cut, damaged or not ours changes nothing.
// foreign allows the snapshot of another cluster.
//
// A new epoch begins: fences rise above all that were ever issued, every lease
// has ended and every node must register again. A run whose record in the
// store goes beyond the snapshot is ended, see Diverged.
func (n *Node) Restore(ctx context.Context, r io.Reader, foreign bool) (*state.State, error) {
	now, err := n.changing(ctx)
	if err != nil {
		return nil, fmt.Errorf("coordinator: restore: %w", err)
	}
	defer n.change.Unlock()
	s, err := fsm.ReadSnapshot(r)
	if err != nil {
		return nil, fmt.Errorf("coordinator: restore: %w: %w", err, ErrInvalid)
	}
	ours := now.Clock()
	if theirs := s.Clock().Cluster; theirs != "" && theirs != ours.Cluster && !foreign {
		return nil, fmt.Errorf("coordinator: restore: the snapshot is of cluster %s and this is %s: repeat with --foreign if that is meant: %w", theirs, ours.Cluster, ErrCluster)
	}
	s = s.Reborn(ours.Cluster, max(ours.Epoch, s.Clock().Epoch)+1).WithTokensOf(now)
	file, err := n.spool(s)
	if err != nil {
		return nil, fmt.Errorf("coordinator: restore: %w", err)
	}
	defer os.Remove(file.Name())
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("coordinator: restore: %w", err)
	}
	if err := n.replace(ctx, &raft.SnapshotMeta{Version: raft.SnapshotVersionMax, Size: info.Size()}, file, s.Clock().Epoch); err != nil {
		return nil, fmt.Errorf("coordinator: restore: %w", err)
	}
	n.cfg.Logger.Warn("a snapshot was restored", "epoch", s.Clock().Epoch, "runs", len(s.Runs()))
	return s, nil
}

// spool writes a state into the data directory, where its size is known before raft reads it.
func (n *Node) spool(s *state.State) (*os.File, error) {
	f, err := os.CreateTemp(n.cfg.Dir, fsm.Spooled)
	if err != nil {
		return nil, err
	}
	err = fsm.WriteSnapshot(f, s)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		_ = f.Close() // it goes anyway
		_ = os.Remove(f.Name())
		return nil, err
	}
	return f, nil
}

// replace gives raft a snapshot in place of everything, between two reigns, so
// that nothing is stamped with the old log time or answered from the old state.
func (n *Node) replace(ctx context.Context, meta *raft.SnapshotMeta, r io.Reader, epoch uint64) error {
	i := interlude{done: make(chan error, 1), do: func() error {
		failpoint.At(failpoint.RestoreBefore)
		if err := n.answer(n.raft.Barrier(n.cfg.StartTimeout)); err != nil { // it still leads, and others answer
			return err
		}
		if err := n.dir.MarkRestoring(epoch); err != nil {
			return err
		}
		err := n.raft.Restore(meta, r, n.cfg.StartTimeout)
		err = n.restored(err, epoch)
		failpoint.At(failpoint.RestoreAfter)
		return err
	}}
	select {
	case n.between <- i:
	case <-n.stopping.Done():
		return ErrStopped
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := <-i.done; err != nil {
		return err
	}
	return n.ready(ctx)
}

// restored looks at how raft's restore ended. Raft takes a snapshot in here
// before it asks the others: if they never had it, this node has a history of
// its own, from which it cannot come back.
func (n *Node) restored(err error, epoch uint64) error {
	clock, _, _ := n.fsm.Progress()
	switch {
	case err == nil, clock.GetEpoch() != epoch:
		if merr := n.dir.Restored(); merr != nil {
			n.cfg.Logger.Warn("the note of a restore could not be removed", "error", merr)
		}
	case len(n.servers()) > 1:
		n.fail(fmt.Errorf("coordinator: restore: %w: %w", err, fsm.ErrRestoreCut))
	}
	if err != nil && Classify(err) == Unknown {
		return fmt.Errorf("%w: %w", err, ErrUnknown)
	}
	return err
}

// diverged ends a run whose record in the store goes beyond a restored snapshot.
func (n *Node) diverged(ctx context.Context, run string, stored uint64) error {
	return n.housekeep(ctx, &raftlog.Op{Op: &raftlog.Op_Diverged{Diverged: &raftlog.Diverged{Run: run, Stored: stored}}})
}
