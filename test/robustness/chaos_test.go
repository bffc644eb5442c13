package robustness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
	"github.com/rlfleet/rlfleet/store/file"
)

// The environment of a run. Without any of it the short form runs.
const (
	longForm    = "RLFLEET_CHAOS"          // every kind of fault, about nine minutes
	manyForm    = "RLFLEET_CHAOS_FAULTS"   // so many faults, whatever it takes
	seedEnv     = "RLFLEET_CHAOS_SEED"     // repeats a schedule
	sizeEnv     = "RLFLEET_CHAOS_NODES"    // nodes of the cluster: 3 or 5
	onlyEnv     = "RLFLEET_CHAOS_ONLY"     // faults whose name contains this
	programsEnv = "RLFLEET_CHAOS_PROGRAMS" // directory of rlfleetd and rlctl to test; their clocks are not set
	shortTime   = 60 * time.Second
	longTime    = 6 * time.Minute
)

// TestChaos breaks a cluster of processes in every way it knows while a fleet
// works on it. What clients saw must be a possible history of one coordinator,
// and what is left must be what they were told.
func TestChaos(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: -short leaves chaos out")
	}
	r := newRun(t)
	t.Logf("seed %d (%s repeats the schedule), %d nodes", r.seed, seedEnv, r.size)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c, err := newCluster(ctx, r.dir, filepath.Join(r.dir, "store"), r.programs, r.size, r.seed)
	defer func() { require.NoError(t, c.close()) }()
	require.NoError(t, err)
	h := newHistory()
	admin, err := c.client("setup", c.admin)
	require.NoError(t, err)
	defer admin.Close()
	w, err := startWorkload(ctx, h, slog.New(slog.DiscardHandler), r.seed, admin, c.dial)
	require.NoError(t, err)
	n := &nemesis{c: c, rng: rand.New(rand.NewPCG(r.seed, 2)), notes: map[string]int{}}
	defer r.report(n, h)
	failed := r.faults(ctx, n, w)
	if failed == nil {
		failed = c.well(ctx)
	}
	failed = errors.Join(failed, w.close())
	if failed == nil {
		failed = r.sweep(ctx, c, h)
	}
	for _, m := range c.machines {
		if crash := m.crashed(); crash != "" {
			failed = errors.Join(failed, fmt.Errorf("machine %s: %s", m.name, crash))
		}
	}
	if failed == nil {
		dir, err := keepDir()
		require.NoError(t, errors.Join(err, h.save(filepath.Join(dir, "last.jsonl")))) // to see what a good run was
		return
	}
	r.bad = r.keep(c, h)
	t.Errorf("%v\nseed %d; everything is kept in %s", failed, r.seed, r.bad)
}

// run is one run of TestChaos.
type run struct {
	t        *testing.T
	seed     uint64
	size     int
	count    int           // faults to do; 0: for as long as limit
	limit    time.Duration // after which no fault begins
	long     bool
	slewed   error // why clocks cannot be set
	dir      string
	programs string
	tally    []tally
	bad      string // where a failure is kept
}

// tally counts one kind.
type tally struct {
	name                     string
	done, survived, notThere int
	took                     time.Duration // longest time until the cluster was well
}

func newRun(t *testing.T) *run {
	t.Helper()
	r := &run{t: t, seed: uint64(time.Now().UnixNano()), size: 3, limit: shortTime, long: os.Getenv(longForm) != "", dir: t.TempDir()}
	number := func(name string) int {
		n, err := strconv.Atoi(os.Getenv(name))
		require.NoError(t, err, name)
		return n
	}
	if r.long {
		r.limit = longTime
	}
	if os.Getenv(manyForm) != "" {
		r.count, r.limit, r.long = number(manyForm), 100*time.Hour, true
	}
	if os.Getenv(sizeEnv) != "" {
		r.size = number(sizeEnv)
	}
	if s := os.Getenv(seedEnv); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
		r.seed = n
	}
	r.programs, r.slewed = programs(t, r.long)
	return r
}

