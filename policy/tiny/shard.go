package tiny

import "math"

// chunkTokens bounds the packed rows of one pass, so that its activations stay
// in cache. A single longer sequence is a chunk of its own.
const chunkTokens = 256

// span is where one sequence lies in a chunk.
type span struct {
	seq       int
	start, n  int // rows of all its tokens
	sel, nsel int // its part of the selected rows
	probs     int // offset of its attention probabilities, n(n+1)/2 for each head
}

// activations of one layer, kept for the backward pass. Rows are tokens, but
// from ao on the last layer has the selected rows only.
type activations struct {
	x, n1, inv1, qkv []float32
	probs            []float32
	ao, x1, n2, inv2 []float32
	gu, sig, act     []float32
}

// shard runs the sequences dealt to it, chunk by chunk.
type shard struct {
	m     *Model
	share []int
	g     []float32 // gradient, layout of the weights
	gt    []float32 // gradient of the linears summed transposed, layout of Model.t

	ids   []int32
	pos   []int32
	rows  []int32 // selected rows: those whose next token is an action
	goal  []int32 // that next token
	spans []span

	layers               []activations
	out, h, invH, logits []float32
	logp, ent            []float64
	dlogp, dent          []float64
	probs                []float64

	dh, dout, dx1, dn, dact, dgu, dao, dqkv, ds []float32
}

// grown returns s with length n, reusing its memory; the content is unspecified.
func grown[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n, n+n/4+16)
	}
	return s[:n]
}

func (s *shard) run(seqs []Sequence, loss Loss, backward bool) {
	if backward {
		s.g, s.gt = grown(s.g, len(s.m.w)), grown(s.gt, len(s.m.t))
		clear(s.g)
		clear(s.gt)
	}
	for at := 0; at < len(s.share); {
		at += s.pack(seqs, s.share[at:])
		s.forward()
		s.head()
		for _, p := range s.spans {
			lo, hi := p.sel, p.sel+p.nsel
			loss(p.seq, s.logp[lo:hi], s.ent[lo:hi], s.dlogp[lo:hi], s.dent[lo:hi])
		}
		if backward {
			s.headBack()
			for l := len(s.m.blocks) - 1; l >= 0; l-- {
				s.layerBack(l)
			}
			s.embedBack()
		}
	}
}

// pack lays the first sequences of share side by side and returns how many.
func (s *shard) pack(seqs []Sequence, share []int) int {
	s.ids, s.pos, s.rows, s.goal, s.spans = s.ids[:0], s.pos[:0], s.rows[:0], s.goal[:0], s.spans[:0]
	heads, probs := s.m.cfg.NumAttentionHeads, 0
	for k, i := range share {
		q := seqs[i]
		n := len(q.Tokens)
		for !q.Action[n-1] {
			n-- // what follows the last action has no gradient
		}
		n-- // the last action is predicted, never read
		if k > 0 && len(s.ids)+n > chunkTokens {
			return k
		}
		p := span{seq: i, start: len(s.ids), n: n, sel: len(s.rows), probs: probs}
		for t := range n {
			s.ids = append(s.ids, q.Tokens[t])
			s.pos = append(s.pos, int32(t))
			if q.Action[t+1] {
				s.rows = append(s.rows, int32(p.start+t))
				s.goal = append(s.goal, q.Tokens[t+1])
			}
		}
		p.nsel = len(s.rows) - p.sel
		probs += heads * n * (n + 1) / 2
		s.spans = append(s.spans, p)
	}
	return len(share)
}

// probsLen returns the length of a layer's probability buffer.
func (s *shard) probsLen() int {
	p := s.spans[len(s.spans)-1]
	return p.probs + s.m.cfg.NumAttentionHeads*p.n*(p.n+1)/2
}

