package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rlfleet/rlfleet/test/bench/figure"
	"github.com/rlfleet/rlfleet/test/bench/load"
)

// failover kills the leader twenty times, each time once all nodes are level,
// and measures until a client has its next grant.
func (b *bench) failover(ctx context.Context) (lines []figure.Line, err error) {
	ours, err := b.cluster(ctx)
	if err != nil {
		return nil, err
	}
	clients, end, err := ours.clients(ctx, "failover", 1, 4)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, end()) }()
	fleet, err := load.NewFleet(ctx, fmt.Sprint("failover-", time.Now().UnixMilli()), clients)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, fleet.Close(ctx)) }()
	var took, led []float64
	for kill := range b.count(20, 3) {
		if err := ours.level(ctx, func() error {
			_, err := fleet.Grant(ctx, 0, 1) // and the client knows the leader
			return err
		}); err != nil {
			return nil, fmt.Errorf("before kill %d: %w", kill, err)
		}
		leader, _, err := ours.leader(ctx)
		if err != nil {
			return nil, err
		}
		from := time.Now()
		leader.process.kill()
		leader.process = nil
		if _, err := fleet.Grant(ctx, 0, 1); err != nil {
			return nil, fmt.Errorf("after kill %d: %w", kill, err)
		}
		took = append(took, time.Since(from).Seconds())
		if _, _, err := ours.leader(ctx); err == nil {
			led = append(led, ours.led().Sub(from).Seconds())
		}
		if err := ours.run(leader); err != nil {
			return nil, err
		}
	}
	b.note("failover: %.2f s; a node led after %.2f s", took, led)
	return []figure.Line{
		figure.New("failover_median", median(took), "s", figure.AtMost(2)),
		figure.New("failover_max", slices.Max(took), "s", figure.AtMost(4)),
	}, nil
}
