package report

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"strconv"
	"strings"
)

// Sizes of a chart in pixels of its own; the page may scale it.
const (
	wideWidth, wideHeight   = 1080, 300
	halfWidth, halfHeight   = 526, 230
	thirdWidth, thirdHeight = 340, 170
)

// axis maps values to a side of the plot.
type axis struct {
	lo, hi float64
	ticks  []float64
	label  string // with its unit
	format func(float64) string
}

// newAxis covers lo to hi with about n round ticks. Whole says that only whole numbers make sense.
func newAxis(label string, lo, hi float64, n int, whole bool) axis {
	if math.IsNaN(lo) || math.IsNaN(hi) || lo > hi {
		lo, hi = 0, 1
	}
	if lo == hi {
		hi = lo + 1
		if !whole && lo != 0 {
			hi = lo + math.Abs(lo)/2
		}
	}
	step := round125((hi - lo) / float64(max(n, 1)))
	if whole {
		step = max(step, 1)
	}
	a := axis{lo: lo, hi: hi, label: label, format: number}
	for k := math.Ceil(lo/step - 1e-9); k*step <= hi+step*1e-9; k++ {
		a.ticks = append(a.ticks, k*step+0) // + 0 makes 0 of −0
	}
	return a
}

// at names a place on the axis: "version 12", "time since the start 40 s".
func (a axis) at(v float64) string {
	name, unit, _ := strings.Cut(a.label, ", ")
	return strings.TrimSpace(name + " " + a.format(v) + " " + unit)
}

// upTo is an axis from 0, or below where values are negative, to the first tick above the greatest value.
func upTo(label string, lo, hi float64, n int) axis {
	if math.IsNaN(lo) || math.IsNaN(hi) {
		lo, hi = 0, 1
	}
	lo, hi = min(lo, 0), max(hi, 0)
	if lo == hi {
		hi = 1
	}
	step := round125((hi - lo) / float64(n))
	return newAxis(label, math.Floor(lo/step+1e-9)*step, math.Ceil(hi/step-1e-9)*step, n, false)
}

// round125 returns the next number of the form 1, 2 or 5 × 10ⁿ.
func round125(x float64) float64 {
	if x <= 0 {
		return 1
	}
	base := math.Pow(10, math.Floor(math.Log10(x)))
	for _, m := range []float64{1, 2, 5, 10} {
		if m*base >= x*(1-1e-9) {
			return m * base
		}
	}
	return 10 * base
}

// number renders a value with about three digits.
func number(x float64) string {
	a := math.Abs(x)
	switch {
	case math.IsNaN(x):
		return "–"
	case a >= 1e6:
		return strconv.FormatFloat(x/1e6, 'g', 3, 64) + "M"
	case a >= 1e4:
		return strconv.FormatFloat(x/1e3, 'g', 3, 64) + "k"
	case a >= 1000:
		return grouped(int64(math.Round(x)))
	case a != 0 && a < 1e-4:
		return strconv.FormatFloat(x, 'e', 0, 64)
	default:
		return strconv.FormatFloat(x, 'g', 3, 64)
	}
}

// plot is a chart being drawn: a frame with two axes, and marks in it.
type plot struct {
	b                        strings.Builder
	width, height            float64
	left, right, top, bottom float64 // margins
	x, y                     axis
}

