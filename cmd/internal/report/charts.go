package report

import (
	"fmt"
	"html/template"
	"math"
	"strings"
)

// series is one line of a chart.
type series struct {
	name, class string
	y           []float64
}

// bounds returns the least and greatest of all finite values; NaN when there are none.
func bounds(all ...[]float64) (lo, hi float64) {
	lo, hi = math.NaN(), math.NaN()
	for _, ys := range all {
		for _, v := range ys {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				continue
			}
			if math.IsNaN(lo) || v < lo {
				lo = v
			}
			if math.IsNaN(hi) || v > hi {
				hi = v
			}
		}
	}
	return lo, hi
}

// empty stands where there is nothing to draw.
func empty(width, height int) template.HTML {
	return template.HTML(fmt.Sprintf(`<svg viewBox="0 0 %d %d" role="img" aria-label="nothing to draw"><text x="%d" y="%d" class="tick middle">nothing recorded</text></svg>`, width, height, width/2, height/2))
}

// lines draws series over shared x values.
func lines(size string, title, note string, x axis, unit string, xs []float64, list ...series) figure {
	width, height, ticks := dimensions(size)
	f := figure{Size: size, Title: title, Note: note}
	var all [][]float64
	for _, s := range list {
		all = append(all, s.y)
		if len(list) > 1 {
			f.Legend = append(f.Legend, key{"line", s.class, s.name})
		}
	}
	lo, hi := bounds(all...)
	if math.IsNaN(lo) {
		f.SVG, f.Legend = empty(width, height), nil
		return f
	}
	p := newPlot(width, height, x, upTo(unit, lo, hi, ticks), title)
	for _, s := range list {
		p.curve(xs, s.y, s.class)
	}
	p.hover(xs, list)
	f.SVG = p.done()
	return f
}

// hover lays invisible strips over the plot that say the values below the pointer.
func (p *plot) hover(xs []float64, list []series) {
	if len(xs) == 0 {
		return
	}
	half := (p.width - p.left - p.right) / 2 / float64(max(len(xs)-1, 1))
	for i, x := range xs {
		var b strings.Builder
		b.WriteString(p.x.at(x))
		for _, s := range list {
			if v := s.y[i]; !math.IsNaN(v) {
				fmt.Fprintf(&b, "\n%s %s", s.name, number(v))
			}
		}
		p.rect(max(p.px(x)-half, p.left), p.top, min(p.px(x)+half, p.width-p.right), p.height-p.bottom, "hover", b.String())
	}
}

func dimensions(size string) (width, height, ticks int) {
	switch size {
	case "wide":
		return wideWidth, wideHeight, 5
	case "half":
		return halfWidth, halfHeight, 4
	default:
		return thirdWidth, thirdHeight, 3
	}
}

// part is one layer of stacked bars.
type part struct {
	name, class string
	n           []int // one for each bar
}

// stacked draws shares of a whole: each bar is 100 %. from[i] is where bar i begins; the last entry is where the last ends.
func stacked(title, note, unit string, x axis, from []float64, parts []part) figure {
	width, height, _ := dimensions("half")
	f := figure{Size: "half", Title: title, Note: note}
	for _, s := range parts {
		f.Legend = append(f.Legend, key{"box", s.class, s.name})
	}
	total := make([]int, len(from)-1)
	any := false
	for _, s := range parts {
		for i, n := range s.n {
			total[i] += n
			any = any || n > 0
		}
	}
	if !any {
		f.SVG, f.Legend = empty(width, height), nil
		return f
	}
	y := newAxis("share of the "+unit, 0, 1, 4, false)
	y.format = func(v float64) string { return fmt.Sprintf("%.0f %%", 100*v) }
	p := newPlot(width, height, x, y, title)
	gap := 0.0
	if (p.width-p.left-p.right)/float64(len(total)) > 6 {
		gap = 1
	}
	for i, whole := range total {
		below := 0.0
		for _, s := range parts {
			if s.n[i] == 0 {
				continue
			}
			above := below + float64(s.n[i])/float64(whole)
			where := x.at(from[i])
			if last := from[i+1] - 1; last > from[i] {
				where += " to " + x.format(last)
			}
			p.rect(p.px(from[i]), p.py(above), p.px(from[i+1])-gap, p.py(below), s.class, fmt.Sprintf("%s\n%s: %s of %s (%s)", where, s.name, grouped(int64(s.n[i])), grouped(int64(whole)), percent(s.n[i], whole)))
			below = above
		}
	}
	f.SVG = p.done()
	return f
}

// histogram draws counts by a small whole number, each bar with its share.
func histogram(title, note, xLabel, yLabel string, counts []int, class string) figure {
	width, height, ticks := dimensions("half")
	f := figure{Size: "half", Title: title, Note: note}
	total, most := 0, 0
	for _, n := range counts {
		total, most = total+n, max(most, n)
	}
	if total == 0 {
		f.SVG = empty(width, height)
		return f
	}
	x := newAxis(xLabel, -0.5, float64(len(counts))-0.5, len(counts), true)
	// Room above the tallest bar for its label.
	p := newPlot(width, height, x, upTo(yLabel, 0, 1.12*float64(most), ticks), title)
	for i, n := range counts {
		v := float64(i)
		middle, half := p.px(v), min((p.px(v+1)-p.px(v))*0.36, 44)
		p.rect(middle-half, p.py(float64(n)), middle+half, p.py(0), class, fmt.Sprintf("lag %d: %s of %s", i, grouped(int64(n)), grouped(int64(total))))
		p.text(middle, p.py(float64(n))-5, "value middle", percent(n, total))
	}
	f.SVG = p.done()
	return f
}
