package experiment

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestQuantities(t *testing.T) {
	var d Duration
	for text, want := range map[string]string{"60s": "1m", "1h0m0s": "1h", "1h30m": "1h30m", "90s": "1m30s", "1.5s": "1.5s", "10m": "10m", "20s": "20s", "1h0m5s": "1h0m5s"} {
		require.NoError(t, d.UnmarshalText([]byte(text)))
		require.Equal(t, want, d.String())
		back, err := time.ParseDuration(d.String())
		require.NoError(t, err)
		require.Equal(t, d.Duration, back)
	}
	for _, bad := range []string{"", "0s", "-1s", "5", "1d", "s"} {
		require.Error(t, d.UnmarshalText([]byte(bad)), bad)
	}

	var s Size
	for text, want := range map[string]string{"1024Ki": "1Mi", "1025Ki": "1025Ki", "1Gi": "1Gi", "1536Mi": "1536Mi", "8589934591Gi": "8589934591Gi"} {
		require.NoError(t, s.UnmarshalText([]byte(text)))
		require.Equal(t, want, s.String())
	}
	for _, bad := range []string{"", "0Mi", "-1Mi", "1", "1M", "1MiB", "1.5Gi", " 1Gi", "8589934592Gi", "99999999999999999999Ki"} {
		require.Error(t, s.UnmarshalText([]byte(bad)), bad)
	}

	var c CPU
	for text, want := range map[string]string{"1": "1", "0.5": "500m", "1.250": "1250m", "2000m": "2", "0.001": "1m"} {
		require.NoError(t, c.UnmarshalText([]byte(text)))
		require.Equal(t, want, c.String())
	}
	for _, bad := range []string{"", "0", "0.0", "-1", "1.2345", "m", "0m", "1e3", "99999999999"} {
		require.Error(t, c.UnmarshalText([]byte(bad)), bad)
	}
}

func TestNearest(t *testing.T) {
	words := []string{"max", "maxTurns", "groupSize", "environment"}
	require.Equal(t, "groupSize", nearest("GROUPSIZE", words))
	require.Equal(t, "environment", nearest("enviroment", words))
	require.Equal(t, "max", nearest("mxa", words))
	require.Empty(t, nearest("kubernetes", words))
	require.Empty(t, nearest("", words))
	require.Equal(t, 1, distance("ab", "ba"))
	require.Equal(t, 3, distance("kitten", "sitting"))
}
