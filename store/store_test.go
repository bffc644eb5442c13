package store_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/policy"
	"github.com/rlfleet/rlfleet/store"
)

func TestCheckKey(t *testing.T) {
	for _, key := range []string{"a", "run-1/objects/sha256/ab/x.steps.arrow", "a/.b", "a/..b", strings.Repeat("a/", 500) + "b"} {
		require.NoError(t, store.CheckKey(key), key)
	}
	for _, key := range []string{"", "/a", "a/", "a//b", "..", "a/..", "a/../b", ".a", "a\x00", "a\x7f", `a\b`, strings.Repeat("a/", 512) + "b"} {
		require.ErrorIs(t, store.CheckKey(key), store.ErrKey, key)
	}
}

func TestKeysAreAllowed(t *testing.T) {
	d := policy.DigestOf([]byte("x"))
	require.NoError(t, store.CheckKey(store.ObjectKey("files-1", d, "steps.arrow")))
	require.Equal(t, "files-1/objects/sha256/2d/2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881.steps.arrow", store.ObjectKey("files-1", d, "steps.arrow"))
	require.Equal(t, "files-1/manifest/00000000000000000042.json", store.ManifestKey("files-1", 42))
	require.NoError(t, store.CheckKey(store.ManifestKey("files-1", 42)))
}
