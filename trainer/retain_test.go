package trainer

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/policy"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	"github.com/rlfleet/rlfleet/store"
	"github.com/rlfleet/rlfleet/store/file"
)

func TestRetention(t *testing.T) {
	s, err := file.Open(t.TempDir())
	require.NoError(t, err)
	put := func(text string) policy.File {
		d, err := store.PutObject(t.Context(), s, "r", blob, []byte(text))
		require.NoError(t, err)
		return policy.File{Path: text, Digest: d}
	}
	shared := put("tokenizer")
	weights := map[int64]policy.File{}
	var versions []*raftlog.PolicyVersion
	for v := range int64(21) {
		weights[v] = put(fmt.Sprintf("weights %d", v))
		if v == 13 {
			weights[v] = weights[10] // a step that changed nothing
		}
		m := policy.Manifest{Version: policy.Version(v), Files: []policy.File{shared, weights[v]}}
		raw, err := m.Encode()
		require.NoError(t, err)
		d, err := store.PutObject(t.Context(), s, "r", blob, raw)
		require.NoError(t, err)
		versions = append(versions, &raftlog.PolicyVersion{Run: "r", Version: v, Manifest: string(d), Full: v == 9 || v == 12})
	}
	has := func(f policy.File) bool {
		_, err := s.Head(t.Context(), store.ObjectKey("r", f.Digest, blob))
		return err == nil
	}
	run := &raftlog.Run{Id: "r", Head: 20, Live: 16}
	r := &Retention{Keep: 3, PinEvery: 5, EvalEvery: 7}
	for range 2 { // again changes nothing
		require.NoError(t, r.Apply(t.Context(), s, run, versions))
		for v, f := range weights {
			kept := v == 0 || v >= 16 || v%5 == 0 || v%7 == 0 || v == 12 || v == 13 // a rollback goes back to 12; the files of 13 are those of 10
			require.Equal(t, kept, has(f), "version %d", v)
		}
		require.True(t, has(shared))
	}
	// A trainer that starts anew goes on where files are gone already.
	require.NoError(t, (&Retention{Keep: 3, PinEvery: 5, EvalEvery: 7}).Apply(t.Context(), s, run, versions))
}
