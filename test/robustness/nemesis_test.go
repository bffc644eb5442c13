package robustness

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// nemesis breaks a cluster, one fault after the other.
type nemesis struct {
	c     *cluster
	rng   *rand.Rand
	notes map[string]int // how often what came of it
}

// note counts what came of a fault that can end in more than one good way.
func (n *nemesis) note(what string) { n.notes[what]++ }

// leader returns the machine that leads, or one of them while none does.
func (n *nemesis) leader(ctx context.Context) *machine {
	for range 100 {
		if m := n.c.leader(ctx); m != nil {
			return m
		}
		_ = n.wait(ctx, 50*time.Millisecond)
	}
	return n.any()
}

// follower returns a machine that does not lead.
func (n *nemesis) follower(ctx context.Context) *machine {
	l := n.leader(ctx)
	for {
		if m := n.any(); m != l {
			return m
		}
	}
}

func (n *nemesis) any() *machine { return n.c.machines[n.rng.IntN(len(n.c.machines))] }

// wait lets time pass; the end of ctx is no error, others look at it.
func (n *nemesis) wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
	return nil
}

// hold lets a drawn time pass.
func (n *nemesis) hold(ctx context.Context, least, most time.Duration) {
	_ = n.wait(ctx, least+time.Duration(n.rng.Int64N(int64(most-least))))
}

func (n *nemesis) kill(ctx context.Context, ms ...*machine) error {
	for _, m := range ms {
		m.signal(syscall.SIGKILL)
	}
	for _, m := range ms {
		m.kill()
	}
	n.hold(ctx, 10*time.Millisecond, 2*time.Second)
	return nil
}

func (n *nemesis) freeze(ctx context.Context, d time.Duration, ms ...*machine) error {
	for _, m := range ms {
		m.signal(syscall.SIGSTOP)
	}
	_ = n.wait(ctx, d)
	for _, m := range ms {
		m.signal(syscall.SIGCONT)
	}
	return nil
}

// at arms a plan and waits until a process has acted on it.
func (n *nemesis) at(ctx context.Context, m *machine, plan string, limit time.Duration) error {
	if err := m.arm(plan); err != nil {
		return err
	}
	for end := time.Now().Add(limit); time.Now().Before(end); _ = n.wait(ctx, 20*time.Millisecond) {
		if m.fired() {
			if strings.HasSuffix(plan, "kill") && !m.waitEnd(5*time.Second) {
				return fmt.Errorf("machine %s goes on after %s", m.name, plan)
			}
			return nil
		}
	}
	m.disarm()
	if m.fired() { // just then
		return nil
	}
	return errNothing
}

// await waits until a machine with an armed plan has ended.
func (n *nemesis) await(m *machine, limit time.Duration) error {
	if m.waitEnd(limit) {
		return nil
	}
	m.disarm()
	return errNothing
}

// refused arms an error for a node, which must end with a sentence that says what to do.
func (n *nemesis) refused(ctx context.Context, plan string) error {
	m := n.any()
	if n.rng.IntN(2) == 0 {
		m = n.leader(ctx)
	}
	if err := n.at(ctx, m, plan, 6*time.Second); err != nil {
		return err
	}
	return n.ends(m, "free space")
}

// ends waits for a node that has to end, and reads what it says.
func (n *nemesis) ends(m *machine, advice string) error {
	if !m.waitEnd(10 * time.Second) {
		if !m.fired() {
			m.disarm()
			return errNothing
		}
		return fmt.Errorf("machine %s goes on after a write failed", m.name)
	}
	if said := m.sentence(); !strings.Contains(said, advice) {
		return fmt.Errorf("machine %s ended after a write failed and said %q", m.name, said)
	}
	return nil
}

// hand transfers leadership by the command.
func (n *nemesis) hand(ctx context.Context, to string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	args := []string{"cluster", "transfer"}
	if to != "" {
		args = append(args, to)
	}
	_, err := n.c.rlctl(ctx, args...)
	return err
}

