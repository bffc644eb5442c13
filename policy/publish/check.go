package publish

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/rlfleet/rlfleet/policy"
	"github.com/rlfleet/rlfleet/policy/engine"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

const (
	// agree is how far apart the log-probabilities of two engines with the same
	// weights may be, in nats. The same binary gives the same bits; 1e-4 leaves
	// room for another architecture.
	agree = 1e-4
	// floor is the smallest calibration, in nats. Measured on the example's task
	// with its default settings, one version moves eight probes by 0.03 to 0.16, the
	// whole of training by 2.8; other weights are several nats away at once.
	floor = 0.5
)

// check scores the probes under the new version on every engine. It returns the
// engines that answered, the scores, and how far the policy stepped (see drift).
func (p *Publisher) check(ctx context.Context, g *raftlog.LeasePublishResult, m *memory, targets []target) ([]target, [][]float32, float64, error) {
	if len(p.cfg.Probes) == 0 {
		return targets, nil, 0, nil
	}
	all := make([][][]float32, len(targets))
	errs := each(ctx, p.cfg.Score, targets, func(ctx context.Context, i int, t target) (err error) {
		all[i], err = t.engine.Score(ctx, policy.Version(g.Version), p.cfg.Probes)
		if err == nil {
			err = p.shape(all[i])
		}
		return err
	})
	scored := p.keep("probe", targets, errs)
	if err := ctx.Err(); err != nil {
		return nil, nil, 0, err
	}
	if len(scored) == 0 {
		for _, err := range errs {
			if errors.Is(err, engine.ErrTooLong) || errors.Is(err, engine.ErrInvalid) {
				return nil, nil, 0, fmt.Errorf("publish: probe version %d: %w: %w", g.Version, errProbes, err)
			}
		}
		return nil, nil, 0, fmt.Errorf("publish: probe version %d: no engine answered: %w", g.Version, errors.Join(errs...))
	}
	var first [][]float32
	var from string
	for i, t := range targets {
		if errs[i] != nil {
			continue
		}
		if prompt, token, bad := notFinite(all[i]); bad {
			return nil, nil, 0, rejection{fmt.Sprintf("engine %s: log-probability of probe %d token %d is not finite", t.name, prompt, token)}
		}
		if first == nil {
			first, from = all[i], t.name
			continue
		}
		if d := furthest(first, all[i]); d > agree {
			return nil, nil, 0, rejection{fmt.Sprintf("engines %s and %s differ by up to %.3g nats on the probes, and the same weights differ by at most %.0e", from, t.name, d, agree)}
		}
	}
	step, err := p.drift(ctx, g, m, scored, first)
	return scored, first, step, err
}

// shape refuses an answer that is not one score for each token after the first.
func (p *Publisher) shape(scores [][]float32) error {
	if len(scores) != len(p.cfg.Probes) {
		return fmt.Errorf("publish: engine scored %d of %d probes", len(scores), len(p.cfg.Probes))
	}
	for i, s := range scores {
		if len(s) != len(p.cfg.Probes[i])-1 {
			return fmt.Errorf("publish: engine gave %d scores for probe %d of %d tokens", len(s), i, len(p.cfg.Probes[i]))
		}
	}
	return nil
}

// drift compares the new version with the live one and rejects a wild jump.
//
//	diff  = mean over all probe tokens of |ln π_new − ln π_live|
//	step  = diff / (new − live), the versions between the two
//	limit = maxMeanDiff × max(floor, largest step accepted so far)
//
// and step must not exceed limit. Version 0 has nothing to be compared with; the
// first publishes after it set the calibration, and until then the floor stands
// for it. The calibration only rises, so that a policy that sharpens is not
// taken for a broken one. It returns step.
func (p *Publisher) drift(ctx context.Context, g *raftlog.LeasePublishResult, m *memory, targets []target, scores [][]float32) (float64, error) {
	if g.Live < 0 || g.Live >= g.Version {
		return 0, nil
	}
	live := p.liveScores(ctx, g, m, targets)
	if live == nil {
		p.deps.Log.Info("publish: nothing to compare with", "run", g.Run, "policy_version", g.Version, "live", g.Live)
		return 0, ctx.Err()
	}
	step := meanDiff(live, scores) / float64(g.Version-g.Live)
	limit := p.cfg.MaxMeanDiff * max(floor, m.steps)
	if !(step <= limit) { // also when it is not a number
		return step, rejection{fmt.Sprintf("probes moved by %.3g nats per version from version %d, and the limit is %.3g (%g × the calibration)", step, g.Live, limit, p.cfg.MaxMeanDiff)}
	}
	return step, nil
}

// liveScores returns the scores of the live version: those from when it was
// published, or those of the first engine that still serves it; nil when none does.
func (p *Publisher) liveScores(ctx context.Context, g *raftlog.LeasePublishResult, m *memory, targets []target) [][]float32 {
	if m.live == g.Live && m.scores != nil {
		return m.scores
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Score)
	defer cancel()
	for _, t := range targets {
		now, ok, err := t.engine.Serving(ctx)
		if err != nil || !ok || int64(now) != g.Live {
			continue
		}
		s, err := t.engine.Score(ctx, now, p.cfg.Probes)
		if _, _, bad := notFinite(s); err == nil && p.shape(s) == nil && !bad {
			return s
		}
	}
	return nil
}

func notFinite(scores [][]float32) (prompt, token int, bad bool) {
	for i, s := range scores {
		for j, x := range s {
			if x-x != 0 {
				return i, j + 1, true
			}
		}
	}
	return 0, 0, false
}

// furthest returns the largest absolute difference of two answers of one shape.
func furthest(a, b [][]float32) float64 {
	d := 0.0
	for i := range a {
		for j := range a[i] {
			d = max(d, math.Abs(float64(a[i][j])-float64(b[i][j])))
		}
	}
	return d
}

// meanDiff returns the mean absolute difference over all tokens.
func meanDiff(a, b [][]float32) float64 {
	sum, n := 0.0, 0
	for i := range a {
		for j := range a[i] {
			sum += math.Abs(float64(a[i][j]) - float64(b[i][j]))
			n++
		}
	}
	return sum / float64(n)
}
