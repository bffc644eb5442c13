package engine

import (
	"fmt"
	"math"
)

// Validate returns ErrInvalid unless r can be served by an engine with a
// vocabulary of vocab ids, and ErrTooLong when its prompt leaves no room for one
// more token in context.
func (r Request) Validate(vocab, context int) error {
	s := r.Sampling
	switch {
	case len(r.Prompt) == 0:
		return fmt.Errorf("engine: empty prompt: %w", ErrInvalid)
	case r.MaxTokens < 1:
		return fmt.Errorf("engine: at most %d tokens asked for: %w", r.MaxTokens, ErrInvalid)
	case r.Drawn < 0:
		return fmt.Errorf("engine: %d tokens drawn before: %w", r.Drawn, ErrInvalid)
	case !(s.Temperature >= 0) || math.IsInf(float64(s.Temperature), 0):
		return fmt.Errorf("engine: temperature %g: %w", s.Temperature, ErrInvalid)
	case !(s.TopP > 0 && s.TopP <= 1):
		return fmt.Errorf("engine: top-p %g is not above 0 and at most 1: %w", s.TopP, ErrInvalid)
	case s.TopK < 0:
		return fmt.Errorf("engine: top-k %d: %w", s.TopK, ErrInvalid)
	case len(r.Prompt) >= context:
		return fmt.Errorf("engine: prompt of %d tokens, context is %d: %w", len(r.Prompt), context, ErrTooLong)
	}
	for i, id := range r.Prompt {
		if id < 0 || int(id) >= vocab {
			return fmt.Errorf("engine: prompt token %d is %d, vocabulary is %d: %w", i, id, vocab, ErrInvalid)
		}
	}
	return nil
}
