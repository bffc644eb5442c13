package tiny

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Config is the model's config.json, field for field as transformers'
// LlamaConfig names them.
type Config struct {
	Architectures         []string `json:"architectures"`
	ModelType             string   `json:"model_type"`
	VocabSize             int      `json:"vocab_size"`
	HiddenSize            int      `json:"hidden_size"`
	IntermediateSize      int      `json:"intermediate_size"`
	NumHiddenLayers       int      `json:"num_hidden_layers"`
	NumAttentionHeads     int      `json:"num_attention_heads"`
	NumKeyValueHeads      int      `json:"num_key_value_heads"`
	HeadDim               int      `json:"head_dim"`
	MaxPositionEmbeddings int      `json:"max_position_embeddings"`
	RMSNormEps            float64  `json:"rms_norm_eps"`
	RopeTheta             float64  `json:"rope_theta"`
	HiddenAct             string   `json:"hidden_act"`
	AttentionBias         bool     `json:"attention_bias"`
	MLPBias               bool     `json:"mlp_bias"`
	TieWordEmbeddings     bool     `json:"tie_word_embeddings"`
	TorchDtype            string   `json:"torch_dtype"`
	UseCache              bool     `json:"use_cache"`
	InitializerRange      float64  `json:"initializer_range"`
	BOSTokenID            int32    `json:"bos_token_id"`
	EOSTokenID            int32    `json:"eos_token_id"`
	PadTokenID            int32    `json:"pad_token_id"`
}

// DefaultConfig returns the demo's size: 2 layers, width 32, 2 heads, feed
// forward 64, untied, about 23k parameters at a vocabulary of 32.
// vocab is rounded up to a multiple of 32.
func DefaultConfig(vocab int) Config {
	return Config{
		Architectures: []string{"LlamaForCausalLM"}, ModelType: "llama",
		VocabSize: (vocab + 31) / 32 * 32, HiddenSize: 32, IntermediateSize: 64,
		NumHiddenLayers: 2, NumAttentionHeads: 2, NumKeyValueHeads: 2, HeadDim: 16,
		MaxPositionEmbeddings: 512, RMSNormEps: 1e-5, RopeTheta: 1e4,
		HiddenAct: "silu", TorchDtype: "float32", UseCache: true, InitializerRange: 0.02,
		BOSTokenID: BOS, EOSTokenID: End, PadTokenID: Pad,
	}
}

// Validate returns ErrConfig with a sentence unless this package can run the model.
func (c Config) Validate() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("tiny: config: %s: %w", fmt.Sprintf(format, args...), ErrConfig)
	}
	for _, f := range []struct {
		name string
		v    int
		max  int
	}{
		{"vocab_size", c.VocabSize, 1 << 20},
		{"hidden_size", c.HiddenSize, 1 << 14},
		{"intermediate_size", c.IntermediateSize, 1 << 16},
		{"num_hidden_layers", c.NumHiddenLayers, 256},
		{"num_attention_heads", c.NumAttentionHeads, 256},
		{"num_key_value_heads", c.NumKeyValueHeads, 256},
		{"head_dim", c.HeadDim, 1 << 10},
		{"max_position_embeddings", c.MaxPositionEmbeddings, 1 << 20},
	} {
		if f.v < 1 || f.v > f.max {
			return bad("%s is %d, must be 1 to %d", f.name, f.v, f.max)
		}
	}
	switch {
	case c.ModelType != "llama":
		return bad("model_type is %q, only llama is supported", c.ModelType)
	case c.NumAttentionHeads%c.NumKeyValueHeads != 0:
		return bad("num_attention_heads %d is not a multiple of num_key_value_heads %d", c.NumAttentionHeads, c.NumKeyValueHeads)
	case c.HiddenSize%c.NumAttentionHeads != 0: // transformers refuses it, whatever head_dim is
		return bad("hidden_size %d is not a multiple of num_attention_heads %d", c.HiddenSize, c.NumAttentionHeads)
	case c.HeadDim%2 != 0:
		return bad("head_dim %d is odd", c.HeadDim)
	case c.HiddenAct != "silu":
		return bad("hidden_act is %q, only silu is supported", c.HiddenAct)
	case c.AttentionBias || c.MLPBias:
		return bad("attention_bias and mlp_bias are not supported")
	case !(c.RMSNormEps > 0) || !(c.RopeTheta > 1):
		return bad("rms_norm_eps %g and rope_theta %g must be above 0 and 1", c.RMSNormEps, c.RopeTheta)
	}
	return nil
}

// Encode returns config.json.
func (c Config) Encode() ([]byte, error) {
	b, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("tiny: encode config: %w", err)
	}
	return append(b, '\n'), nil
}

// ParseConfig reads a config.json. It fills what transformers leaves out when
// equal to its default and refuses what would change the model's function
// (scaled RoPE, biases, other activations). Fields without a part in the
// forward pass are ignored.
func ParseConfig(b []byte) (Config, error) {
	var raw struct {
		Config
		RopeScaling    json.RawMessage `json:"rope_scaling"`
		RopeParameters *struct {
			Theta float64 `json:"rope_theta"`
			Type  string  `json:"rope_type"`
		} `json:"rope_parameters"` // newer transformers write theta here
		Dtype string `json:"dtype"`
	}
	raw.Config = Config{
		RMSNormEps: 1e-6, RopeTheta: 1e4, HiddenAct: "silu",
		MaxPositionEmbeddings: 2048, TorchDtype: "float32", UseCache: true, InitializerRange: 0.02,
	}
	if err := json.Unmarshal(b, &raw); err != nil {
		return Config{}, fmt.Errorf("tiny: parse config: %v: %w", err, ErrFormat)
	}
	c := raw.Config
	if s := bytes.TrimSpace(raw.RopeScaling); len(s) > 0 && !bytes.Equal(s, []byte("null")) {
		return c, fmt.Errorf("tiny: config: rope_scaling is not supported: %w", ErrConfig)
	}
	if p := raw.RopeParameters; p != nil {
		if p.Type != "" && p.Type != "default" {
			return c, fmt.Errorf("tiny: config: rope_type %q is not supported: %w", p.Type, ErrConfig)
		}
		if p.Theta != 0 {
			c.RopeTheta = p.Theta
		}
	}
	if c.NumKeyValueHeads == 0 {
		c.NumKeyValueHeads = c.NumAttentionHeads
	}
	if c.HeadDim == 0 && c.NumAttentionHeads > 0 {
		c.HeadDim = c.HiddenSize / c.NumAttentionHeads
	}
	if raw.Dtype != "" {
		c.TorchDtype = raw.Dtype
	}
	return c, c.Validate()
}
