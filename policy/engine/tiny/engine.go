// Package tiny runs policy/tiny as an inference engine: continuous batching in one goroutine, prefix reuse, weights switched between tokens.
//
// Every iteration of the loop gives each running sequence its next tokens: what
// its key/value cache lacks, then one sampled token. A flip only empties the
// caches of running sequences, so that the next iteration recomputes them under the
// new weights; a token's log-probability therefore always comes from one version
// alone, the one its span names.
package tiny

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/rlfleet/rlfleet/policy"
	"github.com/rlfleet/rlfleet/policy/engine"
	model "github.com/rlfleet/rlfleet/policy/tiny"
)

// Load fetches a policy's files by path; it is called outside of the decoding loop.
type Load func(ctx context.Context, v policy.Version, manifest policy.Digest) (map[string][]byte, error)

// Resolve returns the manifest digest of a version that is asked for by a pin.
type Resolve func(ctx context.Context, v policy.Version) (policy.Digest, error)

// Config bounds what an engine holds.
type Config struct {
	MaxRunning    int   // sequences decoded together
	MaxPending    int   // requests inside, running or waiting; a further Generate waits outside
	PrefillTokens int   // most tokens of longer pieces in one iteration, so that prompts do not stall decoding
	PrefixBytes   int64 // memory of key/value caches kept between the turns of an episode
	MaxVersions   int   // versions held at once, live included
}

// DefaultConfig returns 256 sequences, 4096 requests, 2048 tokens, 32 MiB, 6 versions.
func DefaultConfig() Config {
	return Config{MaxRunning: 256, MaxPending: 4096, PrefillTokens: 2048, PrefixBytes: 32 << 20, MaxVersions: 6}
}

// Validate returns ErrInvalid for a bound that would stop the engine.
func (c Config) Validate() error {
	if c.MaxRunning < 1 || c.MaxPending < 1 || c.PrefillTokens < 1 || c.PrefixBytes < 0 || c.MaxVersions < 3 {
		return fmt.Errorf("engine/tiny: config %+v: want at least one of each and three versions: %w", c, engine.ErrInvalid)
	}
	return nil
}

// Stats counts what an engine did since it was made.
type Stats struct {
	Sampled    int64 // tokens
	Prefilled  int64 // prompt and recomputed tokens run through the model
	Reused     int64 // prompt tokens served from a prefix cache
	Iterations int64
	Flips      int64
	Running    int64 // sequences now
	Waiting    int64 // requests now, not yet running
}

// Engine implements engine.Engine over a tiny model in this process.
type Engine struct {
	cfg     Config
	load    Load
	resolve Resolve

	slots   chan struct{} // one element for each request inside
	scoring chan struct{} // one Score at a time
	wake    chan struct{} // something waits for the loop
	stop    chan struct{} // closed by Close
	wg      sync.WaitGroup

	// step is held by the loop for an iteration and by Flip, so that weights
	// change between tokens and that no token of the old version is sampled
	// after Flip has returned.
	step sync.Mutex

	mu      sync.Mutex // guards what follows
	waiting []*sequence
	closed  bool
	live    *weights
	shelf   shelf

	stats struct {
		sampled, prefilled, reused, iterations, flips, running, waiting atomic.Int64
	}
}

// New starts an engine without weights. Close ends it.
func New(cfg Config, load Load, resolve Resolve) (*Engine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	e := &Engine{
		cfg: cfg, load: load, resolve: resolve,
		slots: make(chan struct{}, cfg.MaxPending), scoring: make(chan struct{}, 1),
		wake: make(chan struct{}, 1), stop: make(chan struct{}), shelf: newShelf(),
	}
	e.wg.Go(e.loop)
	return e, nil
}

// Close ends the engine: requests inside return ErrClosed. It waits for the loop.
func (e *Engine) Close() error {
	e.mu.Lock()
	if !e.closed {
		e.closed = true
		close(e.stop)
	}
	e.mu.Unlock()
	e.wg.Wait()
	return nil
}

