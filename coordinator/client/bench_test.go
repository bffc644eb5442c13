package client

import (
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rlfleet/rlfleet/coordinator"
	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// BenchmarkRegister measures operations end to end: callers of one client, gRPC
// over a Unix socket, queue, write-ahead log, state machine and back.
func BenchmarkRegister(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprint("callers=", callers), func(b *testing.B) {
			n, err := coordinator.Open(b.Context(), coordinator.DefaultConfig(b.TempDir()))
			if err != nil {
				b.Fatal(err)
			}
			l, err := net.Listen("unix", filepath.Join(b.TempDir(), "s"))
			if err != nil {
				b.Fatal(err)
			}
			served := make(chan error, 1)
			go func() { served <- n.Serve(l) }()
			cfg := DefaultConfig("bench", "unix:"+l.Addr().String())
			cfg.Lanes = callers
			c, err := New(b.Context(), cfg)
			if err != nil {
				b.Fatal(err)
			}
			var next atomic.Int64
			var wg sync.WaitGroup
			b.ResetTimer()
			for i := range callers {
				wg.Go(func() {
					r := &raftlog.Register{Node: &raftlog.NodeRef{Role: state.RoleHost, Name: fmt.Sprint("h", i), Incarnation: 1}}
					for next.Add(1) <= int64(b.N) {
						if _, err := c.Register(b.Context(), r); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "operations/s")
			for _, err := range []error{c.Close(), n.Close(), <-served} {
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
