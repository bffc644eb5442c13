package batch

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// run starts a batcher in a bubble and returns it, its batches and a stop.
func run(idle *atomic.Bool) (*Batcher[int], func() [][]int, func()) {
	var mu sync.Mutex
	var got [][]int
	b := New(Config{Period: time.Second, Size: 10, Idle: idle.Load}, func(_ context.Context, items []int) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, items)
	})
	var wg sync.WaitGroup
	wg.Go(func() { b.Run(context.Background()) })
	return b, func() [][]int {
			mu.Lock()
			defer mu.Unlock()
			return got
		}, func() {
			b.Close()
			wg.Wait()
		}
}

func TestBatchClosesByTimeSizeIdleAndClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var idle atomic.Bool
		b, got, stop := run(&idle)
		b.Add(1, 1)
		b.Add(2, 1)
		time.Sleep(999 * time.Millisecond)
		synctest.Wait()
		require.Empty(t, got(), "nothing closes before the period")
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, [][]int{{1, 2}}, got(), "the oldest has waited its period")
		b.Add(3, 10)
		synctest.Wait()
		require.Equal(t, [][]int{{1, 2}, {3}}, got(), "at its size at once")
		b.Add(4, 1)
		synctest.Wait()
		require.Len(t, got(), 2)
		idle.Store(true)
		b.Nudge()
		synctest.Wait()
		require.Equal(t, []int{4}, got()[2], "idle: at once")
		idle.Store(false)
		b.Add(5, 1)
		stop()
		require.Equal(t, []int{5}, got()[3], "close flushes")
	})
}

func TestConfigValidate(t *testing.T) {
	require.NoError(t, Config{Period: 1, Size: 1, Idle: func() bool { return false }}.Validate())
	require.Error(t, Config{Size: 1, Idle: func() bool { return false }}.Validate())
	require.Error(t, Config{Period: 1, Size: 1}.Validate())
}
