package fsm

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	hclog "github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// shadow is a log beside a list of what it must hold.
type shadow struct {
	t     *testing.T
	path  string
	d     *Dir
	log   *Log
	first uint64
	terms []uint64 // of entry first, first+1, …
	term  uint64
}

func newShadow(t *testing.T) *shadow {
	s := &shadow{t: t, path: t.TempDir(), first: 1, term: 1}
	s.d = create(t, s.path)
	s.open()
	return s
}

func (s *shadow) open() {
	s.t.Helper()
	var err error
	s.log, err = s.d.OpenLog(hclog.NewNullLogger(), smallSegment)
	require.NoError(s.t, err)
}

func (s *shadow) last() uint64 { return s.first + uint64(len(s.terms)) - 1 }

// entry is about an eighth of a segment; it says which index and term it is of.
func (s *shadow) entry(index, term uint64) *raft.Log {
	l := command(s.t, index, register(index, fmt.Sprintf("%d-of-term-%d-%s", index, term, strings.Repeat("x", 8000))))
	l.Term = term
	return l
}

func (s *shadow) store(n int) {
	s.t.Helper()
	var batch []*raft.Log
	for range n {
		s.terms = append(s.terms, s.term)
		batch = append(batch, s.entry(s.last(), s.term))
	}
	require.NoError(s.t, s.log.StoreLogs(batch))
}

// cut deletes the tail from index on, as a follower does whose entries conflict with the leader's.
func (s *shadow) cut(from uint64) {
	s.t.Helper()
	require.NoError(s.t, s.log.DeleteRange(from, s.last()))
	s.terms = s.terms[:from-s.first]
	s.term++
}

// compact deletes the head up to index.
func (s *shadow) compact(to uint64) {
	s.t.Helper()
	require.NoError(s.t, s.log.DeleteRange(s.first, to))
	s.terms = s.terms[to+1-s.first:]
	s.first = to + 1
}

// check compares every entry, as it is read while running.
func (s *shadow) check() {
	s.t.Helper()
	first, err := s.log.FirstIndex()
	require.NoError(s.t, err)
	last, err := s.log.LastIndex()
	require.NoError(s.t, err)
	if len(s.terms) == 0 {
		require.Zero(s.t, last)
		return
	}
	require.Equal(s.t, [2]uint64{s.first, s.last()}, [2]uint64{first, last})
	for i, term := range s.terms {
		index := s.first + uint64(i)
		var l raft.Log
		require.NoError(s.t, s.log.GetLog(index, &l), "entry %d of %d to %d", index, first, last)
		require.Equal(s.t, [2]uint64{index, term}, [2]uint64{l.Index, l.Term})
		require.Equal(s.t, s.entry(index, term).Data, l.Data)
	}
	var l raft.Log
	require.ErrorIs(s.t, s.log.GetLog(last+1, &l), raft.ErrLogNotFound)
	require.NoError(s.t, CheckLog(s.log, s.first-1))
}

// restart closes in order, reads the directory as the offline reader does, and opens it again.
func (s *shadow) restart() {
	s.t.Helper()
	require.NoError(s.t, s.log.Close())
	if s.first == 1 {
		require.NoError(s.t, s.d.Close())
		_, err := Open(s.path)
		require.NoError(s.t, err)
		s.d = create(s.t, s.path)
	}
	s.open()
	s.check()
}

func (s *shadow) close() {
	s.t.Helper()
	require.NoError(s.t, s.log.Close())
	require.NoError(s.t, s.d.Close())
}

// A follower that gave up a part of its tail starts again, whichever part it
// was: raft-wal v0.4.0 seals the segment without an index and reads nothing of
// it after a restart.
func TestRaftWal31_TailTruncation(t *testing.T) {
	for name, c := range map[string]struct {
		entries int
		from    func(s *shadow) uint64
	}{
		"one entry":                     {5, func(s *shadow) uint64 { return s.last() }},
		"most of the only segment":      {5, func(s *shadow) uint64 { return 2 }},
		"one entry of several segments": {20, func(s *shadow) uint64 { return s.last() }},
		"the tail segment":              {20, func(s *shadow) uint64 { return s.base(1) }},
		"the tail segment and one more": {20, func(s *shadow) uint64 { return s.base(1) - 1 }},
		"exactly two segments":          {20, func(s *shadow) uint64 { return s.base(2) }},
		"within the first of several":   {30, func(s *shadow) uint64 { return 3 }},
		"all but the first":             {30, func(s *shadow) uint64 { return 2 }},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShadow(t)
			for range c.entries {
				s.store(1)
			}
			s.rotated()
			s.cut(c.from(s))
			s.check()
			s.restart()
			s.restart() // nothing is only right once
			s.store(2)
			s.check()
			s.restart()
			s.cut(s.last()) // again, in the segment made after the first time
			s.restart()
			s.store(20)
			s.restart()
			s.close()
		})
	}
}

// rotated waits until a rotation that was begun has ended: an append does.
func (s *shadow) rotated() {
	s.t.Helper()
	s.store(1)
	s.check()
}

// base returns the first index of a segment, counted from the tail, which is 1.
func (s *shadow) base(fromEnd int) uint64 {
	s.t.Helper()
	names := segments(s.t, s.path)
	require.GreaterOrEqual(s.t, len(names), fromEnd)
	base, _, _ := strings.Cut(filepath.Base(names[len(names)-fromEnd]), "-")
	index, err := strconv.ParseUint(base, 10, 64)
	require.NoError(s.t, err)
	return index
}

// A truncation may come while the log still makes its next segment; the log
// lets that end first.
func TestRaftWal_TruncationDuringRotation(t *testing.T) {
	for name, act := range map[string]func(s *shadow){
		"tail":  func(s *shadow) { s.cut(s.last() - 2) },
		"whole": func(s *shadow) { s.compact(s.last()) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newShadow(t)
			for range 10 {
				s.store(9) // fills a segment
				act(s)
				s.store(1)
				s.check()
			}
			s.restart()
			s.store(3)
			s.restart()
			s.close()
		})
	}
}

// Any order of appends, truncations at both ends and restarts leaves exactly
// what should be there.
func TestLogTruncatedAtRandom(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	s := newShadow(t)
	for range 150 {
		n := uint64(len(s.terms))
		switch {
		case n == 0 || r.IntN(2) == 0:
			s.store(1 + r.IntN(12))
		case r.IntN(2) == 0 && n > 1:
			s.cut(s.first + 1 + r.Uint64N(n-1))
		case r.IntN(3) == 0:
			s.compact(s.first + r.Uint64N(n))
		case r.IntN(2) == 0:
			s.restart()
		}
	}
	s.restart()
	s.close()
}
