package trainer

import (
	"context"
	"errors"
	"fmt"
	"sort"

	"github.com/rlfleet/rlfleet/policy"
	"github.com/rlfleet/rlfleet/store"
)

// blob is the kind of a policy's stored objects: its manifest and its files.
const blob = "blob"

// checkpoint is a committed version as the store has it.
type checkpoint struct {
	digest   policy.Digest // of the manifest
	manifest policy.Manifest
}

// loadCheckpoint fetches a version by its manifest's digest, with all of its
// files. Every byte is checked against the digest that names it.
func loadCheckpoint(ctx context.Context, s store.ObjectStore, run string, digest policy.Digest) (checkpoint, map[string][]byte, error) {
	c := checkpoint{digest: digest}
	raw, err := store.GetObject(ctx, s, run, digest, blob)
	if err != nil {
		return c, nil, unusable("manifest", digest, err)
	}
	if c.manifest, err = policy.ParseManifest(raw); err != nil {
		return c, nil, unusable("manifest", digest, err)
	}
	files := make(map[string][]byte, len(c.manifest.Files))
	for _, f := range c.manifest.Files {
		data, err := store.GetObject(ctx, s, run, f.Digest, blob)
		if err != nil {
			return c, nil, unusable(fmt.Sprintf("version %d, file %s", c.manifest.Version, f.Path), f.Digest, err)
		}
		files[f.Path] = data
	}
	return c, files, nil
}

// unusable says in one sentence what is wrong with a stored checkpoint and what
// to do. Other failures of the store, which may pass, are not blamed on it.
func unusable(what string, d policy.Digest, err error) error {
	switch {
	case errors.Is(err, store.ErrNotFound):
		return fmt.Errorf("trainer: load checkpoint: %s (%s) is missing from the store: restore the object from a copy: %w: %w", what, d, ErrCheckpoint, err)
	case errors.Is(err, store.ErrCorrupt):
		return fmt.Errorf("trainer: load checkpoint: %s (%s) is damaged: restore the object from a copy: %w: %w", what, d, ErrCheckpoint, err)
	default:
		return fmt.Errorf("trainer: load checkpoint: %s (%s): %w", what, d, err)
	}
}

// next returns the manifest of the version after c: the backend's files, and of
// c's files those that the backend does not write. data holds the content of
// the objects that c does not have, by digest.
func (c checkpoint) next(files map[string][]byte, ledger policy.Digest) (m policy.Manifest, data map[policy.Digest][]byte) {
	m = policy.Manifest{Version: c.manifest.Version + 1, Lineage: c.manifest.Lineage, Full: true, Ledger: ledger}
	known := map[policy.Digest]bool{}
	for _, f := range c.manifest.Files {
		known[f.Digest] = true
		if _, replaced := files[f.Path]; !replaced {
			m.Files = append(m.Files, f)
		}
	}
	data = map[policy.Digest][]byte{}
	for path, b := range files {
		d := policy.DigestOf(b)
		m.Files = append(m.Files, policy.File{Path: path, Digest: d, Size: int64(len(b))})
		if !known[d] {
			data[d] = b
		}
	}
	sort.Slice(m.Files, func(i, j int) bool { return m.Files[i].Path < m.Files[j].Path })
	return m, data
}

// save stores the objects of a version and then its manifest. Nothing of it
// exists before the log names the manifest (invariant I7).
func save(ctx context.Context, s store.ObjectStore, run string, m policy.Manifest, data map[policy.Digest][]byte) (policy.Digest, error) {
	for _, f := range m.Files {
		b, ok := data[f.Digest]
		if !ok {
			continue
		}
		if err := s.Put(ctx, store.ObjectKey(run, f.Digest, blob), b); err != nil {
			return "", fmt.Errorf("trainer: write checkpoint of version %d: %s: %w", m.Version, f.Path, err)
		}
	}
	raw, err := m.Encode()
	if err != nil {
		return "", err
	}
	d, err := store.PutObject(ctx, s, run, blob, raw)
	if err != nil {
		return "", fmt.Errorf("trainer: write checkpoint of version %d: %w", m.Version, err)
	}
	return d, nil
}
