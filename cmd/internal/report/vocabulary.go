package report

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/rlfleet/rlfleet/policy"
	"github.com/rlfleet/rlfleet/store"
	"github.com/rlfleet/rlfleet/trajectory"
)

// blob is the kind of a policy's stored objects, its manifest and its files.
const blob = "blob"

// vocabulary are the words of a policy's tokenizer. Without one, tokens are shown by their numbers.
type vocabulary map[int32]string

// loadVocabulary reads the tokenizer.json of version 0; any failure leaves the numbers.
func loadVocabulary(ctx context.Context, s store.ObjectStore, r *trajectory.Run) vocabulary {
	if len(r.Versions) == 0 {
		return nil
	}
	raw, err := store.GetObject(ctx, s, r.ID, r.Versions[0].Manifest, blob)
	if err != nil {
		return nil
	}
	m, err := policy.ParseManifest(raw)
	if err != nil {
		return nil
	}
	for _, file := range m.Files {
		if file.Path != "tokenizer.json" {
			continue
		}
		data, err := store.GetObject(ctx, s, r.ID, file.Digest, blob)
		if err != nil {
			return nil
		}
		v, err := parseVocabulary(data)
		if err != nil {
			return nil
		}
		return v
	}
	return nil
}

var errVocabulary = errors.New("report: tokenizer.json has no vocabulary")

// parseVocabulary takes the words out of a tokenizer.json of Hugging Face's tokenizers.
func parseVocabulary(data []byte) (vocabulary, error) {
	var t struct {
		Model struct {
			Vocab map[string]int32 `json:"vocab"`
		} `json:"model"`
		Added []struct {
			ID      int32  `json:"id"`
			Content string `json:"content"`
		} `json:"added_tokens"`
	}
	if err := json.Unmarshal(data, &t); err != nil {
		return nil, fmt.Errorf("report: tokenizer.json: %w", err)
	}
	v := vocabulary{}
	for word, id := range t.Model.Vocab {
		// Byte-level tokenizers write a space and a line's end as letters that can be seen.
		v[id] = strings.NewReplacer("Ġ", " ", "▁", " ", "Ċ", "⏎").Replace(word)
	}
	for _, a := range t.Added {
		v[a.ID] = a.Content
	}
	if len(v) == 0 {
		return nil, errVocabulary
	}
	return v, nil
}

func (v vocabulary) text(id int32) string {
	if w, ok := v[id]; ok {
		return w
	}
	return fmt.Sprintf("#%d", id)
}
