package tiny

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// plain is a model as read from the format's description alone: no code of this
// package, no shared layout, float64 loops.
type plain struct {
	cfg map[string]any
	w   map[string][]float64
}

func readPlain(t *testing.T, files map[string][]byte) plain {
	t.Helper()
	p := plain{w: map[string][]float64{}}
	require.NoError(t, json.Unmarshal(files["config.json"], &p.cfg))
	b := files["model.safetensors"]
	n := binary.LittleEndian.Uint64(b[:8])
	require.Zero(t, n%8)
	var header map[string]struct {
		Dtype   string `json:"dtype"`
		Shape   []int  `json:"shape"`
		Offsets []int  `json:"data_offsets"`
	}
	require.NoError(t, json.Unmarshal([]byte(strings.ReplaceAll(string(b[8:8+n]), `"__metadata__":{"format":"pt"},`, "")), &header))
	data := b[8+n:]
	for name, h := range header {
		require.Equal(t, "F32", h.Dtype)
		for at := h.Offsets[0]; at < h.Offsets[1]; at += 4 {
			p.w[name] = append(p.w[name], float64(math.Float32frombits(binary.LittleEndian.Uint32(data[at:]))))
		}
	}
	return p
}

func (p plain) int(key string) int { return int(p.cfg[key].(float64)) }

func matvec(w, x []float64) []float64 {
	out := make([]float64, len(w)/len(x))
	for i := range out {
		for j, v := range x {
			out[i] += w[i*len(x)+j] * v
		}
	}
	return out
}

func (p plain) norm(x []float64, name string) []float64 {
	var s float64
	for _, v := range x {
		s += v * v
	}
	s = 1 / math.Sqrt(s/float64(len(x))+p.cfg["rms_norm_eps"].(float64))
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = v * s * p.w[name][i]
	}
	return out
}

// rotate applies RoPE to one head.
func (p plain) rotate(x []float64, pos int) []float64 {
	h := len(x) / 2
	out := make([]float64, len(x))
	for i := range h {
		a := float64(pos) * math.Pow(p.cfg["rope_theta"].(float64), -2*float64(i)/float64(len(x)))
		out[i] = x[i]*math.Cos(a) - x[i+h]*math.Sin(a)
		out[i+h] = x[i+h]*math.Cos(a) + x[i]*math.Sin(a)
	}
	return out
}

// logits returns the next-token logits after every token.
func (p plain) logits(tokens []int32) [][]float64 {
	d, heads, kvh, hd := p.int("hidden_size"), p.int("num_attention_heads"), p.int("num_key_value_heads"), p.int("head_dim")
	x := make([][]float64, len(tokens))
	for t, id := range tokens {
		x[t] = append([]float64(nil), p.w["model.embed_tokens.weight"][int(id)*d:(int(id)+1)*d]...)
	}
	for l := range p.int("num_hidden_layers") {
		n := fmt.Sprintf("model.layers.%d.", l)
		keys, values := make([][]float64, len(x)), make([][]float64, len(x))
		for t := range x {
			h := p.norm(x[t], n+"input_layernorm.weight")
			q := matvec(p.w[n+"self_attn.q_proj.weight"], h)
			keys[t] = matvec(p.w[n+"self_attn.k_proj.weight"], h)
			values[t] = matvec(p.w[n+"self_attn.v_proj.weight"], h)
			for k := range kvh {
				copy(keys[t][k*hd:], p.rotate(keys[t][k*hd:(k+1)*hd], t))
			}
			out := make([]float64, heads*hd)
			for a := range heads {
				qr, kv := p.rotate(q[a*hd:(a+1)*hd], t), a/(heads/kvh)*hd
				var sum float64
				for j := range t + 1 {
					var s float64
					for i, v := range qr {
						s += v * keys[j][kv+i]
					}
					e := math.Exp(s / math.Sqrt(float64(hd)))
					sum += e
					for i := range hd {
						out[a*hd+i] += e * values[j][kv+i]
					}
				}
				for i := range hd {
					out[a*hd+i] /= sum
				}
			}
			for i, v := range matvec(p.w[n+"self_attn.o_proj.weight"], out) {
				x[t][i] += v
			}
			h = p.norm(x[t], n+"post_attention_layernorm.weight")
			g, u := matvec(p.w[n+"mlp.gate_proj.weight"], h), matvec(p.w[n+"mlp.up_proj.weight"], h)
			for i, v := range g {
				g[i] = v / (1 + math.Exp(-v)) * u[i]
			}
			for i, v := range matvec(p.w[n+"mlp.down_proj.weight"], g) {
				x[t][i] += v
			}
		}
	}
	head := p.w["lm_head.weight"]
	if p.cfg["tie_word_embeddings"].(bool) {
		head = p.w["model.embed_tokens.weight"]
	}
	out := make([][]float64, len(x))
	for t := range x {
		out[t] = matvec(head, p.norm(x[t], "model.norm.weight"))
	}
	return out
}

