package lease

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestGuard(t *testing.T) {
	var g Guard
	require.NoError(t, g.Check("a", 3))
	require.NoError(t, g.Check("a", 3), "the holder goes on")
	require.NoError(t, g.Check("a", 5))
	require.ErrorIs(t, g.Check("a", 4), ErrFenced)
	require.NoError(t, g.Check("b", 1), "resources are apart")
	g.Forget("a")
	require.NoError(t, g.Check("a", 1))
}

func TestResourceNamesSortAndSplit(t *testing.T) {
	require.Less(t, Episode("r", 9, 2), Episode("r", 10, 1))
	kind, rest := Split(Verify("r-1", 7, 3))
	require.Equal(t, KindVerify, kind)
	require.Equal(t, Member("r-1", 7, 3), rest)
	kind, rest = Split(Gang("r"))
	require.Equal(t, []string{KindGang, "r"}, []string{kind, rest})
}

func TestStopAtCountsFromSending(t *testing.T) {
	sent := time.Unix(100, 0)
	require.Equal(t, sent.Add(8*time.Second), Token{TTL: 10 * time.Second}.StopAt(sent, 2*time.Second))
}
