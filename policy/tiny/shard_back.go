package tiny

import "math"

// head runs the final norm and the output head on the selected rows, and fills
// logp and entropy of the goals.
func (s *shard) head() {
	m, c := s.m, s.m.cfg
	d, v, n := c.HiddenSize, c.VocabSize, len(s.rows)
	s.h, s.invH, s.logits = grown(s.h, n*d), grown(s.invH, n), grown(s.logits, n*v)
	rmsnorm(s.h, s.invH, s.out, m.w[m.norm:], d, c.RMSNormEps)
	m.apply(m.head, s.h, s.logits, n, false)
	s.logp, s.ent, s.probs = grown(s.logp, n), grown(s.ent, n), grown(s.probs, n*v)
	s.dlogp, s.dent = grown(s.dlogp, n), grown(s.dent, n)
	clear(s.dlogp)
	clear(s.dent)
	for r, goal := range s.goal {
		row, p := s.logits[r*v:r*v+v], s.probs[r*v:r*v+v]
		logz := Softmax(p, row)
		var mean float64
		for i, x := range row {
			mean += p[i] * float64(x)
		}
		s.logp[r] = float64(row[goal]) - logz
		s.ent[r] = logz - mean
	}
}

// Softmax writes the probabilities of logits into probs, both [vocabulary], and
// returns log Σ exp(logit). The maximum is subtracted first and sums are float64.
func Softmax(probs []float64, logits []float32) float64 {
	top := logits[0]
	for _, x := range logits {
		if x > top {
			top = x
		}
	}
	var sum float64
	for i, x := range logits {
		e := float64(exp32(x - top))
		probs[i] = e
		sum += e
	}
	inv := 1 / sum
	for i := range probs {
		probs[i] *= inv
	}
	return float64(top) + math.Log(sum)
}

// headBack turns dlogp and dent into the gradient of the logits, of the head,
// and of the last layer's output (s.dout). With p the softmax and H its entropy:
// ∂logp_a/∂z_i = [i=a] − p_i and ∂H/∂z_i = −p_i·(log p_i + H).
func (s *shard) headBack() {
	m, c := s.m, s.m.cfg
	d, v, n := c.HiddenSize, c.VocabSize, len(s.rows)
	for r, goal := range s.goal {
		row, p := s.logits[r*v:r*v+v], s.probs[r*v:r*v+v]
		g, e := s.dlogp[r], s.dent[r]
		logz := float64(row[goal]) - s.logp[r]
		shift := s.ent[r] - logz
		for i, x := range row {
			row[i] = float32(p[i] * (-g - e*(float64(x)+shift)))
		}
		row[goal] += float32(g)
	}
	s.gradient(m.head, s.logits, s.h, n)
	s.dh = grown(s.dh, n*d)
	m.applyBack(m.head, s.logits, s.dh, n)
	s.dout = grown(s.dout, n*d)
	clear(s.dout)
	rmsnormBack(s.dout, s.g[m.norm:], s.dh, s.out, s.invH, m.w[m.norm:], d)
}

// gradient adds dyᵀ·x to the gradient of a linear, in the orientation whose
// inner loop is the longer.
func (s *shard) gradient(l linear, dy, x []float32, rows int) {
	if l.gradTransposed() {
		product(true, false, l.in, l.out, rows, x, l.in, dy, l.out, s.gt[l.t:], l.out, true)
		return
	}
	product(true, false, l.out, l.in, rows, dy, l.out, x, l.in, s.g[l.w:], l.in, true)
}

// layerBack takes s.dout, the gradient of layer l's output, to s.dout of its input.
func (s *shard) layerBack(l int) {
	m, c, b, a := s.m, s.m.cfg, s.m.blocks[l], &s.layers[l]
	d, f, t, w := c.HiddenSize, c.IntermediateSize, len(s.ids), b.qkv.out
	last := l == len(m.blocks)-1
	n := len(s.dout) / d
	s.dact, s.dgu, s.dn = grown(s.dact, n*f), grown(s.dgu, n*2*f), grown(s.dn, max(n, t)*d)
	m.applyBack(b.dwn, s.dout, s.dact, n)
	s.gradient(b.dwn, s.dout, a.act, n)
	swigluBack(s.dgu, s.dact, a.sig, a.gu, n, f)
	m.applyBack(b.gu, s.dgu, s.dn, n)
	s.gradient(b.gu, s.dgu, a.n2, n)
	s.dx1 = grown(s.dx1, n*d)
	copy(s.dx1, s.dout)
	rmsnormBack(s.dx1, s.g[b.norm2:], s.dn, a.x1, a.inv2, m.w[b.norm2:], d)

	s.dao, s.dqkv = grown(s.dao, n*b.o.in), grown(s.dqkv, t*w)
	m.applyBack(b.o, s.dx1, s.dao, n)
	s.gradient(b.o, s.dx1, a.ao, n)
	clear(s.dqkv)
	s.attentionBack(a, last)
	for r, p := range s.pos {
		m.rope(s.dqkv[r*w:], c.NumAttentionHeads+c.NumKeyValueHeads, int(p), true)
	}
	m.applyBack(b.qkv, s.dqkv, s.dn, t)
	s.gradient(b.qkv, s.dqkv, a.n1, t)
	s.dout = grown(s.dout, t*d)
	if last {
		clear(s.dout)
		for i, r := range s.rows {
			copy(s.dout[int(r)*d:int(r)*d+d], s.dx1[i*d:])
		}
	} else {
		copy(s.dout, s.dx1)
	}
	rmsnormBack(s.dout, s.g[b.norm1:], s.dn, a.x, a.inv1, m.w[b.norm1:], d)
}

func (s *shard) attentionBack(a *activations, last bool) {
	c := s.m.cfg
	hd, heads, w := c.HeadDim, c.NumAttentionHeads, s.m.blocks[0].qkv.out
	share := heads / c.NumKeyValueHeads
	kAt, vAt := heads*hd, (heads+c.NumKeyValueHeads)*hd
	scale := float32(1 / math.Sqrt(float64(hd)))
	s.queries(last, func(p span, i, t int) {
		base := p.start * w
		q, dq := a.qkv[base+t*w:], s.dqkv[base+t*w:]
		s.ds = grown(s.ds, t+1)
		for h := range heads {
			at := p.probs + h*p.n*(p.n+1)/2 + t*(t+1)/2
			kv := h / share * hd
			attendBack(dq[h*hd:h*hd+hd], s.dqkv[base+kAt+kv:], s.dqkv[base+vAt+kv:], s.ds,
				s.dao[(i*heads+h)*hd:(i*heads+h+1)*hd], a.probs[at:at+t+1],
				q[h*hd:h*hd+hd], a.qkv[base+kAt+kv:], a.qkv[base+vAt+kv:], w, scale)
		}
	})
}

func (s *shard) embedBack() {
	m, d := s.m, s.m.cfg.HiddenSize
	for r, id := range s.ids {
		axpy(1, s.dout[r*d:r*d+d], s.g[m.embed+int(id)*d:])
	}
}
