package tiny

import (
	"context"
	"fmt"
	"slices"

	"github.com/rlfleet/rlfleet/policy"
	"github.com/rlfleet/rlfleet/policy/engine"
	model "github.com/rlfleet/rlfleet/policy/tiny"
)

// sequence is one request inside the engine. Only the loop touches it between
// enqueue and the send on done.
type sequence struct {
	ctx   context.Context // of the caller: when it ends, the slot is given back
	req   engine.Request
	pin   *weights // of a pinned request
	limit int      // most tokens to sample
	done  chan error
	resp  engine.Response

	ids     []int32 // prompt and sampled tokens
	weights *weights
	cache   *model.Cache // keys and values of ids[:cache.Len()] under weights
	chunk   int          // tokens in this iteration
}

// loop runs until Close; without work it blocks.
func (e *Engine) loop() {
	var running []*sequence
	b := &batch{e: e, prefixes: newPrefixes(e.cfg.PrefixBytes)}
	for {
		e.mu.Lock()
		if e.closed {
			left := e.waiting
			e.waiting = nil
			e.mu.Unlock()
			for _, s := range append(running, left...) {
				e.finish(s, fmt.Errorf("engine/tiny: generate: %w", engine.ErrClosed))
			}
			return
		}
		n := min(len(e.waiting), e.cfg.MaxRunning-len(running))
		running = append(running, e.waiting[:n]...)
		e.waiting = slices.Delete(e.waiting, 0, n)
		e.mu.Unlock()
		e.stats.waiting.Add(int64(-n))
		e.stats.running.Store(int64(len(running)))
		if len(running) == 0 {
			select {
			case <-e.wake:
			case <-e.stop:
			}
			continue
		}
		running = b.iterate(running)
	}
}

// finish gives the slot back and answers the caller.
func (e *Engine) finish(s *sequence, err error) {
	<-e.slots
	s.done <- err
}

// batch is the loop's scratch.
type batch struct {
	e        *Engine
	dec      model.Decoder
	sampler  sampler
	prefixes *prefixes
	group    []*sequence
	ext      []model.Extension
}

// iterate gives each sequence one step and returns those that go on.
func (b *batch) iterate(running []*sequence) []*sequence {
	b.e.step.Lock()
	defer b.e.step.Unlock()
	b.e.mu.Lock()
	live := b.e.live
	b.e.mu.Unlock()
	b.e.stats.iterations.Add(1)
	b.prefixes.live(live)
	budget := b.e.cfg.PrefillTokens
	kept := running[:0]
	for _, s := range running {
		if err := s.ctx.Err(); err != nil {
			b.e.finish(s, fmt.Errorf("engine/tiny: generate: %w", err))
			continue
		}
		b.settle(s, live)
		s.chunk = len(s.ids) - s.cache.Len()
		if s.chunk > 1 {
			s.chunk = min(s.chunk, budget)
			budget -= s.chunk
		}
		kept = append(kept, s)
	}
	clear(running[len(kept):])
	running = kept
	// One pass over the model for each version in use, in order of first appearance.
	for i := range running {
		if w := running[i].weights; running[i].chunk > 0 {
			b.pass(w, running[i:])
		}
	}
	kept = running[:0]
	for _, s := range running {
		if s.resp.Finish != "" {
			b.prefixes.put(s.req.Session, s.weights, s.ids, s.cache)
			b.e.finish(s, nil)
			continue
		}
		kept = append(kept, s)
	}
	clear(running[len(kept):])
	return kept
}

// settle makes the sequence's cache one of the version that its next token comes from.
func (b *batch) settle(s *sequence, live *weights) {
	w := live
	if s.pin != nil {
		w = s.pin
	}
	switch {
	case s.weights == nil: // new: what an earlier turn of the episode left may serve
		s.cache = b.prefixes.take(s.req.Session, w, s.req.Prompt)
		if s.cache == nil {
			s.cache = model.NewCache(w.model)
		}
		s.resp.Cached = s.cache.Len()
		b.e.stats.reused.Add(int64(s.cache.Len()))
	case s.weights != w: // flipped: the tokens stay, their keys and values do not
		s.cache = model.NewCache(w.model)
	}
	s.weights = w
}

// pass runs all sequences of one version, and marks them as done by chunk = 0.
func (b *batch) pass(w *weights, seqs []*sequence) {
	b.group, b.ext = b.group[:0], b.ext[:0]
	prefilled := 0
	for _, s := range seqs {
		if s.weights != w || s.chunk == 0 {
			continue
		}
		at := s.cache.Len()
		want := at+s.chunk == len(s.ids)
		b.group = append(b.group, s)
		b.ext = append(b.ext, model.Extension{Cache: s.cache, Tokens: s.ids[at : at+s.chunk], Want: want})
		if s.chunk > 1 || !want {
			prefilled += s.chunk
		}
		s.chunk = 0
	}
	b.e.stats.prefilled.Add(int64(prefilled))
	logits, err := b.dec.Extend(w.model, b.ext)
	for i, s := range b.group {
		switch {
		case err != nil: // checked at the door; a fault of this package
			s.ctx = failed{s.ctx, err}
		case b.ext[i].Want:
			b.sample(s, logits[i])
		}
	}
}

// failed ends a sequence with an error at the next iteration.
type failed struct {
	context.Context
	err error
}

// Err implements context.Context.
func (f failed) Err() error { return f.err }

// sample draws the sequence's next token and decides whether it ends there.
func (b *batch) sample(s *sequence, logits []float32) {
	r := &s.resp
	n := len(r.Tokens)
	id, logp := b.sampler.draw(logits, s.req.Sampling, uniform(s.req.Sampling.Seed, uint64(s.req.Drawn+n)))
	s.ids = append(s.ids, id)
	r.Tokens = append(r.Tokens, id)
	r.Logprobs = append(r.Logprobs, logp)
	r.Spans = policy.Extend(r.Spans, s.weights.version, 1)
	b.e.stats.sampled.Add(1)
	for _, stop := range s.req.Stop {
		if id == stop {
			r.Finish = engine.FinishStop
			return
		}
	}
	if n+1 == s.limit {
		r.Finish = engine.FinishLength
	}
}
