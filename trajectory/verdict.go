package trajectory

import (
	"math"
	"time"

	"github.com/rlfleet/rlfleet/outcome"
	"github.com/rlfleet/rlfleet/policy"
)

// Verdict is one judgement of an episode. The row that the settlement names
// gives the episode its reward; later rows never change it.
type Verdict struct {
	VerdictID          string              `col:"verdict_id" doc:"unique"`
	EpisodeID          string              `col:"episode_id" doc:"judged attempt"`
	VerifierID         string              `col:"verifier_id" doc:"reward of the experiment, or node, that judged"`
	VerifierDigest     policy.Digest       `col:"verifier_digest" doc:"of what judged: the test files, the prompt"`
	SandboxImageDigest policy.Digest       `col:"sandbox_image_digest" doc:"of the sandbox it ran in"`
	Attempt            int32               `col:"attempt" doc:"tries of the verifier, 1-based"`
	Supersedes         *string             `col:"supersedes,null" doc:"verdict that this one corrects; the settled outcome stays"`
	Verdict            outcome.Verdict     `col:"verdict" doc:"the judgement"`
	Reason             VerdictReason       `col:"reason" doc:"why"`
	Score              *float64            `col:"score,null" doc:"as the verifier gave it; null unless pass or fail"`
	Reward             *float64            `col:"reward,null" doc:"sum of value × weight over the components; null is unscored and never 0"`
	RewardComponents   []RewardComponent   `col:"reward_components" doc:"what the reward is made of"`
	StepRewards        []StepReward        `col:"step_rewards,null" doc:"rewards of single messages; null when the episode is judged as a whole"`
	Disposition        outcome.Disposition `col:"disposition,null" doc:"what training may do with it; null when the writer leaves it to the settlement"`
	DispositionReason  *string             `col:"disposition_reason,null" doc:"why, when it is not train"`
	Checks             []Check             `col:"checks" doc:"single checks"`
	Evidence           []Evidence          `col:"evidence" doc:"what the judgement rests on"`
	ExitCode           *int32              `col:"exit_code,null" doc:"of the verifier's command"`
	Reruns             int32               `col:"reruns" doc:"repetitions made to look for flakiness"`
	Agreeing           int32               `col:"agreeing" doc:"of them with the same verdict"`
	StartedAt          time.Time           `col:"started_at" doc:"by the verifier's clock"`
	Duration           time.Duration       `col:"duration_ns" doc:"wall time"`
	Resources          *Resources          `col:"resources,null" doc:"what the sandbox used; null when not measured"`
}

// RewardComponent is one summand of a reward.
type RewardComponent struct {
	Name      string          `col:"name" doc:"reward of the experiment"`
	Value     *float64        `col:"value,null" doc:"null when it could not be had"`
	Weight    float64         `col:"weight" doc:"factor"`
	Source    ComponentSource `col:"source" doc:"where it comes from"`
	VerdictID *string         `col:"verdict_id,null" doc:"verdict that gave it"`
	Required  bool            `col:"required" doc:"a required null makes the reward null; an optional null is left out for the whole group"`
}

// StepReward is the reward of one message.
type StepReward struct {
	Step  int32   `col:"step" doc:"message"`
	Value float64 `col:"value" doc:"reward"`
}

// Check is one check of a verifier.
type Check struct {
	Name     string        `col:"name" doc:"check"`
	Status   CheckStatus   `col:"status" doc:"how it went"`
	Duration time.Duration `col:"duration_ns" doc:"wall time"`
	Message  *string       `col:"message,null" doc:"what it said"`
}

// Evidence is what a judgement rests on.
type Evidence struct {
	Kind    EvidenceKind  `col:"kind" doc:"what it is"`
	Ref     string        `col:"ref" doc:"object with the whole of it; empty when the excerpt is all"`
	SHA256  policy.Digest `col:"sha256" doc:"of the whole of it"`
	Bytes   int64         `col:"bytes" doc:"size of the whole of it"`
	Excerpt *string       `col:"excerpt,null" doc:"the part that decides"`
}

// SumReward folds components: nil when there are none or a required value is
// nil, otherwise the sum of value × weight over the values there are, in order.
func SumReward(components []RewardComponent) *float64 {
	var sum float64
	for _, c := range components {
		if c.Value == nil {
			if c.Required {
				return nil
			}
			continue
		}
		sum += *c.Value * c.Weight
	}
	if len(components) == 0 {
		return nil
	}
	return &sum
}

func (r *Verdict) check(f *fault) {
	f.episode = r.EpisodeID
	f.require(r.EpisodeID != "", "episode_id", "is empty")
	f.require(r.VerdictID != "", "verdict_id", "is empty")
	f.require(r.Attempt >= 1, "attempt", "%d is below 1", r.Attempt)
	judged := r.Verdict == outcome.Pass || r.Verdict == outcome.Fail
	f.require(judged || r.Score == nil, "score", "must be null when the verdict is %s", r.Verdict)
	f.require(judged || r.Reward == nil, "reward", "must be null when the verdict is %s: no judgement is not a 0", r.Verdict)
	f.require(judged || r.Disposition == "" || r.Disposition == outcome.Drop, "disposition", "%s needs a judgement, and the verdict is %s", r.Disposition, r.Verdict)
	f.require(!r.Disposition.InStatistics() || r.Reward != nil, "disposition", "%s counts in the group's statistics, but the reward is null", r.Disposition)
	if judged {
		checkReward(f, r.Reward, SumReward(r.RewardComponents))
	}
	f.require(r.Agreeing >= 0 && r.Agreeing <= r.Reruns, "agreeing", "%d of %d reruns", r.Agreeing, r.Reruns)
	for i, s := range r.StepRewards {
		f.require(s.Step >= 0 && (i == 0 || s.Step > r.StepRewards[i-1].Step), "step_rewards", "step %d is out of order", s.Step)
	}
}

// checkReward compares to a billionth: a reward is written next to its summands and not rounded.
func checkReward(f *fault, reward, sum *float64) {
	switch {
	case reward == nil && sum == nil:
	case reward == nil:
		f.require(false, "reward", "is null, but its components sum to %g", *sum)
	case sum == nil:
		f.require(false, "reward", "is %g, but a required component is null or there is none", *reward)
	default:
		f.require(math.Abs(*reward-*sum) <= 1e-9*math.Max(1, math.Abs(*sum)), "reward", "is %g, but its components sum to %g", *reward, *sum)
	}
}
