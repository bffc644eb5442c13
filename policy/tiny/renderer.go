package tiny

// Renderer turns a conversation into token ids and back. A history only ever
// grows at its end, so that what was sampled is never encoded again:
//
//	<bos> instruction… <act> sampled… <end> observation… <act> sampled… <end> …
//
// <act> opens the policy's turn: it is scaffold of that turn, not sampled and not
// part of the message before it. <end> closes the turn and is sampled.
type Renderer struct {
	tok *Tokenizer
	max int // most words of one observation
}

// NewRenderer returns a renderer that cuts observations after maxObservation
// words; 0 means no limit.
func NewRenderer(t *Tokenizer, maxObservation int) *Renderer {
	return &Renderer{tok: t, max: maxObservation}
}

// Start returns the opening of a history: <bos> and the instruction.
func (r *Renderer) Start(instruction string) []int32 {
	return append([]int32{BOS}, r.tok.Encode(instruction)...)
}

// Open returns the scaffold that opens the policy's turn.
func (r *Renderer) Open() []int32 { return []int32{Act} }

// Observe returns an observation's ids, without special tokens, and how many
// ids the limit cut off its end.
func (r *Renderer) Observe(text string) (ids []int32, cut int) {
	ids = r.tok.Encode(text)
	if r.max > 0 && len(ids) > r.max {
		return ids[:r.max], len(ids) - r.max
	}
	return ids, 0
}

// StopIDs returns the ids that end the policy's turn.
func (r *Renderer) StopIDs() []int32 { return []int32{End} }

// Text returns the view of sampled ids that tools and verifiers read: the words,
// without a closing <end>. It is never encoded back.
func (r *Renderer) Text(ids []int32) string {
	if n := len(ids); n > 0 && ids[n-1] == End {
		ids = ids[:n-1]
	}
	return r.tok.Decode(ids)
}

// Tokenizer returns the tokenizer that the renderer uses.
func (r *Renderer) Tokenizer() *Tokenizer { return r.tok }
