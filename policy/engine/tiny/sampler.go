package tiny

import (
	"math"
	"slices"

	"github.com/rlfleet/rlfleet/policy/engine"
	model "github.com/rlfleet/rlfleet/policy/tiny"
)

// sampler draws tokens; it holds scratch memory of the vocabulary's size.
type sampler struct {
	scaled []float32
	probs  []float64
	order  []int32
}

// draw returns the token that u in (0,1) selects and its log-probability in the
// distribution drawn from: logits over temperature, then the top k, then the
// smallest set of at least top-p mass, renormalised. Temperature 0 takes the
// greatest logit, the lowest id among equals, with its log-probability at temperature 1.
func (s *sampler) draw(logits []float32, p engine.Sampling, u float64) (int32, float32) {
	n := len(logits)
	if cap(s.probs) < n {
		s.scaled, s.probs, s.order = make([]float32, n), make([]float64, n), make([]int32, n)
	}
	probs := s.probs[:n]
	if p.Temperature == 0 {
		best := 0
		for i, x := range logits {
			if x > logits[best] {
				best = i
			}
		}
		return int32(best), float32(float64(logits[best]) - model.Softmax(probs, logits))
	}
	if p.Temperature != 1 {
		for i, x := range logits {
			s.scaled[i] = float32(float64(x) / float64(p.Temperature))
		}
		logits = s.scaled[:n]
	}
	logz := model.Softmax(probs, logits)
	if p.TopP < 1 || (p.TopK > 0 && int(p.TopK) < n) {
		logz += math.Log(s.filter(probs, p))
	}
	pick := -1
	for i, q := range probs {
		if q <= 0 {
			continue
		}
		pick = i // the last one that can be drawn takes what rounding leaves
		if u -= q; u < 0 {
			break
		}
	}
	return int32(pick), float32(min(0, float64(logits[pick])-logz)) // rounding must not make it positive
}

// filter zeroes the probabilities outside of the top k and top-p set,
// renormalises the others and returns the mass they had.
func (s *sampler) filter(probs []float64, p engine.Sampling) float64 {
	order := s.order[:len(probs)]
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortStableFunc(order, func(a, b int32) int {
		switch {
		case probs[a] > probs[b]:
			return -1
		case probs[a] < probs[b]:
			return 1
		}
		return 0
	})
	keep := len(order)
	if p.TopK > 0 {
		keep = min(keep, int(p.TopK))
	}
	var total float64
	for _, i := range order[:keep] {
		total += probs[i]
	}
	var mass float64
	for k, i := range order[:keep] {
		mass += probs[i]
		if mass >= float64(p.TopP)*total {
			keep = k + 1
			break
		}
	}
	for k, i := range order {
		if k < keep {
			probs[i] /= mass
		} else {
			probs[i] = 0
		}
	}
	return mass
}

// uniform returns the i-th number of a seed's stream, in (0,1): SplitMix64's
// output function (Steele, Lea and Flood, 2014) over a counter whose origin is the mixed seed.
func uniform(seed, i uint64) float64 {
	x := mix(mix(seed) + (i+1)*0x9e3779b97f4a7c15)
	return (float64(x>>11) + 0.5) / (1 << 53)
}

func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
