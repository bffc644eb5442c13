package load

import (
	"fmt"
	"net"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/coordinator"
	"github.com/rlfleet/rlfleet/coordinator/client"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// A fleet's run grants as many episodes as are asked for, each once, and is gone with its nodes afterwards.
func TestFleet(t *testing.T) {
	node, err := coordinator.Open(t.Context(), coordinator.DefaultConfig(t.TempDir()))
	require.NoError(t, err)
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- node.Serve(l) }()
	defer func() {
		require.NoError(t, node.Close())
		require.NoError(t, <-served)
	}()
	var clients []*client.Client
	for i := range 2 {
		c, err := client.New(t.Context(), client.DefaultConfig(fmt.Sprint("c", i), "unix:"+l.Addr().String()))
		require.NoError(t, err)
		defer func() { require.NoError(t, c.Close()) }()
		clients = append(clients, c)
	}
	for _, run := range []string{"r1", "r2"} { // a second one comes beside what the first left
		f, err := NewFleet(t.Context(), run, clients)
		require.NoError(t, err)
		for i := range 20 {
			n, err := f.Grant(t.Context(), i%2, 5)
			require.NoError(t, err)
			require.Equal(t, 5, n)
		}
		s, _, err := node.Read(t.Context())
		require.NoError(t, err)
		require.Equal(t, int64(7), s.Run(run).Counters.GroupsAdmitted, "100 episodes are of seven groups of sixteen")
		require.NoError(t, f.Close(t.Context()))
		s, _, err = node.Read(t.Context())
		require.NoError(t, err)
		require.Equal(t, raftlog.RunState_RUN_STATE_CANCELLED, s.Run(run).State)
		for _, n := range s.Nodes() {
			require.Equal(t, raftlog.NodeState_NODE_STATE_FENCED, n.State, n.Name)
		}
		_, err = f.Grant(t.Context(), 0, 1)
		require.Error(t, err, "its workers are gone")
	}
}
