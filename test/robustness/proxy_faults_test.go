package robustness

import (
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// echo serves connections that send back what they get, through a proxy before a node called n1.
func echo(t *testing.T, n *network) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); _, _ = io.Copy(c, c) }()
		}
	}()
	p, err := newProxy(n, "n1", "127.0.0.1:0", l.Addr().String(), func(inode uint64) string {
		if hasSocket(os.Getpid(), inode) {
			return "me"
		}
		return "client"
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.close()); require.NoError(t, l.Close()); <-done })
	return p
}

// ask sends a word and reports whether it came back in time.
func ask(t *testing.T, c net.Conn, limit time.Duration) error {
	t.Helper()
	require.NoError(t, c.SetDeadline(time.Now().Add(limit)))
	if _, err := c.Write([]byte("word")); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 4))
	return err
}

func TestProxy(t *testing.T) {
	const short, long = 100 * time.Millisecond, 5 * time.Second
	dial := func(p *proxy) net.Conn {
		c, err := net.Dial("tcp", p.address())
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	for name, f := range map[string]func(t *testing.T, n *network, p *proxy, c net.Conn){
		"well": func(t *testing.T, _ *network, _ *proxy, c net.Conn) {
			require.NoError(t, ask(t, c, long))
		},
		"cut to the node, and healed": func(t *testing.T, n *network, _ *proxy, c net.Conn) {
			require.NoError(t, ask(t, c, long))
			n.set("me", "n1", flow{cut: true})
			require.ErrorIs(t, ask(t, c, short), os.ErrDeadlineExceeded)
			n.heal()
			require.NoError(t, c.SetDeadline(time.Now().Add(long)))
			_, err := io.ReadFull(c, make([]byte, 4))
			require.NoError(t, err, "what was sent meanwhile arrives")
		},
		"cut from the node": func(t *testing.T, n *network, _ *proxy, c net.Conn) {
			require.NoError(t, ask(t, c, long))
			n.set("n1", "*", flow{cut: true})
			require.ErrorIs(t, ask(t, c, short), os.ErrDeadlineExceeded)
		},
		"cut from others only": func(t *testing.T, n *network, _ *proxy, c net.Conn) {
			n.set("client", "n1", flow{cut: true})
			require.NoError(t, ask(t, c, long))
		},
		"no new connection through a cut": func(t *testing.T, n *network, p *proxy, _ net.Conn) {
			n.set("n1", "me", flow{cut: true})
			require.ErrorIs(t, ask(t, dial(p), short), os.ErrDeadlineExceeded)
		},
		"delay": func(t *testing.T, n *network, _ *proxy, c net.Conn) {
			n.set("me", "n1", flow{delay: 200 * time.Millisecond})
			began := time.Now()
			require.NoError(t, ask(t, c, long))
			require.GreaterOrEqual(t, time.Since(began), 200*time.Millisecond)
		},
		"reset": func(t *testing.T, n *network, _ *proxy, c net.Conn) {
			require.NoError(t, ask(t, c, long))
			n.set("*", "*", flow{reset: 1})
			err := ask(t, c, long)
			require.Error(t, err)
			require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
		},
		"broken once": func(t *testing.T, _ *network, p *proxy, c net.Conn) {
			require.NoError(t, ask(t, c, long))
			p.breakAll()
			require.Error(t, ask(t, c, long))
			require.NoError(t, ask(t, dial(p), long))
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(1)
			p := echo(t, n)
			f(t, n, p, dial(p))
		})
	}
}