// ours returns the logits after every token by this package.
func ours(t *testing.T, m *Model, tokens []int32) [][]float32 {
	t.Helper()
	d, cache := &Decoder{}, NewCache(m)
	out := make([][]float32, len(tokens))
	for i := range tokens {
		l, err := d.Extend(m, []Extension{{Cache: cache, Tokens: tokens[i : i+1], Want: true}})
		require.NoError(t, err)
		out[i] = append([]float32(nil), l[0]...)
	}
	return out
}

// trained returns a model that is not in its initial state.
func trained(t *testing.T, c Config) (*Model, *AdamW) {
	t.Helper()
	m, err := New(c, 21)
	require.NoError(t, err)
	b, opt := NewBatcher(m), NewAdamW(m, DefaultAdamW())
	for step := range 5 {
		g, err := b.Gradient(randomBatch(rand.New(rand.NewPCG(2, uint64(step))), 16, 30, c.VocabSize), value(nil))
		require.NoError(t, err)
		ClipNorm(g, 1)
		opt.Step(m, g, 2e-2)
	}
	return m, opt
}

func TestSavedPolicyReadByTheFormatAlone(t *testing.T) {
	for name, c := range shapes() {
		t.Run(name, func(t *testing.T) {
			m, _ := trained(t, c)
			files, err := m.Files()
			require.NoError(t, err)
			tokens := full(1, 40, c.VocabSize)[0].Tokens
			want, got := readPlain(t, files).logits(tokens), ours(t, m, tokens)
			for i := range want {
				for v := range want[i] {
					require.InDelta(t, want[i][v], float64(got[i][v]), 1e-4)
				}
			}
		})
	}
}

func TestFilesRoundTrip(t *testing.T) {
	for name, c := range shapes() {
		t.Run(name, func(t *testing.T) {
			m, opt := trained(t, c)
			files, err := m.Files()
			require.NoError(t, err)
			state, err := opt.Files(m)
			require.NoError(t, err)
			dir := t.TempDir()
			require.NoError(t, WriteDir(dir, files))
			require.NoError(t, WriteDir(dir, state))
			read, err := ReadDir(dir)
			require.NoError(t, err)
			again, err := Open(read)
			require.NoError(t, err)
			require.Equal(t, m, again)
			optAgain, err := OpenAdamW(read, again, DefaultAdamW())
			require.NoError(t, err)
			require.Equal(t, opt, optAgain)
			twice, err := again.Files()
			require.NoError(t, err)
			require.Equal(t, files, twice, "equal content, equal bytes")
		})
	}
}

func TestOpenRefusesDamage(t *testing.T) {
	m, _ := trained(t, DefaultConfig(32))
	good, err := m.Files()
	require.NoError(t, err)
	for name, c := range map[string]struct {
		change func(map[string][]byte)
		kind   error
	}{
		"no config":        {func(f map[string][]byte) { delete(f, ConfigFile) }, ErrMissing},
		"no weights":       {func(f map[string][]byte) { delete(f, WeightsFile) }, ErrMissing},
		"cut short":        {func(f map[string][]byte) { f[WeightsFile] = f[WeightsFile][:len(f[WeightsFile])-4] }, ErrFormat},
		"bytes at the end": {func(f map[string][]byte) { f[WeightsFile] = append(f[WeightsFile], 0, 0, 0, 0) }, ErrFormat},
		"header too long":  {func(f map[string][]byte) { f[WeightsFile] = []byte("\xff\xff\xff\xff\xff\xff\xff\xff{}") }, ErrFormat},
		"empty":            {func(f map[string][]byte) { f[WeightsFile] = nil }, ErrFormat},
		"other shape": {func(f map[string][]byte) {
			f[ConfigFile] = []byte(strings.Replace(string(f[ConfigFile]), `"intermediate_size": 64`, `"intermediate_size": 96`, 1))
		}, ErrFormat},
		"fewer layers": {func(f map[string][]byte) {
			f[ConfigFile] = []byte(strings.Replace(string(f[ConfigFile]), `"num_hidden_layers": 2`, `"num_hidden_layers": 1`, 1))
		}, ErrFormat},
		"not a number": {func(f map[string][]byte) {
			copy(f[WeightsFile][len(f[WeightsFile])-4:], "\x00\x00\xc0\x7f")
		}, ErrNotFinite},
		"another family": {func(f map[string][]byte) {
			f[ConfigFile] = []byte(strings.Replace(string(f[ConfigFile]), `"llama"`, `"gpt2"`, 1))
		}, ErrConfig},
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string][]byte{}
			for p, b := range good {
				files[p] = append([]byte(nil), b...)
			}
			c.change(files)
			_, err := Open(files)
			require.ErrorIs(t, err, c.kind)
		})
	}
}

