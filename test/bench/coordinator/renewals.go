package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlfleet/rlfleet/coordinator/client"
	"github.com/rlfleet/rlfleet/coordinator/lease"
	"github.com/rlfleet/rlfleet/coordinator/state"
	"github.com/rlfleet/rlfleet/test/bench/figure"
	"github.com/rlfleet/rlfleet/test/bench/load"
)

const (
	workers = 100 // that renew
	held    = 100 // leases of each
)

// renewals counts the log entries of one TTL in which nothing happens but that
// workers, each a session as in a fleet, renew 10,000 leases.
func (b *bench) renewals(ctx context.Context) (lines []figure.Line, err error) {
	ours, err := b.cluster(ctx)
	if err != nil {
		return nil, err
	}
	clients, end, err := ours.clients(ctx, "renew", connections, workers)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, end()) }()
	run := fmt.Sprint("renewals-", time.Now().UnixMilli())
	fleet, err := load.NewFleet(ctx, run, clients)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, fleet.Close(ctx)) }()
	var lost atomic.Int64
	sessions, err := b.hold(ctx, run, clients, func() { lost.Add(1) })
	defer func() {
		for _, s := range sessions {
			err = errors.Join(err, s.Close(ctx))
		}
	}()
	if err != nil {
		return nil, err
	}
	ttl := time.Duration(state.LeaseTTL)
	select { // until the rounds of renewals have begun
	case <-time.After(ttl / 4):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	_, before, err := ours.leader(ctx)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	select {
	case <-time.After(ttl):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	_, after, err := ours.leader(ctx)
	if err != nil {
		return nil, err
	}
	if n := lost.Load(); n > 0 || before.Term != after.Term {
		return nil, fmt.Errorf("%d leases were lost, terms %d and %d", n, before.Term, after.Term)
	}
	entries := float64(after.Commit-before.Commit) * ttl.Seconds() / time.Since(began).Seconds()
	return []figure.Line{figure.New("renewal_entries_per_ttl", entries, "entries", figure.AtMost(40))}, nil
}

// hold opens a session for each worker and leases what it holds.
func (b *bench) hold(ctx context.Context, run string, clients []*client.Client, lost func()) ([]*client.Session, error) {
	sessions, errs := make([]*client.Session, b.count(workers, 10)), make([]error, workers)
	var wg sync.WaitGroup
	for i := range sessions {
		wg.Go(func() {
			sessions[i], errs[i] = clients[i%len(clients)].NewSession(ctx, client.SessionConfig{
				Role: state.RoleRollout, Name: fmt.Sprint(run, "-s", i), Run: run, Logger: slog.New(slog.DiscardHandler),
			})
			if errs[i] != nil {
				return
			}
			res, err := sessions[i].LeaseEpisodes(ctx, run, held)
			if errs[i] = err; err == nil && len(res.Grants) != held {
				errs[i] = fmt.Errorf("%d of %d episodes were granted: the run waits for %s", len(res.Grants), held, res.WaitsFor)
			}
			for _, g := range res.GetGrants() {
				sessions[i].Hold(lease.Token{Resource: lease.Episode(g.Run, g.Group, g.Index), Fence: lease.Fence(g.Fence), TTL: time.Duration(res.TtlNs)}, lost)
			}
		})
	}
	wg.Wait()
	var open []*client.Session
	for _, s := range sessions {
		if s != nil {
			open = append(open, s)
		}
	}
	return open, errors.Join(errs...)
}
