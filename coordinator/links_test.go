package coordinator

import (
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// A message says that entries are committed only as far as it shows them (Raft, figure 2, step 5).
func TestCommitIndexIsOfEntriesSent(t *testing.T) {
	for name, c := range map[string]struct {
		prev    uint64
		entries int
		commit  uint64
		want    uint64
	}{
		"nothing sent, nothing new":      {60, 0, 60, 60},
		"nothing sent, more committed":   {60, 0, 63, 60},
		"some sent, all committed":       {60, 3, 63, 63},
		"some sent, not yet committed":   {60, 3, 61, 61},
		"some sent, more than those are": {60, 2, 90, 62},
		"a heartbeat":                    {0, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			a := &raft.AppendEntriesRequest{PrevLogEntry: c.prev, LeaderCommitIndex: c.commit, Entries: make([]*raft.Log, c.entries)}
			clamp(a)
			require.Equal(t, c.want, a.LeaderCommitIndex)
		})
	}
}
