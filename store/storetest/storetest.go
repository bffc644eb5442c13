// Package storetest is the conformance suite of store.ObjectStore: every implementation passes Run.
package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/policy"
	"github.com/rlfleet/rlfleet/store"
)

// creators is how many writers race for one key.
const creators = 32

// Run checks everything the contract says. newStore returns an empty store; it is called once per case.
func Run(t *testing.T, newStore func(t *testing.T) store.ObjectStore) {
	cases := []struct {
		name string
		test func(t *testing.T, s store.ObjectStore)
	}{
		{"round trip", roundTrip},
		{"create only", createOnly},
		{"one of many creators wins", oneWinner},
		{"all creators of one content succeed", sameContent},
		{"readers never see part of an object", wholeOrNothing},
		{"missing objects", missing},
		{"ranges", ranges},
		{"list in key order", list},
		{"list can stop early", listStops},
		{"delete", remove},
		{"hostile keys", hostileKeys},
		{"cancelled context", cancelled},
		{"buffers are not shared", buffers},
		{"content addresses", contentAddresses},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { c.test(t, newStore(t)) })
	}
}

func roundTrip(t *testing.T, s store.ObjectStore) {
	ctx := t.Context()
	for key, data := range map[string][]byte{
		"plain":                   []byte("one"),
		"run/objects/ab/x.arrow":  []byte("two"),
		"run/with space/ünïcode":  []byte("three"),
		"run/empty":               {},
		"run/large":               bytes.Repeat([]byte("0123456789abcdef"), 200_000),
		"run/objects/ab/.hidden":  []byte("a dot inside is allowed"),
		"run/manifest/0001.json":  []byte("{}"),
		"run/manifest/0001.json2": []byte("a key may extend another"),
	} {
		require.NoError(t, s.Put(ctx, key, data), key)
		got, err := s.Get(ctx, key)
		require.NoError(t, err, key)
		require.True(t, bytes.Equal(data, got), key)
		info, err := s.Head(ctx, key)
		require.NoError(t, err, key)
		require.Equal(t, store.Info{Key: key, Size: int64(len(data))}, info)
	}
}

func createOnly(t *testing.T, s store.ObjectStore) {
	ctx := t.Context()
	require.NoError(t, s.Put(ctx, "a/b", []byte("first")))
	require.NoError(t, s.Put(ctx, "a/b", []byte("first")), "the same content again does nothing")
	require.ErrorIs(t, s.Put(ctx, "a/b", []byte("other")), store.ErrExists)
	require.ErrorIs(t, s.Put(ctx, "a/b", nil), store.ErrExists)
	require.ErrorIs(t, s.Put(ctx, "a/b", []byte("first and more")), store.ErrExists)
	got, err := s.Get(ctx, "a/b")
	require.NoError(t, err)
	require.Equal(t, "first", string(got))
}

func oneWinner(t *testing.T, s store.ObjectStore) {
	for round := range 8 {
		key := fmt.Sprintf("race/%d", round)
		errs := race(t, s, key, func(i int) []byte { return fmt.Appendf(nil, "creator %d", i) })
		winner := -1
		for i, err := range errs {
			if err == nil {
				require.Equal(t, -1, winner, "round %d: both %d and %d won", round, winner, i)
				winner = i
				continue
			}
			require.ErrorIs(t, err, store.ErrExists)
		}
		require.NotEqual(t, -1, winner, "round %d: nobody won", round)
		got, err := s.Get(t.Context(), key)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("creator %d", winner), string(got))
	}
}

func sameContent(t *testing.T, s store.ObjectStore) {
	for _, err := range race(t, s, "race/same", func(int) []byte { return []byte("same") }) {
		require.NoError(t, err)
	}
}

// race puts to one key from all creators at once and returns their errors.
func race(t *testing.T, s store.ObjectStore, key string, data func(i int) []byte) []error {
	ctx := t.Context()
	errs := make([]error, creators)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			<-start
			errs[i] = s.Put(ctx, key, data(i))
		})
	}
	close(start)
	wg.Wait()
	return errs
}

