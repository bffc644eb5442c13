package tiny

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// The paths of a policy's files, as transformers names them.
const (
	ConfigFile    = "config.json"
	WeightsFile   = "model.safetensors"
	TokenizerFile = "tokenizer.json"
	OptimizerFile = "optimizer.safetensors"
)

// Files returns config.json and model.safetensors.
func (m *Model) Files() (map[string][]byte, error) {
	cfg, err := m.cfg.Encode()
	if err != nil {
		return nil, err
	}
	tensors := make(map[string]Array, len(m.tensors))
	for _, t := range m.tensors {
		tensors[t.name] = Array{Shape: t.shape(), Data: m.w[t.off : t.off+t.len()]}
	}
	w, err := EncodeSafetensors(tensors, map[string]string{"format": "pt"}) // transformers asks for it
	if err != nil {
		return nil, err
	}
	return map[string][]byte{ConfigFile: cfg, WeightsFile: w}, nil
}

func (t tensor) shape() []int {
	if t.vector {
		return []int{t.cols}
	}
	return []int{t.rows, t.cols}
}

// Open returns the model of a policy's files, by path.
func Open(files map[string][]byte) (*Model, error) {
	b, ok := files[ConfigFile]
	if !ok {
		return nil, fmt.Errorf("tiny: open model: %s: %w", ConfigFile, ErrMissing)
	}
	c, err := ParseConfig(b)
	if err != nil {
		return nil, err
	}
	m, err := newEmpty(c)
	if err != nil {
		return nil, err
	}
	if b, ok = files[WeightsFile]; !ok {
		return nil, fmt.Errorf("tiny: open model: %s: %w", WeightsFile, ErrMissing)
	}
	arrays, _, err := ParseSafetensors(b)
	if err != nil {
		return nil, err
	}
	if c.TieWordEmbeddings {
		delete(arrays, "lm_head.weight") // some writers store the shared weight twice
	}
	if err := fill(m, m.w, "", arrays); err != nil {
		return nil, err
	}
	if len(arrays) != len(m.tensors) {
		return nil, fmt.Errorf("tiny: open model: %d tensors, the configuration has %d: %w", len(arrays), len(m.tensors), ErrFormat)
	}
	m.refresh()
	return m, m.Finite()
}

// fill copies the model-shaped arrays named prefix + tensor name into dst.
func fill(m *Model, dst []float32, prefix string, arrays map[string]Array) error {
	for _, t := range m.tensors {
		a, ok := arrays[prefix+t.name]
		if !ok {
			return fmt.Errorf("tiny: tensor %s%s: %w", prefix, t.name, ErrMissing)
		}
		if !slices.Equal(a.Shape, t.shape()) {
			return fmt.Errorf("tiny: tensor %s%s has shape %v, the configuration says %v: %w", prefix, t.name, a.Shape, t.shape(), ErrFormat)
		}
		copy(dst[t.off:], a.Data)
	}
	return nil
}

const firstMoment, secondMoment = "exp_avg.", "exp_avg_sq."

// Files returns optimizer.safetensors: both moments of every weight of m, and
// the number of updates in the metadata.
func (o *AdamW) Files(m *Model) (map[string][]byte, error) {
	tensors := make(map[string]Array, 2*len(m.tensors))
	for _, t := range m.tensors {
		tensors[firstMoment+t.name] = Array{Shape: t.shape(), Data: o.m[t.off : t.off+t.len()]}
		tensors[secondMoment+t.name] = Array{Shape: t.shape(), Data: o.v[t.off : t.off+t.len()]}
	}
	b, err := EncodeSafetensors(tensors, map[string]string{"format": "adamw", "step": strconv.FormatInt(o.steps, 10)})
	if err != nil {
		return nil, err
	}
	return map[string][]byte{OptimizerFile: b}, nil
}

// OpenAdamW returns the optimizer state for m stored in files.
func OpenAdamW(files map[string][]byte, m *Model, c AdamWConfig) (*AdamW, error) {
	b, ok := files[OptimizerFile]
	if !ok {
		return nil, fmt.Errorf("tiny: open optimizer: %s: %w", OptimizerFile, ErrMissing)
	}
	arrays, meta, err := ParseSafetensors(b)
	if err != nil {
		return nil, err
	}
	o := NewAdamW(m, c)
	if o.steps, err = strconv.ParseInt(meta["step"], 10, 64); err != nil || o.steps < 0 {
		return nil, fmt.Errorf("tiny: open optimizer: step %q: %w", meta["step"], ErrFormat)
	}
	if err := fill(m, o.m, firstMoment, arrays); err != nil {
		return nil, err
	}
	return o, fill(m, o.v, secondMoment, arrays)
}

// WriteDir writes files into dir, each by a rename so that none is seen half written.
func WriteDir(dir string, files map[string][]byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("tiny: write policy: %w", err)
	}
	for path, b := range files {
		if !filepath.IsLocal(path) {
			return fmt.Errorf("tiny: write policy: path %q leaves the directory: %w", path, ErrFormat)
		}
		to := filepath.Join(dir, filepath.FromSlash(path))
		if err := os.WriteFile(to+".partial", b, 0o644); err != nil {
			return fmt.Errorf("tiny: write policy: %w", err)
		}
		if err := os.Rename(to+".partial", to); err != nil {
			return fmt.Errorf("tiny: write policy: %w", err)
		}
	}
	return nil
}

// ReadDir reads a policy's files from a Hugging Face directory. The tokenizer's
// and the optimizer's are read when there.
func ReadDir(dir string) (map[string][]byte, error) {
	files := make(map[string][]byte)
	for _, f := range []struct {
		path string
		must bool
	}{
		{ConfigFile, true},
		{WeightsFile, true},
		{TokenizerFile, false},
		{"tokenizer_config.json", false},
		{"special_tokens_map.json", false},
		{"generation_config.json", false},
		{OptimizerFile, false},
	} {
		b, err := os.ReadFile(filepath.Join(dir, f.path))
		switch {
		case err == nil:
			files[f.path] = b
		case !errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("tiny: read policy: %w", err)
		case f.must:
			return nil, fmt.Errorf("tiny: read policy: %s has no %s: %w", dir, f.path, ErrMissing)
		}
	}
	return files, nil
}

// OpenTokenizer returns the tokenizer of a policy's files.
func OpenTokenizer(files map[string][]byte, context int) (*Tokenizer, error) {
	b, ok := files[TokenizerFile]
	if !ok {
		return nil, fmt.Errorf("tiny: open tokenizer: %s: %w", TokenizerFile, ErrMissing)
	}
	return ParseTokenizer(b, context)
}