// newPlot draws the frame: grid, axes, ticks, labels.
func newPlot(width, height int, x, y axis, what string) *plot {
	p := &plot{width: float64(width), height: float64(height), right: 12, top: 22, bottom: 36, x: x, y: y}
	longest := 0
	for _, t := range y.ticks {
		longest = max(longest, len([]rune(y.format(t))))
	}
	p.left = 14 + 6.5*float64(longest)
	fmt.Fprintf(&p.b, `<svg viewBox="0 0 %d %d" role="img" aria-label="%s">`, width, height, html.EscapeString(what))
	for _, t := range y.ticks {
		class := "grid"
		if t == 0 || t == y.lo {
			class = "axis"
		}
		p.line(p.left, p.py(t), p.width-p.right, p.py(t), class)
		p.text(p.left-6, p.py(t)+3.5, "tick end", y.format(t))
	}
	for _, t := range x.ticks {
		p.line(p.px(t), p.height-p.bottom, p.px(t), p.height-p.bottom+4, "axis")
		p.text(p.px(t), p.height-p.bottom+16, "tick middle", x.format(t))
	}
	p.text(p.left, 11, "label", y.label)
	p.text(p.width-p.right, p.height-4, "label end", x.label)
	return p
}

func (p *plot) px(v float64) float64 {
	return p.left + (v-p.x.lo)/(p.x.hi-p.x.lo)*(p.width-p.left-p.right)
}

func (p *plot) py(v float64) float64 {
	v = min(max(v, p.y.lo), p.y.hi)
	return p.height - p.bottom - (v-p.y.lo)/(p.y.hi-p.y.lo)*(p.height-p.top-p.bottom)
}

func (p *plot) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(&p.b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="%s"/>`, x1, y1, x2, y2, class)
}

func (p *plot) text(x, y float64, class, s string) {
	fmt.Fprintf(&p.b, `<text x="%.1f" y="%.1f" class="%s">%s</text>`, x, y, class, html.EscapeString(s))
}

// rect draws a bar from (x1, y1) to (x2, y2) in pixels, with a text that shows when pointed at.
func (p *plot) rect(x1, y1, x2, y2 float64, class, title string) {
	if y2 < y1 {
		y1, y2 = y2, y1
	}
	fmt.Fprintf(&p.b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" class="%s">`, x1, y1, max(x2-x1, 0.5), y2-y1, class)
	fmt.Fprintf(&p.b, `<title>%s</title></rect>`, html.EscapeString(title))
}

// dot draws a point at a value.
func (p *plot) dot(x, y, r float64, class, title string) {
	fmt.Fprintf(&p.b, `<circle cx="%.1f" cy="%.1f" r="%.1f" class="%s"><title>%s</title></circle>`, p.px(x), p.py(y), r, class, html.EscapeString(title))
}

// curve joins points; a NaN breaks it.
func (p *plot) curve(xs, ys []float64, class string) {
	var d strings.Builder
	pen := "M"
	for i := range xs {
		if math.IsNaN(ys[i]) || math.IsInf(ys[i], 0) {
			pen = "M"
			continue
		}
		fmt.Fprintf(&d, "%s%.1f %.1f", pen, p.px(xs[i]), p.py(ys[i]))
		pen = "L"
	}
	if d.Len() > 0 {
		fmt.Fprintf(&p.b, `<path d="%s" class="line %s"/>`, d.String(), class)
	}
}

// band fills between two curves, which have their gaps in the same places.
func (p *plot) band(xs, lo, hi []float64, class string) {
	for i := 0; i < len(xs); i++ {
		k := i
		for k < len(xs) && !math.IsNaN(lo[k]) && !math.IsNaN(hi[k]) {
			k++
		}
		if k-i > 1 {
			var d strings.Builder
			for m := i; m < k; m++ {
				fmt.Fprintf(&d, "%.1f,%.1f ", p.px(xs[m]), p.py(hi[m]))
			}
			for m := k - 1; m >= i; m-- {
				fmt.Fprintf(&d, "%.1f,%.1f ", p.px(xs[m]), p.py(lo[m]))
			}
			fmt.Fprintf(&p.b, `<polygon points="%s" class="band %s"/>`, strings.TrimSpace(d.String()), class)
		}
		i = max(i, k)
	}
}

// done returns the drawing. All text in it was escaped when it was drawn.
func (p *plot) done() template.HTML {
	p.b.WriteString("</svg>")
	return template.HTML(p.b.String())
}