// replace takes a node out, empties its disk and joins it again.
func (n *nemesis) replace(ctx context.Context, m *machine) error {
	if err := n.c.remove(ctx, m); err != nil {
		return err
	}
	m.kill()
	if err := m.disk.empty(); err != nil {
		return err
	}
	if err := m.start(); err != nil {
		return err
	}
	if err := n.c.listening(ctx, m); err != nil {
		return err
	}
	return n.c.join(ctx, m)
}

// joinKilled replaces a node and kills the leader in the middle of the join,
// which is then repeated.
func (n *nemesis) joinKilled(ctx context.Context, plan string) error {
	l := n.leader(ctx)
	m := n.follower(ctx)
	if err := n.c.remove(ctx, m); err != nil {
		return err
	}
	m.kill()
	if err := m.disk.empty(); err != nil {
		return err
	}
	if err := errors.Join(m.start(), n.c.listening(ctx, m)); err != nil {
		return err
	}
	if err := l.arm(plan); err != nil {
		return err
	}
	defer l.disarm()
	limit, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if _, err := n.c.rlctl(limit, "cluster", "join", m.rpc.address()); err == nil && !l.fired() {
		return errNothing // another one led by then
	}
	if !l.alive() {
		if err := l.start(); err != nil {
			return err
		}
	}
	return n.c.join(ctx, m)
}

// shift sets the wall clock of the leader's process, and back after a while in which it is killed once.
func (n *nemesis) shift(ctx context.Context, by time.Duration) error {
	m := n.leader(ctx)
	file := filepath.Join(m.home, "clock")
	if err := os.WriteFile(file, []byte(fmt.Sprint(int64(by/time.Second))), 0o644); err != nil {
		return fmt.Errorf("clock: %w", err)
	}
	n.hold(ctx, 6*time.Second, 8*time.Second)
	m.kill() // hashicorp/vault#11150: the one with the wrong clock is killed
	n.hold(ctx, time.Second, 3*time.Second)
	if err := os.Remove(file); err != nil {
		return fmt.Errorf("clock: %w", err)
	}
	return nil
}

// spoilt damages the log of a stopped follower. Whatever it had acknowledged the
// others have: a cluster that loses more than a minority's disks promises
// nothing. The node must start, or refuse in one sentence; then it is replaced.
func (n *nemesis) spoilt(ctx context.Context, how string) error {
	m := n.follower(ctx)
	m.kill()
	if err := n.othersHave(ctx, m); err != nil {
		return err
	}
	if err := m.disk.spoil(how, n.rng); err != nil {
		return errors.Join(err, m.start())
	}
	if err := m.start(); err != nil {
		return err
	}
	if err := n.c.listening(ctx, m); err == nil {
		n.note("a log whose end is " + how + " was taken for a torn write, and the rest came from the others")
		return nil
	}
	if !m.waitEnd(5 * time.Second) {
		return fmt.Errorf("machine %s neither starts nor ends on a damaged log: %s", m.name, m.sentence())
	}
	if said := m.sentence(); !strings.Contains(said, "damaged") && !strings.Contains(said, "cut") {
		return fmt.Errorf("machine %s refuses a damaged log with %q", m.name, said)
	}
	n.note("a log whose end is " + how + " was refused in a sentence, and the node replaced")
	return n.replace(ctx, m)
}

// othersHave waits until the other machines have applied more than a stopped one can have written.
func (n *nemesis) othersHave(ctx context.Context, m *machine) error {
	ctx, cancel := context.WithTimeout(ctx, wellLimit)
	defer cancel()
	for begin := uint64(0); ctx.Err() == nil; _ = n.wait(ctx, 100*time.Millisecond) {
		least := ^uint64(0)
		for _, o := range n.c.machines {
			if o == m {
				continue
			}
			st, err := n.c.status(ctx, o)
			if err != nil {
				least = 0
				break
			}
			least = min(least, st.Applied)
			if begin == 0 { // beyond what was on its way when the machine ended; the fleet goes on
				begin = st.Commit + 32
			}
		}
		if least != 0 && least != ^uint64(0) && begin > 0 && least >= begin {
			return nil
		}
	}
	return errors.New("the other machines do not catch up with each other")
}
