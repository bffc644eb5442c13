package tiny

import "math"

// AdamWConfig holds the optimizer's constants.
type AdamWConfig struct {
	Beta1, Beta2 float64
	Eps          float64
	WeightDecay  float64 // decoupled; of matrices, not of norm weights
}

// DefaultAdamW returns betas 0.9 and 0.95, eps 1e-8, no weight decay.
func DefaultAdamW() AdamWConfig { return AdamWConfig{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8} }

// AdamW is the optimizer of Loshchilov and Hutter, arXiv 1711.05101, with its state.
type AdamW struct {
	cfg   AdamWConfig
	steps int64
	m, v  []float32 // moments, in the order of the weights
}

// NewAdamW returns an optimizer for m with zero moments.
func NewAdamW(m *Model, c AdamWConfig) *AdamW {
	return &AdamW{cfg: c, m: make([]float32, len(m.w)), v: make([]float32, len(m.w))}
}

// Steps returns how many updates were made.
func (o *AdamW) Steps() int64 { return o.steps }

// Configure replaces the constants and keeps the moments.
func (o *AdamW) Configure(c AdamWConfig) { o.cfg = c }

// Clone returns an optimizer with its own copy of the state.
func (o *AdamW) Clone() *AdamW {
	n := *o
	n.m = append([]float32(nil), o.m...)
	n.v = append([]float32(nil), o.v...)
	return &n
}

// Step updates the model by one gradient at learning rate lr.
func (o *AdamW) Step(m *Model, grad []float32, lr float64) {
	o.steps++
	b1, b2 := float32(o.cfg.Beta1), float32(o.cfg.Beta2)
	c1 := 1 - math.Pow(o.cfg.Beta1, float64(o.steps))
	c2 := 1 - math.Pow(o.cfg.Beta2, float64(o.steps))
	rate, root := float32(lr/c1), float32(1/c2)
	eps := float32(o.cfg.Eps)
	for _, t := range m.tensors {
		keep := float32(1)
		if !t.vector {
			keep = float32(1 - lr*o.cfg.WeightDecay)
		}
		w, g := m.w[t.off:t.off+t.len()], grad[t.off:t.off+t.len()]
		mo, ve := o.m[t.off:t.off+t.len()], o.v[t.off:t.off+t.len()]
		for i, x := range g {
			a := b1*mo[i] + (1-b1)*x
			b := b2*ve[i] + (1-b2)*x*x
			mo[i], ve[i] = a, b
			w[i] = w[i]*keep - rate*a/(float32(math.Sqrt(float64(b*root)))+eps)
		}
	}
	m.refresh()
}

// ClipNorm scales the gradient in place so that its Euclidean norm is at most
// most (no limit when most ≤ 0), and returns the norm before. The result is NaN or
// infinite when the gradient is; then it is left as it is.
func ClipNorm(grad []float32, most float64) float64 {
	var sum float64
	for _, g := range grad {
		sum += float64(g) * float64(g)
	}
	norm := math.Sqrt(sum)
	if most > 0 && norm > most && !math.IsInf(norm, 0) {
		k := float32(most / norm)
		for i := range grad {
			grad[i] *= k
		}
	}
	return norm
}
