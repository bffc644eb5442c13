package robustness

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"
)

// fault is one kind of trouble. break does it, holds it for a while and takes it
// back; the nemesis then waits until the cluster is well.
type fault struct {
	name  string
	ends  bool   // a node may end by itself
	slow  bool   // takes more than some seconds: not in the short form
	needs string // of the machine: "image" is a file system for each node, "clock" a program whose clock can be set
	hurt  func(context.Context, *nemesis) error
}

// leaseTTL is that of the state machine; a pause of twice as long ends every lease that is not renewed.
const leaseTTL = 10 * time.Second

// faults are all kinds.
func faults() []fault {
	out := []fault{
		{name: "kill -9 the leader", hurt: func(ctx context.Context, n *nemesis) error { return n.kill(ctx, n.leader(ctx)) }},
		{name: "kill -9 a follower", hurt: func(ctx context.Context, n *nemesis) error { return n.kill(ctx, n.follower(ctx)) }},
		{name: "kill -9 two nodes", hurt: func(ctx context.Context, n *nemesis) error { return n.kill(ctx, n.leader(ctx), n.follower(ctx)) }},
		{name: "kill -9 all nodes", hurt: func(ctx context.Context, n *nemesis) error { return n.kill(ctx, n.c.machines...) }},
		{name: "restart in order", hurt: rolling, slow: true},
		{name: "pause the leader, 2 s", hurt: func(ctx context.Context, n *nemesis) error { return n.freeze(ctx, 2*time.Second, n.leader(ctx)) }},
		{name: "pause a follower, 3 s", hurt: func(ctx context.Context, n *nemesis) error { return n.freeze(ctx, 3*time.Second, n.follower(ctx)) }},
		{name: "pause the leader, 2×TTL", slow: true, hurt: func(ctx context.Context, n *nemesis) error { return n.freeze(ctx, 2*leaseTTL, n.leader(ctx)) }},
		{name: "pause all nodes, 2×TTL", slow: true, hurt: func(ctx context.Context, n *nemesis) error { return n.freeze(ctx, 2*leaseTTL, n.c.machines...) }},
		{name: "transfer leadership", hurt: transfer},
		{name: "transfer during a partition", hurt: transferCut},
		{name: "replace a node", slow: true, hurt: func(ctx context.Context, n *nemesis) error { return n.replace(ctx, n.follower(ctx)) }},
		{name: "clock of the leader +2 h", needs: "clock", slow: true, hurt: func(ctx context.Context, n *nemesis) error { return n.shift(ctx, 2*time.Hour) }},
		{name: "clock of the leader −2 h", needs: "clock", slow: true, hurt: func(ctx context.Context, n *nemesis) error { return n.shift(ctx, -2*time.Hour) }},
		{name: "monotonic clock +2 h over a restart", needs: "unshare", hurt: monotonic},
	}
	out = append(out, networkFaults()...)
	out = append(out, pointFaults()...)
	return append(out, diskFaults()...)
}

func networkFaults() []fault {
	cut := flow{cut: true}
	var out []fault
	add := func(name string, spoil func(ctx context.Context, n *nemesis)) {
		out = append(out, fault{name: name, hurt: func(ctx context.Context, n *nemesis) error {
			spoil(ctx, n)
			n.hold(ctx, time.Second, 5*time.Second)
			n.c.net.heal()
			return nil
		}})
	}
	others := func(n *nemesis, m *machine, each func(other string)) {
		for _, o := range n.c.machines {
			if o != m {
				each(o.name)
			}
		}
	}
	add("leader cut off from the others", func(ctx context.Context, n *nemesis) {
		l := n.leader(ctx)
		others(n, l, func(o string) { n.c.net.set(l.name, o, cut); n.c.net.set(o, l.name, cut) })
	})
	add("leader cut off from everybody", func(ctx context.Context, n *nemesis) {
		l := n.leader(ctx)
		n.c.net.set(l.name, "*", cut)
		n.c.net.set("*", l.name, cut)
	})
	add("leader heard by nobody", func(ctx context.Context, n *nemesis) {
		l := n.leader(ctx)
		others(n, l, func(o string) { n.c.net.set(l.name, o, cut) })
	})
	add("leader hears nobody", func(ctx context.Context, n *nemesis) {
		l := n.leader(ctx)
		others(n, l, func(o string) { n.c.net.set(o, l.name, cut) })
	})
	add("follower cut off from everybody", func(ctx context.Context, n *nemesis) {
		f := n.follower(ctx)
		n.c.net.set(f.name, "*", cut)
		n.c.net.set("*", f.name, cut)
	})
	add("follower heard by nobody", func(ctx context.Context, n *nemesis) { n.c.net.set(n.follower(ctx).name, "*", cut) })
	add("leader and one follower apart", func(ctx context.Context, n *nemesis) {
		l, f := n.leader(ctx), n.follower(ctx)
		n.c.net.set(l.name, f.name, cut)
		n.c.net.set(f.name, l.name, cut)
	})
	add("answers of the leader do not reach clients", func(ctx context.Context, n *nemesis) { n.c.net.set(n.leader(ctx).name, "client", cut) })
	add("clients cut off from the leader", func(ctx context.Context, n *nemesis) {
		l := n.leader(ctx)
		n.c.net.set("client", l.name, cut)
		n.c.net.set(l.name, "client", cut)
	})
	add("clients cut off from all nodes", func(_ context.Context, n *nemesis) { n.c.net.set("client", "*", cut); n.c.net.set("*", "client", cut) })
	add("50 ms more on every way", func(_ context.Context, n *nemesis) { n.c.net.set("*", "*", flow{delay: 50 * time.Millisecond}) })
	add("600 ms more to a follower", func(ctx context.Context, n *nemesis) {
		n.c.net.set("*", n.follower(ctx).name, flow{delay: 600 * time.Millisecond})
	})
	add("600 ms more from the leader", func(ctx context.Context, n *nemesis) {
		n.c.net.set(n.leader(ctx).name, "*", flow{delay: 600 * time.Millisecond})
	})
	add("3 % of the messages break their connection", func(_ context.Context, n *nemesis) { n.c.net.set("*", "*", flow{reset: 0.03}) })
	add("every connection is broken", func(_ context.Context, n *nemesis) {
		for _, m := range n.c.machines {
			m.rpc.breakAll()
			m.raft.breakAll()
		}
	})
	return out
}

