package slots

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSlots(t *testing.T) {
	s := New(2)
	require.True(t, s.Idle())
	require.Equal(t, 2, s.Free())
	freed, first, second := s.Freed(), make(chan struct{}), make(chan struct{})
	s.Go(func() { <-first })
	s.Go(func() { <-second })
	require.Zero(t, s.Free())
	select {
	case <-freed:
		t.Fatal("nothing has ended")
	default:
	}
	close(first)
	<-freed
	require.Equal(t, 1, s.Free())
	require.False(t, s.Idle())
	close(second)
	s.Wait()
	require.True(t, s.Idle())
}

func TestTrouble(t *testing.T) {
	var x Trouble
	require.Zero(t, x.Pause())
	x.Failed()
	first := x.Pause()
	require.Positive(t, first)
	x.Failed()
	require.Greater(t, x.Pause(), first)
	for range 10000 {
		x.Failed()
	}
	require.Equal(t, troubleMost, x.Pause())
	x.Passed()
	require.Zero(t, x.Pause())
	require.NoError(t, x.Err())
	one, other := errors.New("one"), errors.New("other")
	x.End(one)
	x.End(other)
	require.Equal(t, one, x.Err())
}
