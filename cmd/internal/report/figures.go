package report

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/rlfleet/rlfleet/trainer"
)

// What fits side by side: bars, points of a line, evaluations. Longer runs are shown by means over equal parts.
const (
	bars   = 60
	points = 240
	shown  = 40
)

func (f *facts) figures() []section {
	sections := []section{
		{Title: "Reward", Figures: []figure{f.reward()}},
		{Title: "Outcomes and lag", Figures: []figure{f.verdictChart(), f.endChart(), f.lagChart(), f.lagOverTime()}},
		{Title: "Throughput", Note: "By the run's own clock, which stands still while the run is not being worked on.", Figures: f.throughput()},
		{Title: "Training", Note: "One value for each step; step n trains version n and makes version n + 1.", Figures: f.training()},
	}
	return sections
}

// versionAxis is the x axis of everything that goes by version.
func (f *facts) versionAxis(ticks int) axis {
	return newAxis("version", 0, float64(max(f.newest, 1)), ticks, true)
}

// metric returns one metric by the version that each step trained from; NaN
// where it was not measured. Of many steps it returns means over equal parts, of lag_max the greatest.
func (f *facts) metric(name string) (xs, ys []float64) {
	steps := f.run.Steps
	n := min(len(steps), points)
	for i := range n {
		part := steps[i*len(steps)/n : (i+1)*len(steps)/n]
		sum, k, most := 0.0, 0, math.Inf(-1)
		for _, s := range part {
			if v, ok := s.Metrics[name]; ok {
				sum, k, most = sum+v, k+1, max(most, v)
			}
		}
		y := math.NaN()
		switch {
		case k > 0 && name == trainer.LagMax:
			y = most
		case k > 0:
			y = sum / float64(k)
		}
		xs, ys = append(xs, float64(part[0].Step)), append(ys, y)
	}
	return xs, ys
}

// some returns at most about n of a list, evenly spaced, with its first and its last.
func some[T any](list []T, n int) []T {
	every := (len(list) + n - 1) / n
	if every <= 1 {
		return list
	}
	var out []T
	for i := 0; i < len(list)-1; i += every {
		out = append(out, list[i])
	}
	return append(out, list[len(list)-1])
}

func (f *facts) reward() figure {
	xs, mean := f.metric(trainer.RewardMean)
	_, std := f.metric(trainer.RewardStd)
	lo, hi := make([]float64, len(xs)), make([]float64, len(xs))
	for i := range xs {
		lo[i], hi[i] = mean[i]-std[i], mean[i]+std[i]
	}
	fig := figure{
		Size: "wide", Title: "Mean reward by version",
		Note: "Training: the batch that a version was trained with. Evaluation: that version on tasks which training never sees.",
	}
	suites, by := f.evals()
	evals := []float64{}
	for _, s := range suites {
		for _, e := range by[s] {
			if e.Scored > 0 {
				evals = append(evals, e.Reward)
			}
		}
	}
	low, high := bounds(mean, evals)
	if math.IsNaN(low) {
		fig.SVG = empty(wideWidth, wideHeight)
		return fig
	}
	y := upTo("reward", low, high, 5)
	if low >= 0 && high <= 1 { // the usual scale, the same from run to run
		y = newAxis("reward", 0, 1, 5, false)
	}
	p := newPlot(wideWidth, wideHeight, f.versionAxis(12), y, fig.Title)
	p.band(xs, lo, hi, "c1")
	if target := f.run.Config.StopEvalReward; target != nil && *target <= y.hi {
		p.line(p.left, p.py(*target), p.width-p.right, p.py(*target), "target")
		p.text(p.left+6, p.py(*target)-5, "tick", fmt.Sprintf("stops at %s on evaluation", number(*target)))
	}
	p.curve(xs, mean, "c1")
	p.hover(xs, []series{{"training", "", mean}, {"deviation", "", std}})
	fig.Legend = []key{{"line", "c1", "training, mean of the batch"}, {"band", "c1", "± one deviation over its episodes"}}
	for i, s := range suites {
		class := []string{"c8", "c5", "c3"}[i%3]
		var ex, ey []float64
		for _, e := range some(by[s], shown) {
			if e.Scored > 0 {
				ex, ey = append(ex, float64(e.Version)), append(ey, e.Reward)
			}
		}
		p.curve(ex, ey, class)
		for k := range ex {
			p.dot(ex[k], ey[k], 4, class, fmt.Sprintf("version %.0f\n%s %.3f", ex[k], s, ey[k]))
		}
		fig.Legend = append(fig.Legend, key{"dot", class, "evaluation " + s})
	}
	fig.SVG = p.done()
	return fig
}

// bins cuts the versions into at most about sixty ranges of equal length.
func (f *facts) bins() (from []float64) {
	n := f.began
	width := max((n+bars-1)/bars, 1)
	for v := int64(0); v < n; v += width {
		from = append(from, float64(v))
	}
	return append(from, float64(n))
}

// count sums over the versions of each range.
func (f *facts) count(from []float64, of func(byVersion) int) []int {
	out := make([]int, len(from)-1)
	for i := range out {
		for v := int(from[i]); v < int(from[i+1]); v++ {
			out[i] += of(f.versions[v])
		}
	}
	return out
}

func (f *facts) barAxis() axis { return newAxis("version", 0, float64(f.began), 8, true) }