// pointFaults are kills and errors at named points. The number of passes before is drawn.
func pointFaults() []fault {
	var out []fault
	for _, p := range []struct {
		point  string
		leader bool // only a leader passes it
		passes int  // most that are let pass before
		slow   bool
	}{
		{"log.append.before", false, 40, false},
		{"log.append.after", false, 40, false},
		{"apply.before", false, 40, false},
		{"apply.after", false, 40, false},
		{"answer.before", true, 40, false},
		{"mirror.put.before", true, 2, false},
		{"mirror.put.after", true, 2, false},
		{"snapshot.before", false, 0, true},
		{"snapshot.written", false, 0, true},
		{"snapshot.after", false, 0, true},
		{"log.delete.before", false, 0, true},
		{"log.delete.after", false, 0, true},
	} {
		out = append(out, fault{name: "kill -9 at " + p.point, slow: p.slow, hurt: func(ctx context.Context, n *nemesis) error {
			m := n.any()
			if p.leader || n.rng.IntN(2) == 0 {
				m = n.leader(ctx)
			}
			limit := 8 * time.Second
			if p.slow {
				limit = 20 * time.Second
			}
			return n.at(ctx, m, fmt.Sprintf("%s=%skill", p.point, skip(n.rng.IntN(p.passes+1))), limit)
		}})
	}
	for _, point := range []string{"term.keep.before", "term.keep.after"} {
		out = append(out, fault{name: "kill -9 at " + point, hurt: func(ctx context.Context, n *nemesis) error { // terms are kept when a leader is missed
			m := n.follower(ctx)
			if err := m.arm(point + "=kill"); err != nil {
				return err
			}
			n.leader(ctx).kill()
			return n.await(m, 6*time.Second)
		}})
	}
	out = append(out,
		fault{name: "kill -9 at transfer.before", hurt: func(ctx context.Context, n *nemesis) error {
			m := n.leader(ctx)
			if err := m.arm("transfer.before=kill"); err != nil {
				return err
			}
			_ = n.hand(ctx, "") // its leader dies over it
			return n.await(m, 2*time.Second)
		}},
		fault{name: "kill -9 at join.added", slow: true, hurt: func(ctx context.Context, n *nemesis) error { return n.joinKilled(ctx, "join.added=kill") }},
		fault{name: "kill -9 at join.promote.before", slow: true, hurt: func(ctx context.Context, n *nemesis) error { return n.joinKilled(ctx, "join.promote.before=kill") }},
		fault{name: "the store is away", hurt: func(ctx context.Context, n *nemesis) error {
			m := n.leader(ctx)
			err := n.at(ctx, m, "mirror.put.before=6*error(the store is away)", 5*time.Second)
			return errors.Join(err, n.wait(ctx, 2*time.Second))
		}},
	)
	return out
}

// skip lets so many passes of a point through.
func skip(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d*off->", n)
}

func rolling(ctx context.Context, n *nemesis) error {
	for _, m := range n.c.machines {
		if err := m.stop(20 * time.Second); err != nil {
			return err
		}
		if err := n.c.well(ctx); err != nil {
			return err
		}
	}
	return nil
}

func transfer(ctx context.Context, n *nemesis) error {
	to := ""
	if n.rng.IntN(2) == 0 {
		to = n.follower(ctx).name
	}
	return n.hand(ctx, to)
}