// possible are the kinds that this machine and this form allow.
func (r *run) possible() []fault {
	missing := map[string]string{}
	if err := mountable(r.dir); err != nil {
		missing["image"] = err.Error()
	}
	if r.slewed != nil {
		missing["clock"] = r.slewed.Error()
	}
	if err := command("unshare", "--time", "--monotonic", "7200", "--fork", "true"); err != nil {
		missing["unshare"] = err.Error()
	}
	var out []fault
	for _, f := range faults() {
		switch why := missing[f.needs]; {
		case f.slow && !r.long, !strings.Contains(f.name, os.Getenv(onlyEnv)):
		case f.needs != "" && why != "":
			if r.long {
				r.t.Logf("SKIPPED: %s: %s", f.name, why)
			}
		default:
			out = append(out, f)
		}
	}
	return out
}

// faults does them: each kind once in a drawn order, then drawn ones.
func (r *run) faults(ctx context.Context, n *nemesis, w *workload) error {
	kinds := r.possible()
	require.NotEmpty(r.t, kinds)
	n.rng.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
	for _, k := range kinds {
		r.tally = append(r.tally, tally{name: k.name})
	}
	began := time.Now()
	for i := 0; (r.count == 0 || i < r.count) && time.Since(began) < r.limit; i++ {
		k := i
		if i >= len(kinds) {
			k = n.rng.IntN(len(kinds))
		}
		at := time.Since(began)
		err := r.one(ctx, n, w, kinds[k], &r.tally[k])
		r.t.Logf("%s to %s: %d %s", at.Round(100*time.Millisecond), time.Since(began).Round(100*time.Millisecond), i+1, kinds[k].name)
		if err != nil {
			return fmt.Errorf("fault %d, %s: %w", i+1, kinds[k].name, err)
		}
	}
	return nil
}

// one does one fault and waits until the cluster is well and clients are answered.
func (r *run) one(ctx context.Context, n *nemesis, w *workload, f fault, t *tally) error {
	n.hold(ctx, 100*time.Millisecond, time.Second)
	n.c.mayEnd = f.ends
	err := f.hurt(ctx, n)
	n.c.net.heal()
	if errors.Is(err, errNothing) {
		t.notThere++
		return n.c.well(ctx)
	}
	t.done++
	if err != nil {
		return err
	}
	began, at := time.Now(), w.h.now()
	if err := n.c.well(ctx); err != nil {
		return err
	}
	for time.Duration(w.last.Load()) < at {
		if time.Since(began) > wellLimit {
			return fmt.Errorf("the cluster is well and no client is answered for %s", wellLimit)
		}
		_ = n.wait(ctx, 20*time.Millisecond)
	}
	t.took = max(t.took, time.Since(began))
	t.survived++
	return nil
}

// sweep checks everything after the fleet has left.
func (r *run) sweep(ctx context.Context, c *cluster, h *history) error {
	records, err := r.same(ctx, c)
	if err != nil {
		return err
	}
	bad := left(records)
	objects, err := file.Open(c.store)
	if err != nil {
		return err
	}
	events, broken := readChain(ctx, objects, runID)
	bad = append(bad, broken...)
	bad = append(bad, sweep(events, h.ops, h.steps)...)
	bad = append(bad, fences(h.ops)...)
	bad = append(bad, holders(h.holds)...)
	for _, rec := range records {
		if x := rec.GetRun(); x != nil && x.Id == runID && x.Counters.MaxLag > lagMax {
			bad = append(bad, fmt.Sprintf("lag: the run counted a lag of %d", x.Counters.MaxLag))
		}
	}
	if len(bad) > 0 {
		return errors.New(tell(bad))
	}
	where, err := keepDir()
	if err != nil {
		return err
	}
	return linear(h.ops, filepath.Join(where, fmt.Sprint(r.seed)))
}

