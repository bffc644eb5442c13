package tiny

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// tensor is one named weight inside the flat parameter slice.
type tensor struct {
	name       string
	rows, cols int // a vector has rows 1 and is stored with a one-dimensional shape
	vector     bool
	off        int
}

func (t tensor) len() int { return t.rows * t.cols }

// linear is a weight [out,in] used as y = x·Wᵀ, with where its parts are.
type linear struct {
	out, in int
	w       int // offset of W [out,in] in the flat parameters
	t       int // offset of Wᵀ [in,out] in the transposed copies
}

// gradTransposed says that the gradient is summed as [in,out]: the long axis is
// the inner loop of the product, where gonum is fastest.
func (l linear) gradTransposed() bool { return l.out > l.in }

// block holds the offsets of one layer.
type block struct {
	norm1, norm2    int // RMSNorm weights [d]
	qkv, o, gu, dwn linear
}

// Model is a Llama-architecture language model with its weights.
//
// It may be read by many goroutines at once; only an optimizer step or a load
// writes it, and then nothing else may use it.
type Model struct {
	cfg     Config
	tensors []tensor
	w       []float32 // all parameters, in the order of tensors
	t       []float32 // transposed copies of the linears, refreshed after a change of w
	embed   int
	blocks  []block
	norm    int
	head    linear
	cos     []float32 // [max_position_embeddings, head_dim/2]
	sin     []float32
}

// New returns a model with random weights drawn from seed: linears normal with
// deviation 1/√fan-in (o and down also /√(2·layers)), embedding 0.5, head 0.1
// of the unit normal, norms 1.
func New(c Config, seed uint64) (*Model, error) {
	m, err := newEmpty(c)
	if err != nil {
		return nil, err
	}
	rng := rand.New(rand.NewPCG(seed, 0x7469_6e79))
	fill := func(off, n int, std float64) {
		for i := range m.w[off : off+n] {
			m.w[off+i] = float32(rng.NormFloat64() * std)
		}
	}
	ones := func(off int) {
		for i := range m.w[off : off+c.HiddenSize] {
			m.w[off+i] = 1
		}
	}
	deep := 1 / math.Sqrt(2*float64(c.NumHiddenLayers))
	of := func(l linear, scale float64) { fill(l.w, l.out*l.in, scale/math.Sqrt(float64(l.in))) }
	fill(m.embed, c.VocabSize*c.HiddenSize, 0.5)
	for _, b := range m.blocks {
		ones(b.norm1)
		of(b.qkv, 1)
		of(b.o, deep)
		ones(b.norm2)
		of(b.gu, 1)
		of(b.dwn, deep)
	}
	ones(m.norm)
	if !c.TieWordEmbeddings {
		fill(m.head.w, c.VocabSize*c.HiddenSize, 0.1)
	}
	m.refresh()
	return m, nil
}

// newEmpty lays out a model whose weights are all zero.
func newEmpty(c Config) (*Model, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	m := &Model{cfg: c}
	d, q, kv, f := c.HiddenSize, c.NumAttentionHeads*c.HeadDim, c.NumKeyValueHeads*c.HeadDim, c.IntermediateSize
	at, tAt := 0, 0
	add := func(name string, rows, cols int, vector bool) int {
		off := at
		m.tensors = append(m.tensors, tensor{name: name, rows: rows, cols: cols, vector: vector, off: off})
		at += rows * cols
		return off
	}
	lin := func(w, out, in int) linear {
		l := linear{out: out, in: in, w: w, t: tAt}
		tAt += out * in
		return l
	}
	m.embed = add("model.embed_tokens.weight", c.VocabSize, d, false)
	for i := range c.NumHiddenLayers {
		p := fmt.Sprintf("model.layers.%d.", i)
		var b block
		b.norm1 = add(p+"input_layernorm.weight", 1, d, true)
		// q, k and v lie next to one another, and so do gate and up: one product serves each set.
		w := add(p+"self_attn.q_proj.weight", q, d, false)
		add(p+"self_attn.k_proj.weight", kv, d, false)
		add(p+"self_attn.v_proj.weight", kv, d, false)
		b.qkv = lin(w, q+2*kv, d)
		b.o = lin(add(p+"self_attn.o_proj.weight", d, q, false), d, q)
		b.norm2 = add(p+"post_attention_layernorm.weight", 1, d, true)
		w = add(p+"mlp.gate_proj.weight", f, d, false)
		add(p+"mlp.up_proj.weight", f, d, false)
		b.gu = lin(w, 2*f, d)
		b.dwn = lin(add(p+"mlp.down_proj.weight", d, f, false), d, f)
		m.blocks = append(m.blocks, b)
	}
	m.norm = add("model.norm.weight", 1, d, true)
	headAt := m.embed
	if !c.TieWordEmbeddings {
		headAt = add("lm_head.weight", c.VocabSize, d, false)
	}
	m.head = lin(headAt, c.VocabSize, d)
	m.w = make([]float32, at)
	m.t = make([]float32, tAt)
	m.cos, m.sin = ropeTables(c)
	return m, nil
}

// Config returns the model's configuration.
func (m *Model) Config() Config { return m.cfg }

// Params returns the number of parameters.
func (m *Model) Params() int { return len(m.w) }

// Clone returns a model with its own copy of the weights.
func (m *Model) Clone() *Model {
	n := *m
	n.w = append([]float32(nil), m.w...)
	n.t = append([]float32(nil), m.t...)
	return &n
}

// linears calls f for each linear weight.
func (m *Model) linears(f func(linear)) {
	for _, b := range m.blocks {
		f(b.qkv)
		f(b.o)
		f(b.gu)
		f(b.dwn)
	}
	f(m.head)
}

// refresh makes the transposed copies follow the weights.
func (m *Model) refresh() {
	m.linears(func(l linear) {
		transpose(m.t[l.t:l.t+l.out*l.in], m.w[l.w:l.w+l.out*l.in], l.out, l.in)
	})
}

// checkIDs returns ErrTokens unless all ids are in the vocabulary.
func (m *Model) checkIDs(ids []int32) error {
	for _, id := range ids {
		if id < 0 || int(id) >= m.cfg.VocabSize {
			return fmt.Errorf("tiny: token id %d, vocabulary is %d: %w", id, m.cfg.VocabSize, ErrTokens)
		}
	}
	return nil
}

// Finite returns ErrNotFinite when any weight is NaN or infinite.
func (m *Model) Finite() error {
	for _, t := range m.tensors {
		for _, x := range m.w[t.off : t.off+t.len()] {
			if x-x != 0 {
				return fmt.Errorf("tiny: weight %s: %w", t.name, ErrNotFinite)
			}
		}
	}
	return nil
}
