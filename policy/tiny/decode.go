package tiny

import (
	"fmt"
	"math"
)

// Cache holds the keys and values of one sequence under one model's weights.
type Cache struct {
	keys, values [][]float32 // per layer [tokens, kv heads · head_dim]
	n            int
}

// NewCache returns an empty cache for m.
func NewCache(m *Model) *Cache {
	return &Cache{keys: make([][]float32, len(m.blocks)), values: make([][]float32, len(m.blocks))}
}

// Len returns how many tokens the cache holds.
func (c *Cache) Len() int { return c.n }

// Truncate forgets all but the first n tokens.
func (c *Cache) Truncate(n int) {
	if n >= c.n {
		return
	}
	for l := range c.keys {
		w := len(c.keys[l]) / c.n
		c.keys[l], c.values[l] = c.keys[l][:n*w], c.values[l][:n*w]
	}
	c.n = n
}

// Bytes returns the memory that the cache holds.
func (c *Cache) Bytes() int {
	total := 0
	for l := range c.keys {
		total += 4 * (cap(c.keys[l]) + cap(c.values[l]))
	}
	return total
}

// Extension appends tokens to one sequence of a decoding batch.
type Extension struct {
	Cache  *Cache
	Tokens []int32 // at least one
	Want   bool    // the logits after the last token are wanted
}

// Decoder holds the scratch memory of decoding. It is not for concurrent use and
// may serve several models in turn.
type Decoder struct {
	ids, pos, owner                                []int32
	x, norm, inv, qkv, ao, xs, gu, sig, act, probs []float32
	last                                           []int32
	logits                                         []float32
}

// Extend runs the tokens of all extensions through m in one batch, appends their
// keys and values, and returns for each extension with Want its next-token logits
// [vocabulary] (nil for the others), valid until the next call. A sequence's logits
// do not depend on what else is in the batch nor on how its tokens were cut into
// extensions, and are bit for bit those of Batcher.
func (d *Decoder) Extend(m *Model, ext []Extension) ([][]float32, error) {
	d.ids, d.pos, d.owner, d.last = d.ids[:0], d.pos[:0], d.owner[:0], d.last[:0]
	for i, e := range ext {
		if len(e.Tokens) == 0 || e.Cache.n+len(e.Tokens) > m.cfg.MaxPositionEmbeddings {
			return nil, fmt.Errorf("tiny: extend %d tokens by %d, context is %d: %w", e.Cache.n, len(e.Tokens), m.cfg.MaxPositionEmbeddings, ErrTokens)
		}
		if err := m.checkIDs(e.Tokens); err != nil {
			return nil, err
		}
		for t, id := range e.Tokens {
			d.ids, d.pos, d.owner = append(d.ids, id), append(d.pos, int32(e.Cache.n+t)), append(d.owner, int32(i))
		}
		if e.Want {
			d.last = append(d.last, int32(len(d.ids)-1))
		}
	}
	w := m.cfg.HiddenSize
	d.x = grown(d.x, len(d.ids)*w)
	for r, id := range d.ids {
		copy(d.x[r*w:r*w+w], m.w[m.embed+int(id)*w:])
	}
	for l := range m.blocks {
		d.layer(m, l, ext)
	}
	for i := range ext {
		ext[i].Cache.n += len(ext[i].Tokens)
	}
	return d.head(m, ext), nil
}

// layer runs one layer in place over d.x; after the last only the wanted rows remain.
func (d *Decoder) layer(m *Model, l int, ext []Extension) {
	c, b, n := m.cfg, m.blocks[l], len(d.ids)
	w, qkv, hd := c.HiddenSize, b.qkv.out, c.HeadDim
	qw, kvw := c.NumAttentionHeads*hd, c.NumKeyValueHeads*hd
	d.norm, d.inv, d.qkv = grown(d.norm, n*w), grown(d.inv, n), grown(d.qkv, n*qkv)
	rmsnorm(d.norm, d.inv, d.x, m.w[b.norm1:], w, c.RMSNormEps)
	m.apply(b.qkv, d.norm, d.qkv, n, false)
	for r, p := range d.pos {
		row := d.qkv[r*qkv : r*qkv+qkv]
		m.rope(row, c.NumAttentionHeads+c.NumKeyValueHeads, int(p), false)
		cache := ext[d.owner[r]].Cache
		cache.keys[l] = append(cache.keys[l], row[qw:qw+kvw]...)
		cache.values[l] = append(cache.values[l], row[qw+kvw:]...)
	}
	x := d.x
	if l == len(m.blocks)-1 {
		n = len(d.last)
		d.xs = grown(d.xs, n*w)
		for i, r := range d.last {
			copy(d.xs[i*w:i*w+w], d.x[int(r)*w:])
		}
		x = d.xs
	}
	d.ao = grown(d.ao, n*qw)
	d.attention(m, l, n, ext)
	m.apply(b.o, d.ao, x, n, true)
	f := c.IntermediateSize
	d.norm, d.inv = d.norm[:n*w], d.inv[:n]
	d.gu, d.sig, d.act = grown(d.gu, n*2*f), grown(d.sig, n*f), grown(d.act, n*f)
	rmsnorm(d.norm, d.inv, x, m.w[b.norm2:], w, c.RMSNormEps)
	m.apply(b.gu, d.norm, d.gu, n, false)
	swiglu(d.act, d.sig, d.gu, n, f)
	m.apply(b.dwn, d.act, x, n, true)
}

// attention attends from n rows: all of them, or in the last layer the wanted ones.
func (d *Decoder) attention(m *Model, l, n int, ext []Extension) {
	c := m.cfg
	hd, heads := c.HeadDim, c.NumAttentionHeads
	share, kvw, qkv := heads/c.NumKeyValueHeads, c.NumKeyValueHeads*hd, m.blocks[l].qkv.out
	scale := float32(1 / math.Sqrt(float64(hd)))
	for i := range n {
		r := i
		if l == len(m.blocks)-1 {
			r = int(d.last[i])
		}
		cache, t := ext[d.owner[r]].Cache, int(d.pos[r])
		d.probs = grown(d.probs, t+1)
		for h := range heads {
			kv := h / share * hd
			attend(d.ao[(i*heads+h)*hd:(i*heads+h+1)*hd], d.probs,
				d.qkv[r*qkv+h*hd:r*qkv+h*hd+hd], cache.keys[l][kv:], cache.values[l][kv:], kvw, scale)
		}
	}
}

func (d *Decoder) head(m *Model, ext []Extension) [][]float32 {
	c, n := m.cfg, len(d.last)
	out := make([][]float32, len(ext))
	if n == 0 {
		return out
	}
	d.norm, d.inv, d.logits = grown(d.norm, n*c.HiddenSize), grown(d.inv, n), grown(d.logits, n*c.VocabSize)
	rmsnorm(d.norm, d.inv, d.xs, m.w[m.norm:], c.HiddenSize, c.RMSNormEps)
	m.apply(m.head, d.norm, d.logits, n, false)
	at := 0
	for i, e := range ext {
		if e.Want {
			out[i] = d.logits[at*c.VocabSize : (at+1)*c.VocabSize]
			at++
		}
	}
	return out
}