func wholeOrNothing(t *testing.T, s store.ObjectStore) {
	ctx := t.Context()
	want := bytes.Repeat([]byte{7}, 1<<20)
	var wg sync.WaitGroup
	var putErr, readErr error
	done := make(chan struct{})
	wg.Go(func() {
		defer close(done)
		for i := range 8 {
			putErr = errors.Join(putErr, s.Put(ctx, fmt.Sprintf("w/%d", i), want))
		}
	})
	wg.Go(func() {
		for {
			for i := range 8 {
				got, err := s.Get(ctx, fmt.Sprintf("w/%d", i))
				if err == nil && !bytes.Equal(got, want) {
					readErr = fmt.Errorf("read %d of %d bytes", len(got), len(want))
				} else if err != nil && !errors.Is(err, store.ErrNotFound) {
					readErr = err
				}
			}
			select {
			case <-done:
				return
			default:
			}
		}
	})
	wg.Wait()
	require.NoError(t, putErr)
	require.NoError(t, readErr)
}

func missing(t *testing.T, s store.ObjectStore) {
	ctx := t.Context()
	require.NoError(t, s.Put(ctx, "dir/object", []byte("x")))
	for _, key := range []string{"none", "dir/none", "dir", "dir/object/below"} {
		_, err := s.Get(ctx, key)
		require.ErrorIs(t, err, store.ErrNotFound, key)
		_, err = s.GetRange(ctx, key, 0, 1)
		require.ErrorIs(t, err, store.ErrNotFound, key)
		_, err = s.Head(ctx, key)
		require.ErrorIs(t, err, store.ErrNotFound, key)
	}
}

func ranges(t *testing.T, s store.ObjectStore) {
	ctx := t.Context()
	require.NoError(t, s.Put(ctx, "r", []byte("0123456789")))
	for _, c := range []struct {
		offset, length int64
		want           string
	}{{0, 10, "0123456789"}, {3, 4, "3456"}, {8, 100, "89"}, {0, 0, ""}, {10, 5, ""}, {50, 5, ""}} {
		got, err := s.GetRange(ctx, "r", c.offset, c.length)
		require.NoError(t, err)
		require.Equal(t, c.want, string(got), "(%d, %d)", c.offset, c.length)
	}
	_, err := s.GetRange(ctx, "r", -1, 5)
	require.Error(t, err)
	_, err = s.GetRange(ctx, "r", 0, -5)
	require.Error(t, err)
}

func list(t *testing.T, s store.ObjectStore) {
	ctx := t.Context()
	require.Empty(t, keys(t, s, ""), "an empty store lists nothing")
	all := []string{"a", "b-c", "b.d", "b/c", "b/c0", "b/d/e", "b0", "m/00000000000000000001.json", "m/00000000000000000002.json", "m/00000000000000000010.json"}
	for _, i := range []int{9, 3, 1, 7, 0, 5, 8, 2, 6, 4} {
		require.NoError(t, s.Put(ctx, all[i], []byte(all[i])))
	}
	require.Equal(t, all, keys(t, s, ""))
	require.Equal(t, []string{"b-c", "b.d", "b/c", "b/c0", "b/d/e", "b0"}, keys(t, s, "b"))
	require.Equal(t, []string{"b/c", "b/c0", "b/d/e"}, keys(t, s, "b/"))
	require.Equal(t, []string{"b/c", "b/c0"}, keys(t, s, "b/c"))
	require.Equal(t, all[7:], keys(t, s, "m/"))
	require.Empty(t, keys(t, s, "none/"))
	require.Empty(t, keys(t, s, "a/"), "an object is no directory")
}

func keys(t *testing.T, s store.ObjectStore, prefix string) []string {
	var out []string
	for info, err := range s.List(t.Context(), prefix) {
		require.NoError(t, err)
		head, err := s.Head(t.Context(), info.Key)
		require.NoError(t, err)
		require.Equal(t, head, info)
		out = append(out, info.Key)
	}
	return out
}

func listStops(t *testing.T, s store.ObjectStore) {
	for _, k := range []string{"a/1", "a/2", "b/1"} {
		require.NoError(t, s.Put(t.Context(), k, nil))
	}
	n := 0
	for _, err := range s.List(t.Context(), "") {
		require.NoError(t, err)
		n++
		break
	}
	require.Equal(t, 1, n)
}

