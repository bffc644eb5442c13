package verifier

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/rlfleet/rlfleet/envpool"
	"github.com/rlfleet/rlfleet/outcome"
)

// rewardKey is the component of reward.json that is the reward when there are several.
const rewardKey = "reward"

var errReward = errors.New("not a reward")

// score judges by a reward file. handedIn says whether there was any artifact.
func score(f envpool.File, handedIn bool) Judgement {
	parse := parseText
	if f.Path == rewardJSON {
		parse = parseJSON
	}
	if len(f.Data) > MaxReward {
		return indeterminate(MalformedOutput, outcome.MalformedReward, "the reward file is larger than 1 MiB")
	}
	reward, components, err := parse(f.Data)
	if err != nil {
		return indeterminate(MalformedOutput, outcome.MalformedReward, "%s: %v", f.Path, err)
	}
	j := Judgement{Verdict: outcome.Fail, Reason: ChecksFailed, Reward: &reward, Components: components}
	switch {
	case reward >= PassAt:
		j.Verdict, j.Reason = outcome.Pass, ChecksPassed
	case !handedIn:
		j.Reason = NoArtifact
	}
	for name, v := range components {
		j.Checks = append(j.Checks, Check{Name: name, Passed: v >= PassAt, Value: v})
	}
	slices.SortFunc(j.Checks, func(a, b Check) int { return strings.Compare(a.Name, b.Name) })
	if len(j.Checks) == 0 {
		j.Checks = []Check{{Name: "tests", Passed: reward >= PassAt, Value: reward}}
	}
	return j
}

// parseText reads one decimal number.
func parseText(data []byte) (float64, map[string]float64, error) {
	v, err := number(strings.TrimSpace(string(data)))
	return v, nil, err
}

// number accepts finite decimal numbers only: no hexadecimal, no NaN, nothing that overflows.
func number(s string) (float64, error) {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) || strings.Trim(s, "0123456789+-.eE") != "" {
		if len(s) > 40 {
			s = s[:40] + "…"
		}
		return 0, fmt.Errorf("%q is not a finite decimal number: %w", s, errReward)
	}
	return v, nil
}

// parseJSON reads one number, or an object of numbers without a repeated key.
// An object with several keys names its reward "reward".
func parseJSON(data []byte) (float64, map[string]float64, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	first, err := d.Token()
	if err != nil {
		return 0, nil, fmt.Errorf("not JSON: %w", errReward)
	}
	var reward float64
	var components map[string]float64
	switch x := first.(type) {
	case json.Number:
		reward, err = number(x.String())
	case json.Delim:
		if x != '{' {
			return 0, nil, fmt.Errorf("neither a number nor an object: %w", errReward)
		}
		if components, err = parseObject(d); err == nil {
			reward, err = principal(components)
		}
	default:
		return 0, nil, fmt.Errorf("neither a number nor an object: %w", errReward)
	}
	if err != nil {
		return 0, nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return 0, nil, fmt.Errorf("something follows the value: %w", errReward)
	}
	return reward, components, nil
}

func parseObject(d *json.Decoder) (map[string]float64, error) {
	out := map[string]float64{}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, fmt.Errorf("not JSON: %w", errReward)
		}
		name, ok := key.(string)
		if !ok {
			return nil, fmt.Errorf("not JSON: %w", errReward)
		}
		val, err := d.Token()
		n, isNumber := val.(json.Number)
		if err != nil || !isNumber {
			return nil, fmt.Errorf("component %q is not a number: %w", name, errReward)
		}
		if _, dup := out[name]; dup {
			return nil, fmt.Errorf("component %q is there twice: %w", name, errReward)
		}
		if out[name], err = number(n.String()); err != nil {
			return nil, fmt.Errorf("component %q: %w", name, err)
		}
	}
	if _, err := d.Token(); err != nil { // the closing brace
		return nil, fmt.Errorf("not JSON: %w", errReward)
	}
	return out, nil
}

// principal returns the component that is the reward.
func principal(components map[string]float64) (float64, error) {
	if v, ok := components[rewardKey]; ok {
		return v, nil
	}
	if len(components) == 1 {
		for _, v := range components {
			return v, nil
		}
	}
	return 0, fmt.Errorf("%d components and none of them is %q: %w", len(components), rewardKey, errReward)
}
