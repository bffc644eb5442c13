package load

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConfig(t *testing.T) {
	require.NoError(t, DefaultConfig(1).Validate())
	err := Config{Rate: -1}.Validate()
	for _, what := range []string{"client", "times", "rate"} {
		require.ErrorContains(t, err, what)
	}
	_, err = Drive(t.Context(), Config{}, nil)
	require.Error(t, err)
}

// Full load: each client does one operation after the other, and what is counted is what ended in time.
func TestFullLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, err := Drive(t.Context(), Config{Clients: 3, Warm: time.Second, For: 10 * time.Second}, func(context.Context, int) (int, error) {
			time.Sleep(300 * time.Millisecond)
			return 16, nil
		})
		require.NoError(t, err)
		require.Equal(t, 3*33, f.Ops) // the first ends at 1.2 s, the last at 10.8 s
		require.Equal(t, 16*f.Ops, f.Units)
		require.InDelta(t, 300, f.P50, 1e-6)
		require.InDelta(t, 300, f.Longest, 1e-6)
		require.InDelta(t, 16*9.9, f.Rate(), 1e-6)
	})
}

// With a rate, an operation that had to wait for the one before it counts from its own moment.
func TestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		f, err := Drive(t.Context(), Config{Clients: 1, For: 9950 * time.Millisecond, Rate: 10}, func(context.Context, int) (int, error) {
			if calls++; calls == 50 {
				time.Sleep(time.Second) // ten others come meanwhile
			} else {
				time.Sleep(time.Millisecond)
			}
			return 1, nil
		})
		require.NoError(t, err)
		require.Equal(t, 100, f.Ops)
		require.InDelta(t, 1, f.P50, 1e-6)
		require.InDelta(t, 1000, f.Longest, 1e-6)
		require.Greater(t, f.P99, 900.0)
	})
}

// The first failure ends all clients and is the one that is returned.
func TestFailure(t *testing.T) {
	broken := errors.New("broken")
	var calls atomic.Int64
	_, err := Drive(t.Context(), DefaultConfig(8), func(ctx context.Context, c int) (int, error) {
		if c == 3 && calls.Add(1) == 5 {
			return 0, broken
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(time.Millisecond):
			return 1, nil
		}
	})
	require.ErrorIs(t, err, broken)
}

func TestQuantile(t *testing.T) {
	all := []time.Duration{5, 1, 4, 2, 3}
	require.Equal(t, time.Duration(3), Quantile(all, 0.5))
	require.Equal(t, time.Duration(5), Quantile(all, 0.99))
	require.Zero(t, Quantile(nil, 0.5))
	require.Equal(t, []time.Duration{5, 1, 4, 2, 3}, all)
}