func remove(t *testing.T, s store.ObjectStore) {
	ctx := t.Context()
	require.NoError(t, s.Delete(ctx, "d/none"))
	require.NoError(t, s.Put(ctx, "d/x", []byte("1")))
	require.NoError(t, s.Put(ctx, "d/y", []byte("2")))
	require.NoError(t, s.Delete(ctx, "d/x"))
	require.NoError(t, s.Delete(ctx, "d/x"))
	_, err := s.Get(ctx, "d/x")
	require.ErrorIs(t, err, store.ErrNotFound)
	require.Equal(t, []string{"d/y"}, keys(t, s, ""))
	require.NoError(t, s.Put(ctx, "d/x", []byte("3")), "a deleted key is free again")
}

func hostileKeys(t *testing.T, s store.ObjectStore) {
	ctx := t.Context()
	for _, key := range []string{"", "/", "/etc/passwd", "..", "../x", "a/../../x", "a/..", ".", "./a", "a/./b", "a//b", "a/", ".tmp/x", "a\x00b", "a\nb", `a\b`, string(bytes.Repeat([]byte("a"), 300))} {
		require.ErrorIs(t, s.Put(ctx, key, []byte("x")), store.ErrKey, "%q", key)
		_, err := s.Get(ctx, key)
		require.ErrorIs(t, err, store.ErrKey, "%q", key)
		_, err = s.GetRange(ctx, key, 0, 1)
		require.ErrorIs(t, err, store.ErrKey, "%q", key)
		_, err = s.Head(ctx, key)
		require.ErrorIs(t, err, store.ErrKey, "%q", key)
		require.ErrorIs(t, s.Delete(ctx, key), store.ErrKey, "%q", key)
	}
	for _, err := range s.List(ctx, "../") {
		require.ErrorIs(t, err, store.ErrKey)
	}
	require.Empty(t, keys(t, s, ""))
}

func cancelled(t *testing.T, s store.ObjectStore) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.Put(ctx, "k", nil), context.Canceled)
	_, err := s.Get(ctx, "k")
	require.ErrorIs(t, err, context.Canceled)
	var listErr error
	for _, err := range s.List(ctx, "") {
		listErr = err
	}
	require.ErrorIs(t, listErr, context.Canceled)
	require.Empty(t, keys(t, s, ""))
}

func buffers(t *testing.T, s store.ObjectStore) {
	ctx := t.Context()
	data := []byte("original")
	require.NoError(t, s.Put(ctx, "k", data))
	copy(data, "changed!")
	got, err := s.Get(ctx, "k")
	require.NoError(t, err)
	require.Equal(t, "original", string(got))
	copy(got, "changed!")
	again, err := s.Get(ctx, "k")
	require.NoError(t, err)
	require.Equal(t, "original", string(again))
}

func contentAddresses(t *testing.T, s store.ObjectStore) {
	ctx := t.Context()
	d, err := store.PutObject(ctx, s, "run", "steps.arrow", []byte("rows"))
	require.NoError(t, err)
	require.Equal(t, policy.DigestOf([]byte("rows")), d)
	got, err := store.GetObject(ctx, s, "run", d, "steps.arrow")
	require.NoError(t, err)
	require.Equal(t, "rows", string(got))

	_, err = store.GetObject(ctx, s, "run", policy.DigestOf([]byte("other")), "steps.arrow")
	require.ErrorIs(t, err, store.ErrNotFound)
	_, err = store.GetObject(ctx, s, "run", "sha256:short", "steps.arrow")
	require.ErrorIs(t, err, policy.ErrDigest)

	// Something else under a digest's key is told apart from its content.
	lie := policy.DigestOf([]byte("truth"))
	require.NoError(t, s.Put(ctx, store.ObjectKey("run", lie, "x"), []byte("lie")))
	_, err = store.GetObject(ctx, s, "run", lie, "x")
	require.ErrorIs(t, err, store.ErrCorrupt)

	require.True(t, slices.IsSorted([]string{store.ManifestKey("run", 9), store.ManifestKey("run", 10), store.ManifestKey("run", 1<<40)}))
}