// forward runs the layers over the chunk; the last layer's output is s.out [selected rows, d].
func (s *shard) forward() {
	m, c := s.m, s.m.cfg
	d, t := c.HiddenSize, len(s.ids)
	if s.layers == nil {
		s.layers = make([]activations, len(m.blocks))
	}
	x := grown(s.layers[0].x, t*d)
	for r, id := range s.ids {
		copy(x[r*d:r*d+d], m.w[m.embed+int(id)*d:])
	}
	s.layers[0].x = x
	for l := range m.blocks {
		last := l == len(m.blocks)-1
		n := t
		if last {
			n = len(s.rows)
			s.out = grown(s.out, n*d)
			s.layer(l, s.out, n, last)
			continue
		}
		s.layers[l+1].x = grown(s.layers[l+1].x, n*d)
		s.layer(l, s.layers[l+1].x, n, last)
	}
}

// layer runs one layer: n output rows, all rows or in the last layer the selected ones.
func (s *shard) layer(l int, out []float32, n int, last bool) {
	m, c, b, a := s.m, s.m.cfg, s.m.blocks[l], &s.layers[l]
	d, f, t := c.HiddenSize, c.IntermediateSize, len(s.ids)
	w := b.qkv.out
	a.n1, a.inv1, a.qkv = grown(a.n1, t*d), grown(a.inv1, t), grown(a.qkv, t*w)
	rmsnorm(a.n1, a.inv1, a.x, m.w[b.norm1:], d, c.RMSNormEps)
	m.apply(b.qkv, a.n1, a.qkv, t, false)
	for r, p := range s.pos {
		m.rope(a.qkv[r*w:], c.NumAttentionHeads+c.NumKeyValueHeads, int(p), false)
	}
	a.probs = grown(a.probs, s.probsLen())
	a.ao = grown(a.ao, n*b.o.in)
	s.attention(a, last)
	a.x1, a.n2, a.inv2 = grown(a.x1, n*d), grown(a.n2, n*d), grown(a.inv2, n)
	if last {
		for i, r := range s.rows {
			copy(a.x1[i*d:i*d+d], a.x[int(r)*d:])
		}
	} else {
		copy(a.x1, a.x)
	}
	m.apply(b.o, a.ao, a.x1, n, true)
	rmsnorm(a.n2, a.inv2, a.x1, m.w[b.norm2:], d, c.RMSNormEps)
	a.gu, a.sig, a.act = grown(a.gu, n*2*f), grown(a.sig, n*f), grown(a.act, n*f)
	m.apply(b.gu, a.n2, a.gu, n, false)
	swiglu(a.act, a.sig, a.gu, n, f)
	copy(out, a.x1)
	m.apply(b.dwn, a.act, out, n, true)
}

// queries calls f for each attention query: output row i, token t of span p.
func (s *shard) queries(last bool, f func(p span, i, t int)) {
	for _, p := range s.spans {
		if !last {
			for t := range p.n {
				f(p, p.start+t, t)
			}
			continue
		}
		for i := p.sel; i < p.sel+p.nsel; i++ {
			f(p, i, int(s.rows[i])-p.start)
		}
	}
}

func (s *shard) attention(a *activations, last bool) {
	c := s.m.cfg
	hd, heads, w := c.HeadDim, c.NumAttentionHeads, s.m.blocks[0].qkv.out
	share := heads / c.NumKeyValueHeads
	kAt, vAt := heads*hd, (heads+c.NumKeyValueHeads)*hd
	scale := float32(1 / math.Sqrt(float64(hd)))
	s.queries(last, func(p span, i, t int) {
		base := p.start * w
		q := a.qkv[base+t*w:]
		for h := range heads {
			at := p.probs + h*p.n*(p.n+1)/2 + t*(t+1)/2
			kv := h / share * hd
			attend(a.ao[(i*heads+h)*hd:(i*heads+h+1)*hd], a.probs[at:at+t+1],
				q[h*hd:h*hd+hd], a.qkv[base+kAt+kv:], a.qkv[base+vAt+kv:], w, scale)
		}
	})
}