func TestHalfPrecisionIsRead(t *testing.T) {
	header := `{"a":{"dtype":"F16","shape":[4],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[2],"data_offsets":[8,12]}}`
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	b = append(b, header...)
	for _, h := range []uint16{0x3c00, 0xc100, 0x0001, 0x7c00, 0x3f80, 0xc040} {
		b = binary.LittleEndian.AppendUint16(b, h)
	}
	got, _, err := ParseSafetensors(b)
	require.NoError(t, err)
	require.Equal(t, []float32{1, -2.5, float32(math.Ldexp(1, -24)), float32(math.Inf(1))}, got["a"].Data)
	require.Equal(t, []float32{1, -3}, got["b"].Data)
}

const transformersScript = `
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
m = AutoModelForCausalLM.from_pretrained(sys.argv[1], torch_dtype=torch.float32).eval()
t = AutoTokenizer.from_pretrained(sys.argv[1])
ids = json.loads(sys.argv[2])
with torch.no_grad():
    logits = m(torch.tensor([ids])).logits[0]
print(json.dumps({"logits": logits.tolist(), "ids": t.encode("cat F2 unheard  D3", add_special_tokens=False),
  "text": t.decode(ids[:4]), "vocab": len(t), "special": [t.bos_token_id, t.eos_token_id, t.pad_token_id, t.unk_token_id]}))
`

func TestSavedPolicyOpensInTransformers(t *testing.T) {
	python := os.Getenv("RLFLEET_PYTHON")
	if python == "" {
		python = "python3"
	}
	if out, err := exec.Command(python, "-c", "import torch, transformers").CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: %s has no torch and transformers, so that loading there was not checked: %s", python, out)
	}
	tok := testTokenizer(t)
	for name, c := range shapes() {
		if c.VocabSize != tok.Size() {
			c.VocabSize = tok.Size()
		}
		t.Run(name, func(t *testing.T) {
			m, _ := trained(t, c)
			dir := t.TempDir()
			files, err := m.Files()
			require.NoError(t, err)
			require.NoError(t, WriteDir(dir, files))
			words, err := tok.Files()
			require.NoError(t, err)
			require.NoError(t, WriteDir(dir, words))
			r := NewRenderer(tok, 0)
			ids := append(append(r.Start("read F2"), r.Open()...), full(1, 30, tok.Size())[0].Tokens...)
			arg, err := json.Marshal(ids)
			require.NoError(t, err)
			cmd := exec.Command(python, "-c", transformersScript, dir, string(arg))
			cmd.Env = append(os.Environ(), "HF_HUB_OFFLINE=1", "HOME="+filepath.Join(dir, "home"))
			var stderr strings.Builder
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			require.NoError(t, err, stderr.String())
			var got struct {
				Logits  [][]float64
				IDs     []int32
				Text    string
				Vocab   int
				Special []int32
			}
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &got))
			mine := ours(t, m, ids)
			for i := range mine {
				for v := range mine[i] {
					require.InDelta(t, got.Logits[i][v], float64(mine[i][v]), 1e-4)
				}
			}
			require.Equal(t, tok.Encode("cat F2 unheard D3"), got.IDs)
			require.Equal(t, "<bos> read F2 <act>", got.Text)
			require.Equal(t, tok.Size(), got.Vocab)
			require.Equal(t, []int32{BOS, End, Pad, Unk}, got.Special)
		})
	}
}
