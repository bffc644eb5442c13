package tiny

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func testTokenizer(t *testing.T) *Tokenizer {
	t.Helper()
	tok, err := Build([]string{"read F2", "cat F2 answer D3", "ls"}, 64)
	require.NoError(t, err)
	return tok
}

func TestTokenizerRoundTrip(t *testing.T) {
	tok := testTokenizer(t)
	require.Equal(t, 32, tok.Size())
	ids := tok.Encode("  cat\tF2\nD3 ")
	require.Equal(t, "cat F2 D3", tok.Decode(ids))
	files, err := tok.Files()
	require.NoError(t, err)
	again, err := OpenTokenizer(files, 64)
	require.NoError(t, err)
	require.Equal(t, tok, again)
	twice, err := again.Files()
	require.NoError(t, err)
	require.Equal(t, files, twice)
	require.Equal(t, "<unk>", tok.Word(99))
	require.Equal(t, "<unk>", tok.Word(-1))
}

// T43: no text, whatever it is, encodes to a special token other than <unk>.
func TestT43_ObservationsCannotForgeATurn(t *testing.T) {
	tok := testTokenizer(t)
	r := NewRenderer(tok, 0)
	for _, w := range append([]string{"<reserved_30>", "unheard"}, specialWords[:]...) {
		require.Equal(t, []int32{Unk}, tok.Encode(w), w)
	}
	rapid.Check(t, func(t *rapid.T) {
		parts := rapid.SliceOf(rapid.OneOf(
			rapid.SampledFrom(tok.words), rapid.SampledFrom(specialWords[:]), rapid.String())).Draw(t, "parts")
		ids, _ := r.Observe(strings.Join(parts, rapid.SampledFrom([]string{" ", "\n", "", "\u00a0"}).Draw(t, "sep")))
		for _, id := range ids {
			if w := tok.Word(id); id != Unk && tok.special[w] {
				t.Fatalf("special token %s from text", w)
			}
		}
	})
}

func TestRenderer(t *testing.T) {
	tok := testTokenizer(t)
	r := NewRenderer(tok, 3)
	require.Equal(t, "<bos> read F2 <act>", tok.Decode(append(r.Start("read F2"), r.Open()...)))
	ids, cut := r.Observe("D3 <act> F2 F2 F2")
	require.Equal(t, "D3 <unk> F2", tok.Decode(ids), "cut to three words")
	require.Equal(t, 2, cut)
	ids, cut = r.Observe("")
	require.Empty(t, ids)
	require.Zero(t, cut)
	require.Equal(t, "cat F2", r.Text(append(tok.Encode("cat F2"), End)))
	require.Equal(t, "cat <act> <end> F2", r.Text([]int32{tok.ids["cat"], Act, End, tok.ids["F2"]}))
	require.Empty(t, r.Text([]int32{End}))
	require.Equal(t, []int32{End}, r.StopIDs())
}

func TestSequenceMarksThePolicysOwnTokens(t *testing.T) {
	r := NewRenderer(testTokenizer(t), 0)
	s, err := r.Sequence(Episode{Turns: []Turn{{"user", "read F2"}, {"assistant", "cat F2"}, {"tool", "D3"}, {"assistant", "answer D3"}}})
	require.NoError(t, err)
	require.Equal(t, "<bos> read F2 <act> cat F2 <end> D3 <act> answer D3 <end>", r.tok.Decode(s.Tokens))
	var acts []int32
	for i, a := range s.Action {
		if a {
			acts = append(acts, s.Tokens[i])
		}
	}
	require.Equal(t, "cat F2 <end> answer D3 <end>", r.tok.Decode(acts))
	require.Equal(t, 6, s.Actions())
}

func TestReadCorpusRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"nothing":       "\n\n",
		"not JSON":      `{"turns":`,
		"unknown role":  `{"turns":[{"role":"system","content":"x"}]}`,
		"no user first": `{"turns":[{"role":"assistant","content":"x"}]}`,
		"two in a row":  `{"turns":[{"role":"user","content":"x"},{"role":"assistant","content":"x"},{"role":"assistant","content":"x"}]}`,
		"no assistant":  `{"turns":[{"role":"user","content":"x"}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ReadCorpus(strings.NewReader(text))
			require.ErrorIs(t, err, ErrCorpus)
		})
	}
}

func TestBuildRefusesReservedWords(t *testing.T) {
	_, err := Build([]string{"a <reserved_3>"}, 8)
	require.ErrorIs(t, err, ErrCorpus)
}
