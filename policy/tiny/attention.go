package tiny

import "math"

// ropeTables returns cos and sin of position·θ^(−2i/head_dim), shape
// [max_position_embeddings, head_dim/2]. Su et al., arXiv 2104.09864.
func ropeTables(c Config) (cos, sin []float32) {
	h := c.HeadDim / 2
	cos = make([]float32, c.MaxPositionEmbeddings*h)
	sin = make([]float32, len(cos))
	for i := range h {
		freq := math.Pow(c.RopeTheta, -2*float64(i)/float64(c.HeadDim))
		for p := range c.MaxPositionEmbeddings {
			s, co := math.Sincos(float64(p) * freq)
			cos[p*h+i], sin[p*h+i] = float32(co), float32(s)
		}
	}
	return cos, sin
}

// rope rotates heads vectors of head_dim in place to position pos, in the
// rotate-half layout of transformers; back rotates the other way, which is the gradient.
func (m *Model) rope(x []float32, heads, pos int, back bool) {
	hd := m.cfg.HeadDim
	h := hd / 2
	cos, sin := m.cos[pos*h:pos*h+h], m.sin[pos*h:pos*h+h]
	for n := range heads {
		a, b := x[n*hd:n*hd+h], x[n*hd+h:n*hd+hd]
		b = b[:len(a)]
		for i, u := range a {
			c, s, v := cos[i], sin[i], b[i]
			if back {
				s = -s
			}
			a[i] = u*c - v*s
			b[i] = v*c + u*s
		}
	}
}

// attend computes one query's attention output over n keys: out = Σ pⱼ·vⱼ with
// p = softmax(scale·q·k). Row j of keys and values begins at j·stride; probs [n]
// is written and kept for the backward pass. Training and decoding share it, so
// that both give the same bits.
func attend(out, probs, q, k, v []float32, stride int, scale float32) {
	hd := len(q)
	top := float32(math.Inf(-1))
	for j := range probs {
		s := dot(q, k[j*stride:j*stride+hd]) * scale
		probs[j] = s
		if s > top {
			top = s
		}
	}
	var sum float32
	for j, s := range probs {
		e := exp32(s - top)
		probs[j] = e
		sum += e
	}
	inv := 1 / sum
	clear(out)
	for j, e := range probs {
		p := e * inv
		probs[j] = p
		axpy(p, v[j*stride:j*stride+hd], out)
	}
}

// attendBack adds the gradients of one query's attention to dq and to the rows
// of dk and dv; ds [n] is scratch.
func attendBack(dq, dk, dv, ds, dout, probs, q, k, v []float32, stride int, scale float32) {
	hd := len(q)
	var mean float32
	for j, p := range probs {
		d := dot(dout, v[j*stride:j*stride+hd])
		ds[j] = d
		mean += d * p
		axpy(p, dout, dv[j*stride:j*stride+hd])
	}
	for j, p := range probs {
		g := p * (ds[j] - mean) * scale
		axpy(g, k[j*stride:j*stride+hd], dq)
		axpy(g, q, dk[j*stride:j*stride+hd])
	}
}
