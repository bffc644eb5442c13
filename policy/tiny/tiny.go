// Package tiny is the embedded policy: a Llama-architecture language model in pure Go, read from and written to Hugging Face directories.
//
// It holds the model (forward, backward, key/value-cached decoding), its
// optimizer, its word-level tokenizer, the renderer of conversations, and the
// supervised fit that makes a version 0. Inference over it is
// policy/engine/tiny; reinforcement is trainer/tiny.
//
// Arithmetic is float32 over gonum's BLAS. For one binary on one architecture
// every result is a function of its inputs bit for bit, whatever GOMAXPROCS and
// whatever else is in a batch: work is cut into a fixed number of shards whose
// gradients are summed in order, and every matrix product is computed row by row.
package tiny

import "errors"

// The kinds of failure.
var (
	ErrConfig    = errors.New("model configuration is not supported")
	ErrFormat    = errors.New("file is not well formed")
	ErrMissing   = errors.New("file is missing from the policy")
	ErrTokens    = errors.New("token ids do not fit the model")
	ErrCorpus    = errors.New("corpus cannot be fitted")
	ErrNotFinite = errors.New("value is not finite")
)
