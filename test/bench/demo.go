package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rlfleet/rlfleet/test/bench/figure"
)

// demo runs a few steps of the demo and measures its memory, what recording
// takes of its processor time, and what it uses while it is paused.
func (b *bench) demo(ctx context.Context) ([]figure.Line, error) {
	steps := b.count(8, 4)
	r, err := b.start(ctx, "experiment.yaml", "demo", fmt.Sprintf("spec.steps=%d", steps), "spec.eval.every=200", "spec.eval.suites[0].episodes=32")
	if err != nil {
		return nil, err
	}
	idle, err := r.idle(ctx, steps/2, time.Duration(b.count(10, 3))*time.Second)
	if err != nil {
		return nil, r.stop(err)
	}
	cpu, err := r.wait()
	if err != nil {
		return nil, err
	}
	lines := []figure.Line{
		figure.New("demo_rss", float64(r.peak)/(1<<20), "MiB", figure.AtMost(1536)),
		figure.New("idle_cpu", idle, "cores", figure.AtMost(0.02)),
	}
	run, err := r.record(ctx)
	if err != nil {
		return lines, err
	}
	each, episodes, err := b.recording(ctx, run)
	if err != nil {
		return lines, err
	}
	perEpisode := milli(cpu) / float64(episodes)
	b.note("record: %.3f ms of %.1f ms processor time an episode; 25,000 episodes: %.1f of %.0f s", each, perEpisode, 25*each, 25*perEpisode)
	return append(lines, figure.New("record_share", 100*each/perEpisode, "%", figure.AtMost(5))), nil
}

// settle is how long the roles may look for work more often than they do when nothing happens.
const settle = 6 * time.Second

// idle pauses the run after some steps and returns how many cores it uses over a time, once what was running has ended.
func (r *experimentRun) idle(ctx context.Context, after int, over time.Duration) (float64, error) {
	if err := r.reach(ctx, after, 3*time.Minute); err != nil {
		return 0, err
	}
	if err := r.control(ctx, "pause"); err != nil {
		return 0, err
	}
	for range 15 { // running episodes go on, and so does a step whose batch is there
		used, err := r.cores(ctx, time.Second)
		if err != nil {
			return 0, err
		}
		if used < 0.05 {
			break
		}
	}
	if err := pause(ctx, settle); err != nil {
		return 0, err
	}
	used, err := r.cores(ctx, over)
	return used, errors.Join(err, r.control(ctx, "resume"))
}

// cores returns how many cores the run's processes use, over a time.
func (r *experimentRun) cores(ctx context.Context, over time.Duration) (float64, error) {
	before, err := treeOf(r.cmd.Process.Pid)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := pause(ctx, over); err != nil {
		return 0, err
	}
	after, err := treeOf(r.cmd.Process.Pid)
	if err != nil {
		return 0, err
	}
	return (after.cpu() - before.cpu()).Seconds() / time.Since(began).Seconds(), nil
}
