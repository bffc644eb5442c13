package roles

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/rlfleet/rlfleet/coordinator/client"
)

// CoordinatorDir is the coordinator's data directory below a file storage.
const CoordinatorDir = "coordinator"

// socketName is the coordinator's socket below a file storage, for the commands of this user on this machine.
const socketName = "coordinator.sock"

// near returns a path to a file of dir that fits into a socket's address
// whatever dir's length; it holds while the directory is open.
func near(dir *os.File, name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name)
}

// listenSocket opens a socket below a storage, for this user only. A socket that
// is found there is a leftover: whoever listens is the only one of its name.
func listenSocket(storage, name string) (net.Listener, error) {
	path := filepath.Join(storage, name)
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return nil, fmt.Errorf("roles: listen on %s: %w", path, err)
	}
	d, err := os.Open(storage)
	if err != nil {
		return nil, fmt.Errorf("roles: listen on %s: %w", path, err)
	}
	defer d.Close()
	mask := unix.Umask(0o177) // from its first moment only this user may connect
	l, err := net.Listen("unix", near(d, name))
	unix.Umask(mask)
	if err != nil {
		return nil, fmt.Errorf("roles: listen on %s: %w", path, err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // its path ends with d
	return l, nil
}

// dialSocket connects to a socket below a storage.
func dialSocket(ctx context.Context, storage, name string) (net.Conn, error) {
	d, err := os.Open(storage)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return (&net.Dialer{}).DialContext(ctx, "unix", near(d, name))
}

// throughSocket makes a connection go to a socket below a storage.
func throughSocket(storage, name string) grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		return dialSocket(ctx, storage, name)
	})
}

// Listens reports whether a coordinator runs on a file storage. A socket that a killed one left answers nobody.
func Listens(ctx context.Context, storage string) bool {
	c, err := dialSocket(ctx, storage, socketName)
	if err != nil {
		return false
	}
	return c.Close() == nil
}

// Connect returns a client of the coordinator that runs on a file storage; connections are made when they are used.
func Connect(ctx context.Context, storage, name string) (*client.Client, func() error, error) {
	conn, err := grpc.NewClient("passthrough:///"+socketName, append(client.DialOptions(),
		throughSocket(storage, socketName))...)
	if err != nil {
		return nil, nil, fmt.Errorf("roles: reach the coordinator: %w", err)
	}
	cfg := client.DefaultConfig(name)
	cfg.Conn = conn
	c, err := client.New(ctx, cfg)
	if err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	return c, func() error { return errors.Join(c.Close(), conn.Close()) }, nil
}
