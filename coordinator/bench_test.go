package coordinator

import (
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// BenchmarkPropose measures committed proposals on a real write-ahead log: one
// node, each client with one proposal on its way.
func BenchmarkPropose(b *testing.B) {
	for _, clients := range []int{1, 64, 1000} {
		b.Run(fmt.Sprint("clients=", clients), func(b *testing.B) {
			n, err := Open(b.Context(), DefaultConfig(b.TempDir()))
			if err != nil {
				b.Fatal(err)
			}
			defer func() {
				if err := n.Close(); err != nil {
					b.Fatal(err)
				}
			}()
			var next atomic.Int64
			var wg sync.WaitGroup
			b.ResetTimer()
			for c := range clients {
				wg.Go(func() {
					id, op := "c"+strconv.Itoa(c), registerOp("h"+strconv.Itoa(c))
					for seq := uint64(1); next.Add(1) <= int64(b.N); seq++ {
						if _, err := n.Propose(b.Context(), &raftlog.Proposal{Client: id, Seq: seq, Op: op}); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "proposals/s")
			b.ReportMetric(float64(b.N)/float64(n.raft.LastIndex()), "proposals/entry")
		})
	}
}
