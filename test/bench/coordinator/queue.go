package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rlfleet/rlfleet/coordinator"
	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	"github.com/rlfleet/rlfleet/test/bench/figure"
	"github.com/rlfleet/rlfleet/test/bench/load"
)

// queue compares commands a second through the queue with one command an
// entry, at the level of Propose: three nodes in this process, log on disk, TCP
// between them, 64 clients with 16 commands each on their way. One command an
// entry has as many entries on their way as it likes, so that raft can write many at a time.
func (b *bench) queue(ctx context.Context) ([]figure.Line, error) {
	var ratios []float64
	for round := range b.count(3, 1) {
		each := map[string]float64{}
		for name, change := range map[string]func(*coordinator.Config){
			"one":  func(c *coordinator.Config) { c.BatchCount, c.InFlight = 1, commands },
			"many": func(*coordinator.Config) {},
		} {
			rate, err := b.propose(ctx, filepath.Join(b.work, "queue", fmt.Sprint(name, round)), change)
			if err != nil {
				return nil, err
			}
			each[name] = rate
		}
		b.note("queue: %.0f commands/s, one an entry %.0f", each["many"], each["one"])
		ratios = append(ratios, each["many"]/each["one"])
	}
	return []figure.Line{figure.New("queue_batching", median(ratios), "ratio", figure.AtLeast(6))}, nil
}

// commands are on their way at a time.
const commands = 64 * 16

// propose opens three nodes and returns how many commands a second they commit.
func (b *bench) propose(ctx context.Context, dir string, change func(*coordinator.Config)) (rate float64, err error) {
	nodes, err := trio(ctx, dir, change)
	defer func() {
		var wg sync.WaitGroup
		for _, n := range nodes {
			if n != nil {
				wg.Go(func() { _ = n.Close() }) // what it measured is known
			}
		}
		wg.Wait()
	}()
	if err != nil {
		return 0, err
	}
	var leader *coordinator.Node
	if err := until(ctx, startWithin, func(context.Context) error {
		for _, n := range nodes {
			if n.Status().State == "leader" {
				leader = n
				return nil
			}
		}
		return errors.New("no node leads")
	}); err != nil {
		return 0, err
	}
	seqs := make([]uint64, commands)
	cfg := load.DefaultConfig(commands)
	cfg.For = time.Duration(b.count(2000, 500)) * time.Millisecond
	f, err := load.Drive(ctx, cfg, func(ctx context.Context, c int) (int, error) {
		ref := &raftlog.NodeRef{Role: state.RoleRollout, Name: fmt.Sprint("w", c), Incarnation: 1}
		op := &raftlog.Op{Op: &raftlog.Op_Heartbeat{Heartbeat: &raftlog.Heartbeat{Node: ref}}}
		if seqs[c] == 0 {
			op = &raftlog.Op{Op: &raftlog.Op_Register{Register: &raftlog.Register{Node: ref}}}
		}
		seqs[c]++
		_, err := leader.Propose(ctx, &raftlog.Proposal{Client: fmt.Sprint("c", c), Seq: seqs[c], Op: op})
		return 1, err
	})
	return f.Rate(), err
}

// trio opens three nodes that reach each other over loopback.
func trio(ctx context.Context, dir string, change func(*coordinator.Config)) ([]*coordinator.Node, error) {
	var servers []raft.Server
	var transports []raft.Transport
	for i := range 3 {
		t, err := raft.NewTCPTransport("127.0.0.1:0", nil, 3, 10*time.Second, io.Discard)
		if err != nil {
			return nil, err
		}
		transports = append(transports, t)
		servers = append(servers, raft.Server{ID: raft.ServerID(fmt.Sprint("n", i)), Address: t.LocalAddr()})
	}
	nodes, errs := make([]*coordinator.Node, 3), make([]error, 3)
	var wg sync.WaitGroup
	for i := range nodes { // together: each waits for a leader
		wg.Go(func() {
			cfg := coordinator.DefaultConfig(filepath.Join(dir, string(servers[i].ID)))
			cfg.Node, cfg.Servers, cfg.Transport, cfg.Election = string(servers[i].ID), servers, transports[i], time.Second
			change(&cfg)
			nodes[i], errs[i] = coordinator.Open(ctx, cfg)
		})
	}
	wg.Wait()
	return nodes, errors.Join(errs...)
}
