package progress

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// reward2 renders a reward with two places; "-" when there is none, which is not 0.
func reward2(x float64) string {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return "-"
	}
	return strconv.FormatFloat(x, 'f', 2, 64)
}

// short renders a number with three digits or so: 7, 212, 3.1k, 1.2M.
func short(x float64) string {
	switch {
	case math.IsNaN(x) || math.IsInf(x, 0):
		return "-"
	case x >= 999_500:
		return strconv.FormatFloat(x/1e6, 'f', 1, 64) + "M"
	case x >= 9_950:
		return strconv.FormatFloat(x/1e3, 'f', 0, 64) + "k"
	case x >= 999.5:
		return strconv.FormatFloat(x/1e3, 'f', 1, 64) + "k"
	case x > 0 && x < 9.95:
		return strings.TrimSuffix(strconv.FormatFloat(x, 'f', 1, 64), ".0")
	default:
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
}

// grouped renders a count with commas: 26,112.
func grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	sign := ""
	if strings.HasPrefix(s, "-") {
		sign, s = "-", s[1:]
	}
	var parts []string
	for len(s) > 3 {
		parts = append([]string{s[len(s)-3:]}, parts...)
		s = s[:len(s)-3]
	}
	return sign + strings.Join(append([]string{s}, parts...), ",")
}

// took renders a duration to the second: 8s, 2m41s, 1h03m.
func took(d time.Duration) string {
	s := int64(d.Round(time.Second) / time.Second)
	switch {
	case s < 60:
		return fmt.Sprintf("%ds", s)
	case s < 3600:
		return fmt.Sprintf("%dm%02ds", s/60, s%60)
	default:
		return fmt.Sprintf("%dh%02dm", s/3600, s/60%60)
	}
}

// eighths are the levels of a sparkline.
var eighths = []rune("▁▂▃▄▅▆▇█")

// sparkline draws values in at most width columns, oldest first; columns are
// means when there are more values. Rewards between 0 and 1 are drawn on that
// scale, so that the height means the same from look to look; others between
// their least and greatest. A column without a value is blank.
func sparkline(values []float64, width int) string {
	if width <= 0 || len(values) == 0 {
		return ""
	}
	columns := bucket(values, min(width, len(values)))
	low, high := 0.0, 1.0
	for _, v := range columns {
		if !math.IsNaN(v) {
			low, high = min(low, v), max(high, v)
		}
	}
	var b strings.Builder
	for _, v := range columns {
		if math.IsNaN(v) {
			b.WriteByte(' ')
			continue
		}
		level := int((v - low) / (high - low) * float64(len(eighths)))
		b.WriteRune(eighths[min(max(level, 0), len(eighths)-1)])
	}
	return b.String()
}

// bucket takes the means of n equal parts; NaN where a part has no value.
func bucket(values []float64, n int) []float64 {
	out := make([]float64, n)
	for i := range out {
		sum, k := 0.0, 0
		for _, v := range values[i*len(values)/n : (i+1)*len(values)/n] {
			if !math.IsNaN(v) && !math.IsInf(v, 0) {
				sum, k = sum+v, k+1
			}
		}
		out[i] = math.NaN()
		if k > 0 {
			out[i] = sum / float64(k)
		}
	}
	return out
}
