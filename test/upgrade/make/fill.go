package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/rlfleet/rlfleet/coordinator"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// later are operations that the oldest kept commit does not know; those without
// a client are the leader's own. A commit that does not know one leaves it out,
// with all that came after it.
var later = []struct{ client, op string }{
	{"", `{"identify": {"level": 2}}`}, // lets the others in
	{"admin", `{"setMember": {"member": {"id": "n1", "address": "127.0.0.1:1", "raft": "127.0.0.1:2", "level": 2, "version": "upgrade"}}}`},
	{"admin", `{"setMember": {"member": {"id": "n9", "address": "127.0.0.1:3", "raft": "127.0.0.1:4", "level": 2, "version": "upgrade"}}}`},
	{"admin", `{"removeMember": {"id": "n9"}}`},
	{"admin", `{"setToken": {"token": {"id": "t1", "sum": "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=", "role": "operator", "note": "kept", "createdNs": "1", "expiresNs": "4000000000000000000"}}}`},
	{"admin", `{"setToken": {"token": {"id": "t2", "sum": "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=", "role": "viewer"}}}`},
	{"admin", `{"removeToken": {"id": "t2"}}`},
	{"admin", `{"rollback": {"run": "main", "to": "2", "reason": "diverged"}}`},
	{"", `{"diverged": {"run": "ahead", "stored": "1000000"}}`},
	{"admin", `{"createRun": {"id": "removed", "specDigest": "sha256:removed", "manifest": "sha256:v0", "config": {"steps": "1", "groupsPerStep": 1, "publishEvery": 1,
		"concurrency": 1, "project": "research", "budgetTokens": "1000", "budgetSandboxNs": "1000", "envs": [{"name": "e", "weight": 1, "groupSize": 1, "tasks": [{"id": "t"}]}]}}}`},
	{"admin", `{"controlRun": {"id": "removed", "action": "cancel"}}`},
	{"", `{"mirrored": {"upTo": "1000000"}}`}, // else it could not be removed
	{"admin", `{"controlRun": {"id": "removed", "action": "remove"}}`},
}

// driver proposes operations and remembers of which kinds they were.
type driver struct {
	ctx  context.Context
	node *coordinator.Node
	seq  map[string]uint64
	seen map[protoreflect.Name]bool
}

// fill drives a small fleet through everything that can happen to a run, with
// two snapshots on the way and work in flight at the end.
func fill(ctx context.Context, dir string, kill bool) error {
	cfg := coordinator.DefaultConfig(dir)
	cfg.Version = "upgrade"
	cfg.SegmentBytes, cfg.SnapshotAfter, cfg.SnapshotEvery, cfg.TrailingLogs = 64<<10, 1<<40, time.Hour, 8
	cfg.Tick = time.Hour // what the log holds is ours alone
	n, err := coordinator.Open(ctx, cfg)
	if err != nil {
		return err
	}
	d := &driver{ctx: ctx, node: n, seq: map[string]uint64{}, seen: map[protoreflect.Name]bool{}}
	err = d.everything()
	if err == nil {
		err = d.complete(dir)
	}
	if err == nil && kill {
		return syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	return errors.Join(err, n.Close())
}

func (d *driver) everything() error {
	f := &fleet{driver: d}
	if err := f.begin(); err != nil {
		return err
	}
	for range 2 {
		if err := f.step(true); err != nil {
			return err
		}
	}
	if err := d.node.Snapshot(); err != nil {
		return err
	}
	if err := f.step(false); err != nil { // committed, and not published: there is something to roll back
		return err
	}
	if err := f.later(); err != nil {
		return err
	}
	if err := f.leave(); err != nil {
		return err
	}
	if err := d.node.Snapshot(); err != nil {
		return err
	}
	return f.after()
}

// propose commits one operation and wants it accepted.
func (d *driver) propose(client string, op *raftlog.Op) (*raftlog.Result, error) {
	p := &raftlog.Proposal{Client: client, Op: op}
	if client != "" {
		d.seq[client]++
		p.Seq = d.seq[client]
	}
	kind := op.ProtoReflect().WhichOneof(op.ProtoReflect().Descriptor().Oneofs().Get(0))
	if kind == nil {
		return nil, errors.New("an operation of no kind")
	}
	r, err := d.node.Propose(d.ctx, p)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", kind.Name(), err)
	}
	if r.Code != raftlog.Code_CODE_OK {
		return nil, fmt.Errorf("%s: %s: %s", kind.Name(), r.Code, r.Message)
	}
	for _, c := range r.GetItems().GetCodes() {
		if c != raftlog.Code_CODE_OK {
			return nil, fmt.Errorf("%s: items %s: %s", kind.Name(), r.GetItems().Codes, r.GetItems().Messages)
		}
	}
	d.seen[kind.Name()] = true
	return r, nil
}

// later proposes the operations that came after the oldest kept commit.
func (f *fleet) later() error {
	for _, l := range later {
		op := &raftlog.Op{}
		err := protojson.Unmarshal([]byte(l.op), op)
		if err != nil && strings.Contains(err.Error(), "unknown field") {
			return nil
		}
		if err == nil {
			_, err = f.propose(l.client, op)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// complete reports an operation that was never proposed, a record of a kind
// that no state has, or a snapshot that is missing: this program has fallen
// behind the messages.
func (d *driver) complete(dir string) error {
	var missing []string
	for _, f := range oneof(&raftlog.Op{}) {
		if !d.seen[f] {
			missing = append(missing, "operation "+string(f))
		}
	}
	s, _, err := d.node.Read(d.ctx)
	if err != nil {
		return err
	}
	have := map[protoreflect.Name]bool{}
	s.Records(func(r *raftlog.Record) bool {
		m := r.ProtoReflect()
		have[m.WhichOneof(m.Descriptor().Oneofs().Get(0)).Name()] = true
		return true
	})
	for _, f := range oneof(&raftlog.Record{}) {
		if !have[f] {
			missing = append(missing, "record "+string(f))
		}
	}
	snapshots, err := filepath.Glob(filepath.Join(dir, "snapshots", "*", "state.bin"))
	if err != nil {
		return err
	}
	if len(snapshots) != 2 {
		missing = append(missing, fmt.Sprintf("snapshots: %d of 2", len(snapshots)))
	}
	if len(missing) > 0 {
		return fmt.Errorf("not in the data: %s; let test/upgrade/make make them", strings.Join(missing, ", "))
	}
	return nil
}

func oneof(m protoreflect.ProtoMessage) (names []protoreflect.Name) {
	fields := m.ProtoReflect().Descriptor().Oneofs().Get(0).Fields()
	for i := range fields.Len() {
		names = append(names, fields.Get(i).Name())
	}
	return names
}
