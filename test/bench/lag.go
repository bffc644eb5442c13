package main

import (
	"context"
	"fmt"
	"math"

	"github.com/rlfleet/rlfleet/test/bench/figure"
	"github.com/rlfleet/rlfleet/trajectory"
)

// lag runs the long-tailed variant under lag.max 2 and under 0, the same steps
// with the same seed, and compares their pace; then it asks whether the
// episodes that were trained took as long as those that were dispatched.
func (b *bench) lag(ctx context.Context) ([]figure.Line, error) {
	steps, warm := b.count(32, 8), b.count(6, 2)
	var pace [2]float64
	var under *trajectory.Run // lag.max 2
	for i, most := range []int{2, 0} {
		run, err := b.latency(ctx, steps, most)
		if err != nil {
			return nil, err
		}
		if pace[i], err = stepsPerMinute(run, warm, steps, 2); err != nil {
			return nil, err
		}
		if most == 2 {
			under = run
		}
	}
	b.note("lag: %.1f steps a minute under lag.max 2, %.1f under 0", pace[0], pace[1])
	trained, dispatched := durations(under)
	d := distance(trained, dispatched)
	b.note("lag: episodes trained: %s; dispatched: %s", quartiles(trained), quartiles(dispatched))
	return []figure.Line{
		figure.New("lag_speedup", pace[0]/pace[1], "ratio", figure.AtLeast(1.5)),
		figure.New("lag_duration_ks", d, "distance", figure.AtMost(critical(len(trained), len(dispatched)))),
	}, nil
}

// latency runs the long-tailed variant to its end.
func (b *bench) latency(ctx context.Context, steps, most int) (*trajectory.Run, error) {
	r, err := b.start(ctx, "latency.yaml", fmt.Sprintf("lag%d", most),
		fmt.Sprintf("spec.steps=%d", steps), fmt.Sprintf("spec.lag.max=%d", most), "spec.eval.every=200")
	if err != nil {
		return nil, err
	}
	if _, err := r.wait(); err != nil {
		return nil, err
	}
	return r.record(ctx)
}

// stepsPerMinute is the pace after the first steps and without the last ones.
// At both ends of that time as many batches are on their way: the last steps of
// a run under lag find theirs ready and nothing admitted after them.
func stepsPerMinute(r *trajectory.Run, first, steps, last int) (float64, error) {
	if len(r.Steps) != steps {
		return 0, fmt.Errorf("run %s has %d steps, want %d", r.ID, len(r.Steps), steps)
	}
	took := r.Steps[steps-1-last].CommittedAt.Sub(r.Steps[first-1].CommittedAt)
	return float64(steps-first-last) / took.Minutes(), nil
}

// durations returns the seconds of each episode that was trained in the first
// half of the steps, and of each that was dispatched for them: of as many groups
// in the order of their admission. At the end of a run the two are the same
// groups; in its middle they differ where slow groups are passed over.
func durations(r *trajectory.Run) (trained, dispatched []float64) {
	half := int64(len(r.Steps) / 2)
	room := 0
	for _, g := range r.Groups {
		if g.Suite == "" && g.End != nil && g.End.Outcome == "consumed" && g.End.Step < half {
			trained = append(trained, seconds(g)...)
			room++
		}
	}
	for _, g := range r.Groups { // in the order of admission
		if g.Suite == "" && room > 0 {
			dispatched = append(dispatched, seconds(g)...)
			room--
		}
	}
	return trained, dispatched
}

// seconds are the durations of a group's sealed attempts.
func seconds(g *trajectory.Group) []float64 {
	var out []float64
	for _, a := range g.Attempts {
		if a.Sealed != nil {
			out = append(out, float64(a.Sealed.DurationNs)/1e9)
		}
	}
	return out
}

// quartiles describes durations for a note.
func quartiles(s []float64) string {
	if len(s) == 0 {
		return "none"
	}
	return fmt.Sprintf("%d, p50 %.2f p90 %.2f p99 %.2f s", len(s), quantile(s, 0.5), quantile(s, 0.9), quantile(s, 0.99))
}

// critical is the two-sample Kolmogorov–Smirnov distance that samples of these
// sizes exceed in 5 % of cases when they are of one distribution: c(α)·√((n+m)/(n·m))
// with c(0.05) = √(−ln(0.05/2)/2) ≈ 1.358 (Smirnov, 1948).
func critical(n, m int) float64 {
	if n == 0 || m == 0 {
		return 0
	}
	return math.Sqrt(-math.Log(0.05/2)/2) * math.Sqrt(float64(n+m)/(float64(n)*float64(m)))
}
