package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
)

// The latency of one call is log-normal: half are under 50 ms, one in a hundred is over 1.5 s.
const (
	latencyMedian = 0.050 // seconds
	latencyP99    = 1.5   // seconds
	latencyMost   = 4.0   // seconds; the tail is cut here, below the agent's timeout
	latencyDraws  = 32    // a task's latencies; each process takes one of them
)

// drawLatencies returns the latencies of one task, in seconds.
func drawLatencies(r *rand.Rand) []float64 {
	const z99 = 2.3263478740408408 // 99 % quantile of the normal distribution
	sigma := math.Log(latencyP99/latencyMedian) / z99
	out := make([]float64, latencyDraws)
	for i := range out {
		out[i] = min(latencyMedian*math.Exp(sigma*r.NormFloat64()), latencyMost)
	}
	return out
}

// slowCat is a cat that waits first. bash seeds RANDOM anew in every process,
// so that the members of a group, and their calls, wait differently.
func slowCat(latencies []float64) string {
	words := make([]string, len(latencies))
	for i, l := range latencies {
		words[i] = fmt.Sprintf("%.3f", l)
	}
	return `#!/bin/bash
# A cat that is as slow as a remote tool: seconds, log-normal, drawn for this task.
delay=(` + strings.Join(words, " ") + `)
sleep "${delay[RANDOM % ${#delay[@]}]}"
exec /usr/bin/cat "$@"
`
}
