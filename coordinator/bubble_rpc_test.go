package coordinator

import (
	"context"
	"fmt"
	"net"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
)

// rpcs carries gRPC between nodes and clients of a bubble, in memory.
type rpcs struct {
	mu        sync.Mutex // guards listeners
	listeners map[string]*bufconn.Listener
}

func newRPCs() *rpcs { return &rpcs{listeners: map[string]*bufconn.Listener{}} }

func (r *rpcs) listen(address string) net.Listener {
	l := bufconn.Listen(64 << 10)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listeners[address] = l
	return l
}

// dial reaches who listens at an address at that moment.
func (r *rpcs) dial() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			r.mu.Lock()
			l := r.listeners[address]
			r.mu.Unlock()
			if l == nil {
				return nil, fmt.Errorf("nobody listens at %s", address)
			}
			return l.DialContext(ctx)
		}),
	}
}
