package tiny

import (
	"context"
	"fmt"

	"github.com/rlfleet/rlfleet/policy"
	"github.com/rlfleet/rlfleet/policy/engine"
	model "github.com/rlfleet/rlfleet/policy/tiny"
)

// weights is one loaded version. Caches refer to it by pointer: the same number
// loaded from another manifest is another salt (invariant I10).
type weights struct {
	version policy.Version
	digest  policy.Digest
	model   *model.Model
	used    int64 // when, by the shelf's clock
}

// shelf holds the loaded versions, the least recently used going first. Its
// user holds Engine.mu.
type shelf struct {
	byVersion map[policy.Version]*weights
	loading   map[policy.Version]chan struct{} // closed when that load has ended
	clock     int64
	shape     *model.Config // of the first version; all others must have it too
}

func newShelf() shelf {
	return shelf{byVersion: make(map[policy.Version]*weights), loading: make(map[policy.Version]chan struct{})}
}

func (s *shelf) touch(w *weights) {
	s.clock++
	w.used = s.clock
}

// put adds w and lets go of the longest unused beyond most; live stays.
func (s *shelf) put(w, live *weights, most int) {
	s.byVersion[w.version] = w
	s.touch(w)
	for len(s.byVersion) > most {
		var oldest *weights
		for _, c := range s.byVersion {
			if c != live && c != w && (oldest == nil || c.used < oldest.used) {
				oldest = c
			}
		}
		if oldest == nil {
			return
		}
		delete(s.byVersion, oldest.version)
	}
}

// Stage implements engine.Engine. The same version under another manifest
// replaces the staged one and leaves what is live alone until a Flip.
func (e *Engine) Stage(ctx context.Context, v policy.Version, manifest policy.Digest) error {
	_, err := e.fetch(ctx, v, func(context.Context) (policy.Digest, error) { return manifest, nil }, manifest)
	return err
}

// version returns a loaded version, loading it when it is not there.
func (e *Engine) version(ctx context.Context, v policy.Version) (*weights, error) {
	return e.fetch(ctx, v, func(ctx context.Context) (policy.Digest, error) { return e.resolve(ctx, v) }, "")
}

// fetch returns version v, of manifest want unless that is empty, and loads it once however many ask.
func (e *Engine) fetch(ctx context.Context, v policy.Version, digest func(context.Context) (policy.Digest, error), want policy.Digest) (*weights, error) {
	for {
		e.mu.Lock()
		if e.closed {
			e.mu.Unlock()
			return nil, fmt.Errorf("engine/tiny: load version %d: %w", v, engine.ErrClosed)
		}
		if w := e.shelf.byVersion[v]; w != nil && (want == "" || w.digest == want) {
			e.shelf.touch(w)
			e.mu.Unlock()
			return w, nil
		}
		busy := e.shelf.loading[v]
		if busy == nil {
			busy = make(chan struct{})
			e.shelf.loading[v] = busy
			e.mu.Unlock()
			w, err := e.loadVersion(ctx, v, digest)
			e.mu.Lock()
			delete(e.shelf.loading, v)
			close(busy)
			if err == nil {
				err = e.shelveLocked(w)
			}
			e.mu.Unlock()
			return w, err
		}
		e.mu.Unlock()
		select {
		case <-busy: // look again: it may have failed for a reason of that caller's
		case <-e.stop:
		case <-ctx.Done():
			return nil, fmt.Errorf("engine/tiny: load version %d: %w", v, ctx.Err())
		}
	}
}

func (e *Engine) loadVersion(ctx context.Context, v policy.Version, digest func(context.Context) (policy.Digest, error)) (*weights, error) {
	d, err := digest(ctx)
	var files map[string][]byte
	if err == nil {
		files, err = e.load(ctx, v, d)
	}
	var m *model.Model
	if err == nil {
		m, err = model.Open(files)
	}
	switch {
	case ctx.Err() != nil: // says nothing about the version
		return nil, fmt.Errorf("engine/tiny: load version %d: %w", v, ctx.Err())
	case err != nil:
		return nil, fmt.Errorf("engine/tiny: load version %d: %w: %w", v, engine.ErrVersion, err)
	}
	return &weights{version: v, digest: d, model: m}, nil
}

// shelveLocked keeps w; all versions of an engine have one shape, since running
// sequences go from one to the next.
func (e *Engine) shelveLocked(w *weights) error {
	c := w.model.Config()
	if s := e.shelf.shape; s != nil && (s.VocabSize != c.VocabSize || s.MaxPositionEmbeddings != c.MaxPositionEmbeddings) {
		return fmt.Errorf("engine/tiny: version %d has vocabulary %d and context %d, the engine runs %d and %d: %w",
			w.version, c.VocabSize, c.MaxPositionEmbeddings, s.VocabSize, s.MaxPositionEmbeddings, engine.ErrVersion)
	}
	e.shelf.shape = &c
	e.shelf.put(w, e.live, e.cfg.MaxVersions)
	return nil
}

// Flip implements engine.Engine. No token of the old version is sampled for a
// live request after it has returned.
func (e *Engine) Flip(_ context.Context, v policy.Version) error {
	e.step.Lock()
	defer e.step.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return fmt.Errorf("engine/tiny: flip to version %d: %w", v, engine.ErrClosed)
	}
	w := e.shelf.byVersion[v]
	if w == nil {
		return fmt.Errorf("engine/tiny: flip to version %d, which is not staged: %w", v, engine.ErrVersion)
	}
	if e.live != w {
		e.live = w
		e.stats.flips.Add(1)
	}
	e.shelf.touch(w)
	return nil
}

// Serving implements engine.Engine.
func (e *Engine) Serving(context.Context) (policy.Version, bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.closed:
		return 0, false, fmt.Errorf("engine/tiny: serving: %w", engine.ErrClosed)
	case e.live == nil:
		return 0, false, nil
	}
	return e.live.version, true, nil
}