func (f *facts) verdictChart() figure {
	from := f.bins()
	var parts []part
	for _, v := range []struct{ name, class string }{{"pass", "pass"}, {"fail", "fail"}, {"indeterminate", "unknown"}, {"not_run", "none"}} {
		if n := f.verdicts[v.name]; n[0] > 0 {
			parts = append(parts, part{words(v.name), v.class, f.count(from, func(b byVersion) int { return b.verdicts[v.name] })})
		}
	}
	return stacked("Verdicts by version", "Training episodes, by the version that began them.", "episodes", f.barAxis(), from, parts)
}

// endChart shows the most frequent end reasons by name and the others together.
func (f *facts) endChart() figure {
	from := f.bins()
	names := []string{}
	for _, r := range f.reasons() {
		if slices.ContainsFunc(f.versions, func(b byVersion) bool { return b.ends[r] > 0 }) {
			names = append(names, r)
		}
	}
	classes := []string{"c1", "c3", "c5", "c7", "c2"}
	var parts []part
	for i, r := range names {
		n := f.count(from, func(b byVersion) int { return b.ends[r] })
		if i < len(classes) {
			parts = append(parts, part{words(r), classes[i], n})
			continue
		}
		if i == len(classes) {
			parts = append(parts, part{"other", "unknown", make([]int, len(n))})
		}
		for k := range n {
			parts[len(classes)].n[k] += n[k]
		}
	}
	return stacked("End reasons by version", "Training attempts, those that were repeated too.", "attempts", f.barAxis(), from, parts)
}

func (f *facts) lagChart() figure {
	trained := 0
	for _, n := range f.lag {
		trained += n
	}
	counts := f.lag
	for len(counts) <= int(f.run.Config.LagMax) && len(counts) < 20 { // the allowed lags that did not occur are a result too
		counts = append(counts, 0)
	}
	note := fmt.Sprintf("Step minus the version of an episode's oldest token; at most %d is allowed. %s of the episodes go across a switch of versions.", f.run.Config.LagMax, percent(f.straddle, trained))
	return histogram("Lag of the trained episodes", note, "lag, versions", "episodes", counts, "c1")
}

func (f *facts) lagOverTime() figure {
	xs, mean := f.metric(trainer.LagMean)
	_, most := f.metric(trainer.LagMax)
	return lines("half", "Lag by step", "Over the tokens in the loss.", f.versionAxis(8), "versions", xs, series{"largest", "c8", most}, series{"mean", "c1", mean})
}

// throughput draws what was finished in equal spans of the run's time.
func (f *facts) throughput() []figure {
	wall := f.last.Sub(f.run.CreatedAt)
	width := time.Second
	for _, s := range []time.Duration{1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 21600, 86400} {
		width = s * time.Second
		if wall <= width*bars {
			break
		}
	}
	n := int(wall/width) + 1
	unit, per := "s", time.Second
	if wall > 5*time.Minute {
		unit, per = "min", time.Minute
	}
	if wall > 5*time.Hour {
		unit, per = "h", time.Hour
	}
	xs := make([]float64, n)
	for i := range xs {
		xs[i] = (float64(i) + 0.5) * float64(width) / float64(per)
	}
	x := newAxis("time since the start, "+unit, 0, float64(n)*float64(width)/float64(per), 8, false)
	rate := func(list []moment) []float64 {
		ys := make([]float64, n)
		for _, m := range list {
			if i := int(m.at.Sub(f.run.CreatedAt) / width); i >= 0 && i < n {
				ys[i] += float64(m.n) / width.Seconds()
			}
		}
		// The last span may have hardly begun.
		if rest := wall - time.Duration(n-1)*width; n > 1 && rest > 0 {
			ys[n-1] *= float64(width) / float64(max(rest, width/5))
		}
		return ys
	}
	note := fmt.Sprintf("Means over %s, training and evaluation.", width)
	return []figure{
		lines("half", "Episodes settled", note, x, "episodes a second", xs, series{"episodes a second", "c1", rate(f.settled)}),
		lines("half", "Tokens sampled", note+" Counted when the episode is sealed.", x, "tokens a second", xs, series{"tokens a second", "c2", rate(f.sealed)}),
	}
}

func (f *facts) training() []figure {
	var out []figure
	for _, c := range []struct {
		title, unit string
		names       []string // a metric and what the legend says, in turn
	}{
		{"Entropy", "nats a token", []string{trainer.Entropy, "entropy"}},
		{"KL to the behaviour policy", "nats a token", []string{trainer.KLBehaviour, "KL"}},
		{"Gradient norm", "L2, before clipping", []string{trainer.GradNorm, "gradient norm"}},
		{"Clipped tokens", "share of the tokens", []string{trainer.ClipFractionPos, "positive advantage", trainer.ClipFractionNeg, "negative"}},
		{"Effective sample size", "share of the tokens", []string{trainer.ESS, "effective sample size"}},
		{"Loss", "as minimised", []string{trainer.Loss, "loss"}},
		{"Episode length", "sampled tokens", []string{trainer.LengthP95, "95th percentile", trainer.LengthP50, "median"}},
		{"Groups and members without effect", "share", []string{trainer.ZeroVariance, "groups of one reward", trainer.Masked, "masked", trainer.Truncated, "truncated"}},
		{"Time of a step", "seconds", []string{trainer.WaitSeconds, "waiting for the batch", trainer.TrainSeconds, "training"}},
	} {
		var list []series
		var xs []float64
		for i := 0; i < len(c.names); i += 2 {
			x, y := f.metric(c.names[i])
			xs = x
			list = append(list, series{c.names[i+1], []string{"c1", "c8", "c5"}[i/2], y})
		}
		out = append(out, lines("third", c.title, "", f.versionAxis(6), c.unit, xs, list...))
	}
	return out
}
