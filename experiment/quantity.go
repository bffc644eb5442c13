package experiment

import (
	"encoding"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// quantity is a leaf type with a text form of its own.
type quantity interface {
	encoding.TextUnmarshaler
	// shape says what is accepted, the pattern of its text, and whether a bare YAML number will do.
	shape() (want, pattern string, number bool)
}

// Duration is a positive Go duration.
type Duration struct{ time.Duration }

const (
	durationPattern = `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`
	sizePattern     = `^[1-9][0-9]*(Ki|Mi|Gi)$`
	cpuPattern      = `^([0-9]+(\.[0-9]{1,3})?|[1-9][0-9]*m)$`
)

var (
	sizeForm = regexp.MustCompile(sizePattern)
	cpuForm  = regexp.MustCompile(cpuPattern)
)

func (*Duration) shape() (want, pattern string, number bool) {
	return "a positive duration such as 90s, 5m or 1h30m", durationPattern, false
}

// UnmarshalText reads a Go duration above 0.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil || v <= 0 {
		return fmt.Errorf("experiment: duration %q is not a positive Go duration", text)
	}
	d.Duration = v
	return nil
}

// String returns the duration without trailing zero units, such as 1m for 1m0s.
func (d Duration) String() string {
	s := d.Duration.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// MarshalText writes the same as String.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// Size is a positive number of bytes.
type Size int64

func (*Size) shape() (want, pattern string, number bool) {
	return "a positive size in Ki, Mi or Gi such as 256Mi", sizePattern, false
}

// UnmarshalText reads a whole number of Ki, Mi or Gi.
func (s *Size) UnmarshalText(text []byte) error {
	if !sizeForm.Match(text) {
		return fmt.Errorf("experiment: size %q is not a number of Ki, Mi or Gi", text)
	}
	cut := len(text) - 2
	n, err := strconv.ParseInt(string(text[:cut]), 10, 64)
	shift := map[string]uint{"Ki": 10, "Mi": 20, "Gi": 30}[string(text[cut:])]
	if err != nil || n > math.MaxInt64>>shift {
		return fmt.Errorf("experiment: size %q is beyond 64 bits", text)
	}
	*s = Size(n << shift)
	return nil
}

// String returns the size in the largest unit that divides it.
func (s Size) String() string {
	switch {
	case s%(1<<30) == 0:
		return strconv.FormatInt(int64(s>>30), 10) + "Gi"
	case s%(1<<20) == 0:
		return strconv.FormatInt(int64(s>>20), 10) + "Mi"
	default:
		return strconv.FormatInt(int64(s>>10), 10) + "Ki"
	}
}

// MarshalText writes the same as String.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// CPU is a positive number of thousandths of a core.
type CPU int64

func (*CPU) shape() (want, pattern string, number bool) {
	return "a positive number of cores such as 1, 0.5 or 500m", cpuPattern, true
}

// UnmarshalText reads cores with up to three decimals, or thousandths with the suffix m.
func (c *CPU) UnmarshalText(text []byte) error {
	bad := fmt.Errorf("experiment: cpu %q is not a positive number of cores", text)
	if !cpuForm.Match(text) {
		return bad
	}
	var milli float64
	var err error
	if n := len(text) - 1; text[n] == 'm' {
		milli, err = strconv.ParseFloat(string(text[:n]), 64)
	} else {
		milli, err = strconv.ParseFloat(string(text), 64)
		milli = math.Round(milli * 1000)
	}
	if err != nil || milli < 1 || milli > 1e9 {
		return bad
	}
	*c = CPU(milli)
	return nil
}

// Cores returns the number of cores.
func (c CPU) Cores() float64 { return float64(c) / 1000 }

// String returns whole cores as a number and others in thousandths.
func (c CPU) String() string {
	if c%1000 == 0 {
		return strconv.FormatInt(int64(c/1000), 10)
	}
	return strconv.FormatInt(int64(c), 10) + "m"
}

// MarshalText writes the same as String.
func (c CPU) MarshalText() ([]byte, error) { return []byte(c.String()), nil }