// same waits until every machine has applied the same entries and everything is
// in the store, and compares their states record by record.
func (r *run) same(ctx context.Context, c *cluster) ([]*raftlog.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, wellLimit)
	defer cancel()
	why := errors.New("they were not asked")
	for ctx.Err() == nil {
		var first []*raftlog.Record
		if first, why = compare(ctx, c); why == nil {
			return first, nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return nil, fmt.Errorf("the machines do not agree: %w", why)
}

func compare(ctx context.Context, c *cluster) ([]*raftlog.Record, error) {
	var first []*raftlog.Record
	var index uint64
	for i, m := range c.machines {
		st, err := c.status(ctx, m)
		if err != nil {
			return nil, err
		}
		if st.Mirror.GetWaiting() > 0 {
			return nil, fmt.Errorf("%d events are not in the store: %s", st.Mirror.Waiting, st.Mirror.Reason)
		}
		records, at, err := c.records(ctx, m)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			first, index = records, at
			continue
		}
		if at != index {
			return nil, fmt.Errorf("%s is at entry %d and %s at %d", c.machines[0].name, index, m.name, at)
		}
		if len(records) != len(first) {
			return nil, fmt.Errorf("at entry %d %s has %d records and %s has %d", at, c.machines[0].name, len(first), m.name, len(records))
		}
		for k := range records {
			if !proto.Equal(records[k], first[k]) {
				return nil, fmt.Errorf("at entry %d %s has %v and %s has %v", at, c.machines[0].name, first[k], m.name, records[k])
			}
		}
	}
	return first, nil
}

// records returns a machine's own state.
func (c *cluster) records(ctx context.Context, m *machine) ([]*raftlog.Record, uint64, error) {
	stream, err := pb.NewCoordinatorClient(c.asked[m.name]).View(ctx, &pb.ViewRequest{Stale: true})
	if err != nil {
		return nil, 0, err
	}
	var out []*raftlog.Record
	for index := uint64(0); ; {
		v, err := stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				return out, index, nil
			}
			return nil, 0, err
		}
		out, index = append(out, v.Records...), v.Index
	}
}

// keepDir is where failures are kept.
func keepDir() (string, error) {
	dir, err := filepath.Abs("../../.cache/chaos")
	if err != nil {
		return "", err
	}
	return dir, os.MkdirAll(dir, 0o755)
}

// keep copies what is needed to look into a failure and says where it is.
func (r *run) keep(c *cluster, h *history) string {
	dir, err := keepDir()
	if err != nil {
		return err.Error()
	}
	to := filepath.Join(dir, fmt.Sprint("seed-", r.seed))
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err.Error()
	}
	err = h.save(filepath.Join(to, "history.jsonl"))
	for _, m := range c.machines {
		m.kill()
		err = errors.Join(err, command("cp", m.log(), filepath.Join(to, m.name+".log")), command("cp", "-r", m.disk.mount, filepath.Join(to, m.name)))
	}
	err = errors.Join(err, command("cp", "-r", c.store, filepath.Join(to, "store")))
	if err != nil {
		return to + " (" + err.Error() + ")"
	}
	return to
}

// report prints the table and the line that says it all.
func (r *run) report(n *nemesis, h *history) {
	var b strings.Builder
	done, survived := 0, 0
	fmt.Fprintf(&b, "%-52s %5s %9s %9s %8s\n", "fault", "done", "survived", "not there", "well in")
	for _, x := range r.tally {
		if x.done+x.notThere > 0 {
			fmt.Fprintf(&b, "%-52s %5d %9d %9d %8s\n", x.name, x.done, x.survived, x.notThere, x.took.Round(10*time.Millisecond))
		}
		done, survived = done+x.done, survived+x.survived
	}
	for _, what := range slices.Sorted(maps.Keys(n.notes)) {
		fmt.Fprintf(&b, "%d × %s\n", n.notes[what], what)
	}
	grants, seals, verdicts := 0, 0, 0
	for _, o := range h.ops {
		switch {
		case o.Answer != ok:
		case o.Kind == opGrant:
			grants++
		case o.Kind == opSeal:
			seals++
		case o.Kind == opSettle:
			verdicts++
		}
	}
	word, end := "ok", "none lost, none twice, none held twice"
	if r.t.Failed() {
		word, end = "FAILED", "kept in "+r.bad
	}
	r.t.Logf("\n%schaos: %s, seed %d, %d nodes, %d of %d faults survived, %d operations in %s: %d leases, %d seals, %d verdicts, %d steps acknowledged, %s",
		b.String(), word, r.seed, len(n.c.machines), survived, done, len(h.ops), h.now().Round(time.Second), grants, seals, verdicts, len(h.steps), end)
}
