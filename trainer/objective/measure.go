package objective

import "math"

// Measure adds up what is watched while training, token by token. It never enters a loss.
type Measure struct {
	Tokens             int64
	positive, negative int64 // tokens by the sign of their advantage
	clipPos, clipNeg   int64
	ratio, ratio2      float64
	kl, entropy        float64
	low, high          float64 // of the log-ratio
}

// Add takes one token.
func (m *Measure) Add(logp, behaviour, advantage, entropy float64, clip Clip) {
	x, _ := LogRatio(logp, behaviour)
	r := math.Exp(x)
	if m.Tokens == 0 || x < m.low {
		m.low = x
	}
	if m.Tokens == 0 || x > m.high {
		m.high = x
	}
	m.Tokens++
	m.ratio += r
	m.ratio2 += r * r
	m.kl += r - 1 - x
	m.entropy += entropy
	hit := int64(0)
	if clip != ClipNone {
		hit = 1
	}
	switch {
	case advantage > 0:
		m.positive++
		m.clipPos += hit
	case advantage < 0:
		m.negative++
		m.clipNeg += hit
	}
}

// Merge adds another measure. For equal bits the order of merging must be the same.
func (m *Measure) Merge(o Measure) {
	if o.Tokens == 0 {
		return
	}
	if m.Tokens == 0 || o.low < m.low {
		m.low = o.low
	}
	if m.Tokens == 0 || o.high > m.high {
		m.high = o.high
	}
	m.Tokens += o.Tokens
	m.positive += o.positive
	m.negative += o.negative
	m.clipPos += o.clipPos
	m.clipNeg += o.clipNeg
	m.ratio += o.ratio
	m.ratio2 += o.ratio2
	m.kl += o.kl
	m.entropy += o.entropy
}

func share(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// ClipPositive returns the share of tokens with positive advantage that met a bound.
func (m Measure) ClipPositive() float64 { return share(float64(m.clipPos), float64(m.positive)) }

// ClipNegative returns the share of tokens with negative advantage that met a bound.
func (m Measure) ClipNegative() float64 { return share(float64(m.clipNeg), float64(m.negative)) }

// ESS returns the effective sample size of the ratios over their number,
// (Σρ)²/(n·Σρ²), in (0,1]; 0 without tokens.
func (m Measure) ESS() float64 { return share(m.ratio*m.ratio, float64(m.Tokens)*m.ratio2) }

// KL returns the mean of ρ − 1 − log ρ in nats: the k3 estimator of KL(μ‖π) from
// tokens sampled by μ (Schulman, "Approximating KL divergence", 2020).
func (m Measure) KL() float64 { return share(m.kl, float64(m.Tokens)) }

// Entropy returns the mean entropy of π in nats.
func (m Measure) Entropy() float64 { return share(m.entropy, float64(m.Tokens)) }

// MeanRatio returns the mean of ρ; 1 when nothing is off.
func (m Measure) MeanRatio() float64 { return share(m.ratio, float64(m.Tokens)) }

// LogRatioRange returns the least and the greatest log ρ. Both tails matter: a mean near 1 hides either.
func (m Measure) LogRatioRange() (low, high float64) { return m.low, m.high }
