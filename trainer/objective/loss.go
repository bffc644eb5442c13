package objective

import (
	"fmt"
	"math"
)

// MaxLogRatio bounds every log-ratio before it is exponentiated, as verl does.
const MaxLogRatio = 20

// Clip says which bound a token's loss met.
type Clip uint8

// The bounds. A token at one has no gradient.
const (
	ClipNone  Clip = iota
	ClipRatio      // the ratio's own
	ClipDual       // the dual clip's
)

// PPO is the clipped surrogate of Schulman et al., arXiv 1707.06347, with separate
// bounds (Yu et al., arXiv 2503.14476) and the dual clip of Ye et al.,
// arXiv 1912.09729:
//
//	L = max(−A·ρ, −A·clip(ρ, 1−Low, 1+High)), and for A < 0: min(L, −A·Dual)
type PPO struct {
	Low, High float64
	Dual      float64 // 0 is off, else above 1
}

// DefaultPPO returns 0.2, 0.2 and 3.
func DefaultPPO() PPO { return PPO{Low: 0.2, High: 0.2, Dual: 3} }

// Validate returns ErrKind for bounds that make no sense.
func (p PPO) Validate() error {
	if !(p.Low >= 0 && p.Low <= 1) || !(p.High >= 0) || !(p.Dual == 0 || p.Dual > 1) {
		return fmt.Errorf("objective: ppo-clip low %g, high %g, dual %g: %w", p.Low, p.High, p.Dual, ErrKind)
	}
	return nil
}

// LogRatio returns log ρ, bounded, and whether the bound holds it.
func LogRatio(logp, behaviour float64) (x float64, bounded bool) {
	x = logp - behaviour
	switch {
	case x > MaxLogRatio:
		return MaxLogRatio, true
	case x < -MaxLogRatio:
		return -MaxLogRatio, true
	}
	return x, false
}

// Token returns one token's loss and its derivative by logp. behaviour is the
// log-probability recorded when the token was sampled; both in nats.
func (p PPO) Token(logp, behaviour, advantage float64) (loss, dlogp float64, clip Clip) {
	x, bounded := LogRatio(logp, behaviour)
	ratio := math.Exp(x)
	loss = -advantage * ratio
	dlogp = loss
	if bounded {
		dlogp = 0
	}
	if clipped := -advantage * min(max(ratio, 1-p.Low), 1+p.High); clipped > loss {
		loss, dlogp, clip = clipped, 0, ClipRatio
	}
	if most := -advantage * p.Dual; p.Dual > 0 && advantage < 0 && loss > most {
		loss, dlogp, clip = most, 0, ClipDual
	}
	return loss, dlogp, clip
}
