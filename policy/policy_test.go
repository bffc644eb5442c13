package policy

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestDigest(t *testing.T) {
	d := DigestOf([]byte("abc"))
	require.Equal(t, Digest("sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"), d)
	require.NoError(t, d.Validate())
	for _, bad := range []Digest{"", "sha256:", d[:70], "md5:" + d[7:], "sha256:BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD"} {
		require.ErrorIs(t, bad.Validate(), ErrDigest, bad)
	}
}

func TestManifestIsCanonical(t *testing.T) {
	a := Manifest{Version: 3, Lineage: 1, Full: true, Files: []File{{Path: "b", Digest: DigestOf(nil)}, {Path: "a", Digest: DigestOf(nil)}}}
	b := a
	b.Files = []File{a.Files[1], a.Files[0]}
	x, err := a.Encode()
	require.NoError(t, err)
	y, err := b.Encode()
	require.NoError(t, err)
	require.Equal(t, x, y, "the order of files does not matter")
	m, err := ParseManifest(x)
	require.NoError(t, err)
	require.Equal(t, Version(3), m.Version)
	_, err = ParseManifest([]byte(`{"files":[{"path":"a","digest":"sha1:1"}]}`))
	require.ErrorIs(t, err, ErrDigest)
}

// T5: a version switch inside a message gives gapless spans.
func TestT5_Spans(t *testing.T) {
	spans := Extend(Extend(Extend(nil, 7, 50), 7, 7), 8, 71)
	require.Equal(t, []Span{{0, 57, 7}, {57, 71, 8}}, spans)
	require.NoError(t, CheckSpans(spans, 128))
	lo, hi, ok := Range(spans)
	require.True(t, ok)
	require.Equal(t, []Version{7, 8}, []Version{lo, hi})
	require.ErrorIs(t, CheckSpans(spans, 127), ErrSpans)
	require.ErrorIs(t, CheckSpans([]Span{{0, 3, 1}, {4, 1, 1}}, 5), ErrSpans, "a gap")
	require.ErrorIs(t, CheckSpans([]Span{{0, 0, 1}}, 0), ErrSpans, "an empty span")
}

func TestExtendAlwaysCovers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var spans []Span
		var total int32
		for _, n := range rapid.SliceOf(rapid.Int32Range(0, 9)).Draw(t, "lengths") {
			spans = Extend(spans, Version(rapid.Int64Range(0, 3).Draw(t, "v")), n)
			total += n
		}
		if err := CheckSpans(spans, total); err != nil {
			t.Fatal(err)
		}
	})
}

// T6: the batch that makes version s from s−1 sees a token of version k with lag (s−1)−k.
func TestT6_Lag(t *testing.T) {
	require.Equal(t, Lag(0), Version(4).Behind(4))
	require.Equal(t, Lag(2), Version(2).Behind(4))
}
