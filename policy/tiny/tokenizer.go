package tiny

import (
	"encoding/json"
	"fmt"
	"sort"
	"strings"
)

// The special tokens of a vocabulary made by Build, in this order.
const (
	Pad int32 = iota
	BOS
	Unk
	Act
	End
	specials // how many there are
)

var specialWords = [...]string{"<pad>", "<bos>", "<unk>", "<act>", "<end>"}

// Tokenizer is word-level: text is cut at white space and each word is an id.
type Tokenizer struct {
	words   []string // by id
	ids     map[string]int32
	special map[string]bool // words that text never encodes to
	max     int             // model_max_length of tokenizer_config.json
}

// Build returns a tokenizer for the words of texts in sorted order, after the
// special tokens, filled with reserved words to a multiple of 32. context is the
// model's longest sequence, in tokens.
func Build(texts []string, context int) (*Tokenizer, error) {
	seen := make(map[string]bool)
	for _, s := range specialWords {
		seen[s] = true
	}
	words := append([]string(nil), specialWords[:]...)
	for _, text := range texts {
		for _, w := range strings.Fields(text) {
			if isReserved(w) {
				return nil, fmt.Errorf("tiny: build tokenizer: %q is a reserved word: %w", w, ErrCorpus)
			}
			if !seen[w] {
				seen[w] = true
				words = append(words, w)
			}
		}
	}
	sort.Strings(words[specials:])
	for len(words)%32 != 0 {
		words = append(words, fmt.Sprintf("<reserved_%d>", len(words)))
	}
	return newTokenizer(words, context)
}

func isReserved(w string) bool { return strings.HasPrefix(w, "<reserved_") }

func newTokenizer(words []string, context int) (*Tokenizer, error) {
	t := &Tokenizer{words: words, ids: make(map[string]int32, len(words)), special: make(map[string]bool), max: context}
	for i, w := range words {
		if _, twice := t.ids[w]; twice || len(strings.Fields(w)) != 1 || strings.TrimSpace(w) != w {
			return nil, fmt.Errorf("tiny: tokenizer: word %d %q is repeated or not one word: %w", i, w, ErrFormat)
		}
		t.ids[w] = int32(i)
		if isReserved(w) {
			t.special[w] = true
		}
	}
	for i, w := range specialWords {
		if id, ok := t.ids[w]; !ok || id != int32(i) {
			return nil, fmt.Errorf("tiny: tokenizer: %s is not id %d: %w", w, i, ErrFormat)
		}
		t.special[w] = true
	}
	return t, nil
}

// Size returns the number of ids.
func (t *Tokenizer) Size() int { return len(t.words) }

// Encode returns the ids of text's words. A word that is not in the
// vocabulary, or is a special token's name, becomes <unk>: no text can forge a
// turn (invariant I9).
func (t *Tokenizer) Encode(text string) []int32 {
	words := strings.Fields(text)
	out := make([]int32, len(words))
	for i, w := range words {
		id, ok := t.ids[w]
		if !ok || t.special[w] {
			id = Unk
		}
		out[i] = id
	}
	return out
}

// Decode joins the words of ids with spaces; an id outside the vocabulary reads <unk>.
func (t *Tokenizer) Decode(ids []int32) string {
	words := make([]string, len(ids))
	for i, id := range ids {
		words[i] = t.Word(id)
	}
	return strings.Join(words, " ")
}

// Word returns one id's word, or <unk>.
func (t *Tokenizer) Word(id int32) string {
	if id < 0 || int(id) >= len(t.words) {
		return specialWords[Unk]
	}
	return t.words[id]
}

type addedToken struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

type wordLevel struct {
	Type  string           `json:"type"`
	Vocab map[string]int32 `json:"vocab"`
	Unk   string           `json:"unk_token"`
}

type tokenizerJSON struct {
	Version       string            `json:"version"`
	Truncation    *json.RawMessage  `json:"truncation"`
	Padding       *json.RawMessage  `json:"padding"`
	AddedTokens   []addedToken      `json:"added_tokens"`
	Normalizer    *json.RawMessage  `json:"normalizer"`
	PreTokenizer  map[string]string `json:"pre_tokenizer"`
	PostProcessor *json.RawMessage  `json:"post_processor"`
	Decoder       *json.RawMessage  `json:"decoder"`
	Model         wordLevel         `json:"model"`
}

// Files returns tokenizer.json, tokenizer_config.json and special_tokens_map.json.
func (t *Tokenizer) Files() (map[string][]byte, error) {
	tj := tokenizerJSON{
		Version: "1.0", PreTokenizer: map[string]string{"type": "WhitespaceSplit"},
		Model: wordLevel{Type: "WordLevel", Vocab: t.ids, Unk: specialWords[Unk]},
	}
	for id, w := range t.words {
		if t.special[w] {
			tj.AddedTokens = append(tj.AddedTokens, addedToken{ID: int32(id), Content: w, Special: true})
		}
	}
	names := map[string]string{"bos_token": specialWords[BOS], "eos_token": specialWords[End], "pad_token": specialWords[Pad], "unk_token": specialWords[Unk]}
	cfg := map[string]any{"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": t.max, "clean_up_tokenization_spaces": false}
	for k, v := range names {
		cfg[k] = v
	}
	out := make(map[string][]byte)
	for path, v := range map[string]any{"tokenizer.json": tj, "tokenizer_config.json": cfg, "special_tokens_map.json": names} {
		b, err := json.MarshalIndent(v, "", "  ")
		if err != nil {
			return nil, fmt.Errorf("tiny: encode %s: %w", path, err)
		}
		out[path] = append(b, '\n')
	}
	return out, nil
}

// ParseTokenizer reads a tokenizer.json written by Files. Other tokenizer models
// are refused: this package would cut text differently.
func ParseTokenizer(b []byte, context int) (*Tokenizer, error) {
	var tj tokenizerJSON
	if err := json.Unmarshal(b, &tj); err != nil {
		return nil, fmt.Errorf("tiny: parse tokenizer: %v: %w", err, ErrFormat)
	}
	if tj.Model.Type != "WordLevel" || tj.PreTokenizer["type"] != "WhitespaceSplit" || tj.Normalizer != nil || tj.PostProcessor != nil {
		return nil, fmt.Errorf("tiny: parse tokenizer: only a plain WordLevel model over WhitespaceSplit is supported: %w", ErrConfig)
	}
	words := make([]string, len(tj.Model.Vocab))
	for w, id := range tj.Model.Vocab {
		if id < 0 || int(id) >= len(words) || words[id] != "" {
			return nil, fmt.Errorf("tiny: parse tokenizer: id %d of %q is repeated or beyond %d words: %w", id, w, len(words), ErrFormat)
		}
		words[id] = w
	}
	return newTokenizer(words, context)
}
