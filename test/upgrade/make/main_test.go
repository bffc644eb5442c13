package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The program makes today's data, so a release will find it in order: an
// operation or a record that came in since and is not in the data fails here.
func TestMakesTodaysData(t *testing.T) {
	dir := t.TempDir()
	data, dumped, messages := filepath.Join(dir, "data"), filepath.Join(dir, "dump.gz"), filepath.Join(dir, "protos.gz")
	require.NoError(t, run(t.Context(), []string{"fill", data}))
	require.NoError(t, run(t.Context(), []string{"dump", data, dumped}))
	require.NoError(t, run(t.Context(), []string{"protos", messages}))
	for _, f := range []string{dumped, messages} {
		info, err := os.Stat(f)
		require.NoError(t, err)
		require.Greater(t, info.Size(), int64(1000))
	}
	require.ErrorContains(t, run(t.Context(), []string{"fill"}), "usage")
}
