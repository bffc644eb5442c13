// Package engine defines what an inference engine does for rlfleet: token ids in; token ids, log-probabilities and version spans out.
package engine

import (
	"context"
	"errors"

	"github.com/rlfleet/rlfleet/policy"
)

// The kinds of failure.
var (
	ErrVersion = errors.New("engine does not have this policy version")
	ErrTooLong = errors.New("prompt does not fit the context")
	ErrClosed  = errors.New("engine is closed")
	ErrInvalid = errors.New("request is not valid") // caller's fault: an empty prompt, an id outside the vocabulary, a negative temperature
)

// Sampling holds the effective values of one call. Log-probabilities are those
// of the distribution sampled from (after temperature and filters).
type Sampling struct {
	Temperature float32 // 0 is greedy; its log-probability is taken at temperature 1
	TopP        float32 // 1 keeps all
	TopK        int32   // 0 keeps all
	Seed        uint64  // of the episode: token i of the episode's sampled tokens is drawn from (Seed, i), whatever else is in the batch
}

// Request asks for one continuation.
type Request struct {
	Session   string          // names the episode, for prefix reuse; never shared between episodes
	Prompt    []int32         // full token history, shape [n], n ≥ 1
	MaxTokens int             // most tokens to sample, ≥ 1
	Stop      []int32         // ids that end the continuation; the one met is kept as its last token
	Drawn     int             // tokens sampled before in this episode: the offset into the random stream
	Pin       *policy.Version // sample from exactly this version (evaluation); nil means live
	Sampling  Sampling
}

// Finish says why a continuation ended.
type Finish string

// The finish reasons.
const (
	FinishStop   Finish = "stop"
	FinishLength Finish = "length"
)

// Response is one continuation. len(Tokens) == len(Logprobs), and Spans cover the tokens exactly (policy.CheckSpans).
type Response struct {
	Tokens   []int32
	Logprobs []float32 // natural logarithm, ≤ 0, finite
	Spans    []policy.Span
	Finish   Finish
	Cached   int // prompt tokens served from the prefix cache
}

// Generator samples continuations. It is what a rollout needs of an engine.
// Generate returns ErrTooLong, ErrVersion, ErrClosed, ErrInvalid or the context's error;
// on any error nothing of the call may be used.
type Generator interface {
	Generate(ctx context.Context, r Request) (Response, error)
}

// Engine is a Generator whose weights can be switched in two phases.
type Engine interface {
	Generator
	// Stage loads a version beside the live one; it is idempotent.
	Stage(ctx context.Context, v policy.Version, manifest policy.Digest) error
	// Score returns log-probabilities at temperature 1 of tokens 1..n-1 of each
	// prompt under a staged, live or pinned version; shape [len(prompts)][n-1].
	Score(ctx context.Context, v policy.Version, prompts [][]int32) ([][]float32, error)
	// Flip makes a staged version live between two tokens: running
	// continuations keep what they have and go on with the new version.
	Flip(ctx context.Context, v policy.Version) error
	// Serving returns the live version; ok is false before the first Flip.
	Serving(ctx context.Context) (v policy.Version, ok bool, err error)
}
