package trainer

import (
	"context"
	"fmt"

	"github.com/rlfleet/rlfleet/policy"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	"github.com/rlfleet/rlfleet/store"
)

// Retention says which versions keep their files.
type Retention struct {
	Keep      int64 // newest versions
	PinEvery  int64 // each n-th version; 0 pins none
	EvalEvery int64 // each n-th version is evaluated, and what was measured is kept; 0 is none

	gone  map[int64]bool            // versions whose files this process has deleted
	files map[int64][]policy.Digest // of the versions seen
}

// keeps reports whether version v keeps its files: the first, the newest, what
// is live or newer, what a rollback goes back to, and what is pinned or evaluated.
func (r *Retention) keeps(v, head, live, target int64) bool {
	every := func(n int64) bool { return n > 0 && v%n == 0 }
	return v == 0 || v > head-r.Keep || v >= live || v == target || every(r.PinEvery) || every(r.EvalEvery)
}

// Apply deletes the files of a run's versions that are not kept, except those
// that a kept version has too. Manifests stay: they say what there was. It may
// be repeated, and interrupted at any point.
func (r *Retention) Apply(ctx context.Context, s store.ObjectStore, run *raftlog.Run, versions []*raftlog.PolicyVersion) error {
	if r.gone == nil {
		r.gone, r.files = map[int64]bool{}, map[int64][]policy.Digest{}
	}
	target := int64(0) // the newest full version at or below live
	for _, v := range versions {
		if v.Full && v.Version <= run.Live && v.State != raftlog.VersionState_VERSION_STATE_SUPERSEDED {
			target = max(target, v.Version)
		}
	}
	var old []*raftlog.PolicyVersion
	kept := map[policy.Digest]bool{}
	for _, v := range versions {
		if r.gone[v.Version] {
			continue
		}
		if err := r.read(ctx, s, v); err != nil {
			return err
		}
		if !r.keeps(v.Version, run.Head, run.Live, target) {
			old = append(old, v)
			continue
		}
		for _, d := range r.files[v.Version] {
			kept[d] = true
		}
	}
	for _, v := range old {
		for _, d := range r.files[v.Version] {
			if kept[d] {
				continue
			}
			if err := s.Delete(ctx, store.ObjectKey(run.Id, d, blob)); err != nil {
				return fmt.Errorf("trainer: delete version %d: %w", v.Version, err)
			}
		}
		r.gone[v.Version] = true
		delete(r.files, v.Version)
	}
	return nil
}

// read remembers which files a version is made of.
func (r *Retention) read(ctx context.Context, s store.ObjectStore, v *raftlog.PolicyVersion) error {
	if _, known := r.files[v.Version]; known {
		return nil
	}
	d := policy.Digest(v.Manifest)
	raw, err := store.GetObject(ctx, s, v.Run, d, blob)
	if err != nil {
		return unusable("manifest", d, err)
	}
	m, err := policy.ParseManifest(raw)
	if err != nil {
		return unusable("manifest", d, err)
	}
	files := make([]policy.Digest, 0, len(m.Files))
	for _, f := range m.Files {
		files = append(files, f.Digest)
	}
	r.files[v.Version] = files
	return nil
}
