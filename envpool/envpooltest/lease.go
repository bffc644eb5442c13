package envpooltest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/coordinator/lease"
	"github.com/rlfleet/rlfleet/envpool"
)

var leaseTests = map[string]func(*testing.T, *bench){
	"claim is idempotent by resource and fence": func(t *testing.T, b *bench) {
		c := b.claim("r", 3, b.template(nil))
		x := b.open(c)
		x.out("echo kept >/app/f")
		y := b.open(c)
		require.Equal(t, x.hd, y.hd)
		require.Equal(t, "kept\n", y.out("cat /app/f"))
		st, err := b.h.Stats(b.ctx())
		require.NoError(t, err)
		require.Equal(t, 1, st.Leased)
	},
	"concurrent claims of one lease share a sandbox": func(t *testing.T, b *bench) {
		c := b.claim("r", 1, b.template(nil))
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if _, err := b.h.Claim(b.ctx(), c); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		st, err := b.h.Stats(b.ctx())
		require.NoError(t, err)
		require.Equal(t, 1, st.Leased)
	},
	"a higher fence destroys the older sandbox and refuses its holder": func(t *testing.T, b *bench) {
		id := b.template(nil)
		old := b.open(b.claim("r", 1, id))
		old.out("echo old >/app/f; sleep 1000 & true")
		young := b.open(b.claim("r", 2, id))
		require.Empty(t, young.out("cat /app/f 2>/dev/null; true"), "the older sandbox's file")
		require.Empty(t, young.processes())
		ctx := b.ctx()
		_, err := b.h.Exec(ctx, old.hd, envpool.Command{Argv: []string{"true"}})
		require.ErrorIs(t, err, lease.ErrFenced)
		require.ErrorIs(t, b.h.Write(ctx, old.hd, "/app/x", 0o644, nil), lease.ErrFenced)
		_, err = b.h.Read(ctx, old.hd, "/app/x", 1)
		require.ErrorIs(t, err, lease.ErrFenced)
		_, err = b.h.Collect(ctx, old.hd, []string{"/app"}, 1)
		require.ErrorIs(t, err, lease.ErrFenced)
		_, err = b.h.Snapshot(ctx, old.hd)
		require.ErrorIs(t, err, lease.ErrFenced)
		require.ErrorIs(t, b.h.Release(ctx, old.hd), lease.ErrFenced)
		_, err = b.h.Claim(ctx, b.claim("r", 1, id))
		require.ErrorIs(t, err, lease.ErrFenced)
		young.out("true")
	},
	"a released sandbox is unknown and stays so": func(t *testing.T, b *bench) {
		id := b.template(nil)
		x := b.open(b.claim("r", 1, id))
		x.release()
		x.release()
		_, err := b.h.Exec(b.ctx(), x.hd, envpool.Command{Argv: []string{"true"}})
		require.ErrorIs(t, err, envpool.ErrUnknown)
		_, err = b.h.Claim(b.ctx(), b.claim("r", 1, id)) // a claim that was delayed on its way
		require.ErrorIs(t, err, envpool.ErrUnknown)
		b.open(b.claim("r", 2, id)).out("true")
	},
	"revoke ends a running command and refuses the fence from then on": func(t *testing.T, b *bench) {
		id := b.template(nil)
		x := b.open(b.claim("r", 5, id))
		failed := make(chan error, 1)
		go func() {
			_, err := b.h.Exec(b.ctx(), x.hd, envpool.Command{Argv: []string{"sleep", "1000"}, Timeout: time.Minute})
			failed <- err
		}()
		require.NoError(t, b.h.Revoke(b.ctx(), "r", 4), "of an older fence: nothing to end")
		require.NoError(t, b.h.Revoke(b.ctx(), "r", 5))
		err := <-failed
		require.True(t, errors.Is(err, lease.ErrFenced) || errors.Is(err, envpool.ErrUnknown), "%v", err)
		_, err = b.h.Claim(b.ctx(), b.claim("r", 5, id))
		require.ErrorIs(t, err, lease.ErrFenced)
		b.open(b.claim("r", 6, id)).out("true")
		require.NoError(t, b.h.Revoke(b.ctx(), "never claimed", 9))
		_, err = b.h.Claim(b.ctx(), b.claim("never claimed", 9, id))
		require.ErrorIs(t, err, lease.ErrFenced)
	},
	"unknown snapshots, quotas and sandboxes are refused": func(t *testing.T, b *bench) {
		_, err := b.h.Claim(b.ctx(), b.claim("r", 1, "sha256:none"))
		require.ErrorIs(t, err, envpool.ErrUnknown)
		c := b.claim("r", 1, b.template(nil))
		c.Quota = "other"
		_, err = b.h.Claim(b.ctx(), c)
		require.ErrorIs(t, err, envpool.ErrInvalid)
		c = b.claim("r", 1, c.Snapshot)
		c.Limits.Pids = -1
		_, err = b.h.Claim(b.ctx(), c)
		require.ErrorIs(t, err, envpool.ErrInvalid)
		_, err = b.h.Exec(b.ctx(), envpool.Handle{Sandbox: "nobody", Fence: 1}, envpool.Command{Argv: []string{"true"}})
		require.ErrorIs(t, err, envpool.ErrUnknown)
		b.open(b.claim("r", 1, c.Snapshot)).out("true")
	},
	"a full quota makes claims wait in order and leaves the other quota alone": waitInLine,
	"a claim whose context ends while it waits takes no slot": func(t *testing.T, b *bench) {
		id := b.template(nil)
		boxes := fill(b, id)
		ctx, cancel := context.WithTimeout(b.ctx(), 50*time.Millisecond)
		defer cancel()
		_, err := b.h.Claim(ctx, b.claim("late", 1, id))
		require.ErrorIs(t, err, envpool.ErrNoSlot)
		boxes[0].release()
		b.open(b.claim("late", 1, id)).out("true") // the same lease may try again
	},
	"forks see an identity of their own": func(t *testing.T, b *bench) {
		id := b.template(nil)
		names := map[string]bool{}
		uuids := map[string]bool{}
		for i := range 4 {
			c := b.claim(fmt.Sprint("r", i), 1, id)
			c.Entropy = uint64(i % 3)
			x := b.open(c)
			names[x.out("cat /proc/sys/kernel/hostname")] = true
			uuids[x.out("cat /proc/sys/kernel/random/uuid; head -c 16 /dev/urandom | od -An -tx1")] = true
		}
		require.Len(t, names, 3, "equal entropy, equal name")
		require.Len(t, uuids, 4)
	},
}

// fill claims every slot of the agents' quota.
func fill(b *bench, id envpool.SnapshotID) []*box {
	st, err := b.h.Stats(b.ctx())
	require.NoError(b.t, err)
	var boxes []*box
	for i := range st.MaxAgents {
		boxes = append(boxes, b.open(b.claim(fmt.Sprint("fill/", i), 1, id)))
	}
	st, err = b.h.Stats(b.ctx())
	require.NoError(b.t, err)
	require.Equal(b.t, st.MaxAgents, st.Agents)
	return boxes
}

func waitInLine(t *testing.T, b *bench) {
	id := b.template(nil)
	boxes := fill(b, id)
	v := b.claim("verifier", 1, id)
	v.Quota = envpool.QuotaVerifier
	b.open(v).out("true")
	const waiting = 24
	var wg sync.WaitGroup
	var mu sync.Mutex
	served := 0
	for i := range waiting {
		wg.Go(func() {
			hd, err := b.h.Claim(b.ctx(), b.claim(fmt.Sprint("wait/", i), 1, id))
			if err == nil {
				err = b.h.Release(b.ctx(), hd)
			}
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			served++
			mu.Unlock()
		})
	}
	boxes[0].release()
	wg.Wait()
	require.Equal(t, waiting, served)
}