// Stats returns the counters.
func (e *Engine) Stats() Stats {
	s := &e.stats
	return Stats{
		Sampled: s.sampled.Load(), Prefilled: s.prefilled.Load(), Reused: s.reused.Load(), Iterations: s.iterations.Load(),
		Flips: s.flips.Load(), Running: s.running.Load(), Waiting: s.waiting.Load(),
	}
}

// Generate implements engine.Generator.
func (e *Engine) Generate(ctx context.Context, r engine.Request) (engine.Response, error) {
	if err := ctx.Err(); err != nil {
		return engine.Response{}, fmt.Errorf("engine/tiny: generate: %w", err)
	}
	s := &sequence{ctx: ctx, req: r, done: make(chan error, 1)}
	if r.Pin != nil {
		w, err := e.version(ctx, *r.Pin)
		if err != nil {
			return engine.Response{}, err
		}
		s.pin = w
	}
	select {
	case e.slots <- struct{}{}:
	case <-e.stop:
		return engine.Response{}, fmt.Errorf("engine/tiny: generate: %w", engine.ErrClosed)
	case <-ctx.Done():
		return engine.Response{}, fmt.Errorf("engine/tiny: generate: waiting for a slot: %w", ctx.Err())
	}
	if err := e.enqueue(s); err != nil {
		<-e.slots
		return engine.Response{}, err
	}
	select {
	case err := <-s.done:
		if err != nil {
			return engine.Response{}, err
		}
		return s.resp, nil
	case <-ctx.Done(): // the loop sees it too, and gives the slot back
		return engine.Response{}, fmt.Errorf("engine/tiny: generate: %w", ctx.Err())
	}
}

// enqueue checks the request against the weights it will run on and hands it to the loop.
func (e *Engine) enqueue(s *sequence) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	w := s.pin
	if w == nil {
		w = e.live
	}
	switch {
	case e.closed:
		return fmt.Errorf("engine/tiny: generate: %w", engine.ErrClosed)
	case w == nil:
		return fmt.Errorf("engine/tiny: generate: no version is live: %w", engine.ErrVersion)
	}
	c := w.model.Config()
	if err := s.req.Validate(c.VocabSize, c.MaxPositionEmbeddings); err != nil {
		return err
	}
	s.limit = min(s.req.MaxTokens, c.MaxPositionEmbeddings-len(s.req.Prompt))
	s.ids = append(make([]int32, 0, len(s.req.Prompt)+min(s.limit, 64)), s.req.Prompt...)
	e.waiting = append(e.waiting, s)
	e.stats.waiting.Add(1)
	select {
	case e.wake <- struct{}{}:
	default:
	}
	return nil
}

// Score implements engine.Engine.
func (e *Engine) Score(ctx context.Context, v policy.Version, prompts [][]int32) ([][]float32, error) {
	w, err := e.version(ctx, v)
	if err != nil {
		return nil, err
	}
	c := w.model.Config()
	seqs := make([]model.Sequence, len(prompts))
	for i, p := range prompts {
		r := engine.Request{Prompt: p, MaxTokens: 1, Sampling: engine.Sampling{Temperature: 1, TopP: 1}}
		if err := r.Validate(c.VocabSize, c.MaxPositionEmbeddings+1); err != nil { // nothing is added to it
			return nil, err
		}
		seqs[i] = model.Sequence{Tokens: p, Action: make([]bool, len(p))}
		for t := 1; t < len(p); t++ {
			seqs[i].Action[t] = true
		}
	}
	select {
	case e.scoring <- struct{}{}:
		defer func() { <-e.scoring }()
	case <-e.stop:
		return nil, fmt.Errorf("engine/tiny: score: %w", engine.ErrClosed)
	case <-ctx.Done():
		return nil, fmt.Errorf("engine/tiny: score: %w", ctx.Err())
	}
	logps, err := model.NewBatcher(w.model).Logprobs(seqs)
	if err != nil {
		return nil, fmt.Errorf("engine/tiny: score: %w", err)
	}
	out := make([][]float32, len(prompts))
	for i, row := range logps {
		out[i] = make([]float32, len(row))
		for t, x := range row {
			out[i][t] = float32(x)
		}
	}
	return out, nil
}