// transferCut is hashicorp/raft#696: leadership is handed over while the leader
// is cut off. It may fail; the cluster must take writes again.
func transferCut(ctx context.Context, n *nemesis) error {
	l := n.leader(ctx)
	done := make(chan struct{})
	n.c.net.set("*", l.name, flow{cut: true})
	go func() {
		defer close(done)
		limit, cancel := context.WithTimeout(ctx, 4*time.Second)
		defer cancel()
		_, _ = n.c.rlctlAt(limit, n.c.direct(l), "cluster", "transfer") // past the proxy; it may fail
	}()
	n.hold(ctx, time.Second, 4*time.Second)
	n.c.net.heal()
	<-done
	return nil
}

// monotonic restarts the leader in a time namespace in which the monotonic clock is two hours ahead.
func monotonic(ctx context.Context, n *nemesis) error {
	m := n.leader(ctx)
	m.kill()
	m.wrap = []string{"unshare", "--time", "--monotonic", "7200", "--boottime", "7200", "--fork", "--kill-child", "--"}
	defer func() { m.wrap = nil }()
	if err := n.c.well(ctx); err != nil {
		return err
	}
	if n.rng.IntN(2) == 0 { // it leads with that clock, and hands over from it
		_ = n.hand(ctx, m.name)
		n.hold(ctx, time.Second, 3*time.Second)
	}
	m.kill()
	return nil
}

func diskFaults() []fault {
	out := []fault{
		{name: "disk of the leader stalls, 2×TTL", slow: true, hurt: func(ctx context.Context, n *nemesis) error {
			err := n.at(ctx, n.leader(ctx), "log.append.before=1*sleep(20s)", 5*time.Second)
			return errors.Join(err, n.wait(ctx, 21*time.Second))
		}},
		{name: "disk of a follower is slow", hurt: func(ctx context.Context, n *nemesis) error {
			err := n.at(ctx, n.follower(ctx), "log.append.before=20*sleep(300ms)", 5*time.Second)
			return errors.Join(err, n.wait(ctx, 4*time.Second))
		}},
		{name: "a write to the log fails", ends: true, hurt: func(ctx context.Context, n *nemesis) error {
			return n.refused(ctx, "log.append.before=1*error(ENOSPC)")
		}},
		{name: "keeping a term fails", ends: true, hurt: func(ctx context.Context, n *nemesis) error {
			m := n.follower(ctx)
			if err := m.arm("term.keep.before=1*error(ENOSPC)"); err != nil {
				return err
			}
			n.leader(ctx).kill()
			return n.ends(m, "free space")
		}},
		{name: "a snapshot fails: no space", slow: true, hurt: func(ctx context.Context, n *nemesis) error {
			return n.at(ctx, n.any(), "snapshot.written=1*error(ENOSPC)", 20*time.Second)
		}},
		{name: "full disk", ends: true, needs: "image", slow: true, hurt: full},
		{name: "power lost on all nodes: unsynced writes dropped", needs: "image", slow: true, hurt: func(ctx context.Context, n *nemesis) error { return n.powerLoss(n.c.machines...) }},
		{name: "power lost on the leader: unsynced writes dropped", needs: "image", hurt: func(ctx context.Context, n *nemesis) error { return n.powerLoss(n.leader(ctx)) }},
	}
	for _, how := range []string{"cut", "unwritten", "flipped"} {
		out = append(out, fault{name: "end of the log is " + how, ends: true, slow: true, hurt: func(ctx context.Context, n *nemesis) error { return n.spoilt(ctx, how) }})
	}
	return out
}

// full fills the disk of a node until the node says so and ends, and frees it.
func full(ctx context.Context, n *nemesis) error {
	m := n.any()
	if n.rng.IntN(2) == 0 {
		m = n.leader(ctx)
	}
	if err := m.disk.fill(0); err != nil {
		return err
	}
	ended := false
	for end := time.Now().Add(40 * time.Second); time.Now().Before(end) && !ended; {
		ended = m.waitEnd(500 * time.Millisecond)
		_ = m.disk.fill(0) // what a snapshot that failed gave back
	}
	said := m.sentence()
	if err := m.disk.free(); err != nil {
		return err
	}
	if ended && !strings.Contains(said, "free space") && !strings.Contains(said, "disk is full") {
		return fmt.Errorf("machine %s met a full disk and said %q", m.name, said)
	}
	if !ended { // preallocated: nothing had to be written that had no room yet
		return errNothing
	}
	n.note("a node on a full disk ended with: " + said[max(0, strings.LastIndex(said, "coordinator:")):])
	return nil
}

// powerLoss drops what machines have written and not synced.
func (n *nemesis) powerLoss(ms ...*machine) error {
	for _, m := range ms {
		m.signal(syscall.SIGSTOP)
	}
	for _, m := range ms {
		if err := m.disk.crashImage(); err != nil {
			return err
		}
	}
	for _, m := range ms {
		m.kill()
		if err := m.disk.powerUp(); err != nil {
			return err
		}
	}
	return nil
}
