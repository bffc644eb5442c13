package coordinator

import (
	"testing"

	"github.com/hashicorp/raft"
	"github.com/hashicorp/raft-wal/verifier"
	"github.com/stretchr/testify/require"
)

func entries(first, last, term uint64) []*raft.Log {
	var out []*raft.Log
	for i := first; i <= last; i++ {
		out = append(out, &raft.Log{Index: i, Term: term, Type: raft.LogCommand, Data: []byte{byte(i)}})
	}
	return out
}

// A newer leader takes entries back, which is no fault of the disk: neither on
// this node, nor on another that compares with its sums when it leads.
func TestVerifierForgetsWhatWasTakenBack(t *testing.T) {
	for name, take := range map[string]func(t *testing.T, l raft.LogStore){
		"a few": func(t *testing.T, l raft.LogStore) {
			require.NoError(t, l.StoreLogs(entries(1, 30, 1)))
			require.NoError(t, l.DeleteRange(21, 30))
			require.NoError(t, l.StoreLogs(entries(21, verifyEvery-1, 2)))
		},
		"all, for a snapshot": func(t *testing.T, l raft.LogStore) {
			require.NoError(t, l.StoreLogs(entries(1, 30, 1)))
			require.NoError(t, l.DeleteRange(1, 30))
			require.NoError(t, l.StoreLogs(entries(500, verifyEvery-1, 2)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			reports := make(chan verifier.VerificationReport, 4)
			here := newVerified(newMemLog(), func(r verifier.VerificationReport) { reports <- r })
			there := newVerified(newMemLog(), func(r verifier.VerificationReport) { reports <- r })
			take(t, here)
			first, err := here.FirstIndex()
			require.NoError(t, err)
			require.NoError(t, there.StoreLogs(entries(first, 20, 1)))
			require.NoError(t, there.StoreLogs(entries(max(first, 21), verifyEvery-1, 2)))

			// Either may lead when the entry with the sum comes.
			for i, order := range [][]*verified{{here, there}, {there, here}} {
				to := verifyEvery * uint64(i+1)
				last := entries(to, to, 2)
				for _, l := range order {
					require.NoError(t, l.StoreLogs(last))
					r := <-reports
					_, mismatch := r.Err.(verifier.ErrChecksumMismatch) //nolint:errorlint // never wrapped
					require.False(t, mismatch, "%v", r.Err)
				}
				for _, l := range order {
					require.NoError(t, l.StoreLogs(entries(to+1, to+verifyEvery-1, 2)))
				}
			}
			require.NoError(t, here.Close())
			require.NoError(t, there.Close())
		})
	}
}

// Bytes that come back changed are still found after entries were taken back.
func TestVerifierStillFindsBadBytes(t *testing.T) {
	reports := make(chan verifier.VerificationReport, 4)
	log := newMemLog()
	v := newVerified(log, func(r verifier.VerificationReport) { reports <- r })
	require.NoError(t, v.StoreLogs(entries(1, 30, 1)))
	require.NoError(t, v.DeleteRange(21, 30))
	require.NoError(t, v.StoreLogs(entries(21, verifyEvery-1, 2)))
	log.log[100].Data = []byte("changed")
	require.NoError(t, v.StoreLogs(entries(verifyEvery, verifyEvery, 2)))
	r := <-reports
	_, mismatch := r.Err.(verifier.ErrChecksumMismatch) //nolint:errorlint // never wrapped
	require.True(t, mismatch, "%v", r.Err)
	require.NoError(t, v.Close())
}
