package trajectory

import (
	"time"

	"github.com/rlfleet/rlfleet/policy"
)

// LedgerRow says what one step did with one sample that was offered to it.
type LedgerRow struct {
	BatchID              string         `col:"batch_id" doc:"run/step of the batch"`
	TrainerStep          int64          `col:"trainer_step" doc:"step n"`
	PolicyVersionTrained policy.Version `col:"policy_version_trained" doc:"version the step trained from; it commits the next one"`
	Lineage              int64          `col:"lineage" doc:"of that version"`
	DPRank               int32          `col:"dp_rank" doc:"data-parallel rank"`
	MicroBatch           int32          `col:"micro_batch" doc:"packed bin of the rank, from 0"`
	BinOffset            int32          `col:"bin_offset" doc:"first token within the bin"`
	EpisodeID            string         `col:"episode_id" doc:"sampled by this attempt"`
	Branch               int32          `col:"branch" doc:"branch of its message tree"`
	NTokens              int64          `col:"n_tokens" doc:"tokens of the sample"`
	NLossTokens          int64          `col:"n_loss_tokens" doc:"of them in the loss"`
	AdvantageScalar      *float64       `col:"advantage_scalar,null" doc:"null is unscored, never 0"`
	GroupID              string         `col:"group_id" doc:"run/group"`
	GroupMembersUsed     int32          `col:"group_members_used" doc:"members in the group's mean and deviation"`
	GroupMean            *float64       `col:"group_mean,null" doc:"mean reward over them"`
	GroupStd             *float64       `col:"group_std,null" doc:"deviation over them"`
	StdDdof              int32          `col:"std_ddof" doc:"0: population, 1: sample (trap T24)"`
	StalenessMax         int64          `col:"staleness_max" doc:"trainer_step − lowest version of the tokens in the loss"`
	StalenessMean        float64        `col:"staleness_mean" doc:"mean over the tokens in the loss"`
	Outcome              LedgerOutcome  `col:"outcome" doc:"what became of it"`
	Weight               float64        `col:"weight" doc:"of the sample in the loss"`
}

func (r *LedgerRow) check(f *fault) {
	f.episode = r.EpisodeID
	f.require(r.EpisodeID != "", "episode_id", "is empty")
	f.require(r.TrainerStep >= 0, "trainer_step", "%d is negative", r.TrainerStep)
	f.require(int64(r.PolicyVersionTrained) == r.TrainerStep, "policy_version_trained", "step %d trains from version %d, not %d", r.TrainerStep, r.TrainerStep, r.PolicyVersionTrained)
	f.require(r.Branch >= 0, "branch", "%d is negative", r.Branch)
	f.require(r.NLossTokens >= 0 && r.NLossTokens <= r.NTokens, "n_loss_tokens", "%d of %d tokens", r.NLossTokens, r.NTokens)
	f.require(r.GroupMembersUsed >= 0, "group_members_used", "%d is negative", r.GroupMembersUsed)
	f.require((r.GroupMean == nil) == (r.GroupMembersUsed == 0), "group_mean", "must be null exactly when no member is used (%d are)", r.GroupMembersUsed)
	f.require(r.StalenessMax >= 0 && r.StalenessMean >= 0 && r.StalenessMean <= float64(r.StalenessMax), "staleness_max", "%d with mean %g", r.StalenessMax, r.StalenessMean)
	if r.Outcome == Trained {
		f.require(r.AdvantageScalar != nil, "advantage_scalar", "is null on a trained sample")
		f.require(r.GroupMembersUsed > 0, "group_members_used", "is 0 on a trained sample")
	}
}

// Annotation is what was learned of an episode after it was sealed. Its streams
// are aligned to the sampled tokens, as logprobs are.
type Annotation struct {
	EpisodeID       string         `col:"episode_id" doc:"annotated attempt"`
	Step            *int32         `col:"step,null" doc:"message; null is the whole episode"`
	Producer        Producer       `col:"producer" doc:"who wrote it"`
	At              time.Time      `col:"at" doc:"when"`
	PolicyVersion   policy.Version `col:"policy_version" doc:"version it was computed with"`
	TrainerLogprobs []float32      `col:"trainer_logprobs,null" doc:"of the trained policy, recomputed"`
	Entropy         []float32      `col:"entropy,null" doc:"nats"`
	Advantages      []float32      `col:"advantages,null" doc:"as used in the loss"`
	Values          []float32      `col:"values,null" doc:"of a critic"`
	Returns         []float32      `col:"returns,null" doc:"targets of a critic"`
	ISWeight        []float32      `col:"is_weight,null" doc:"importance weights as used"`
	MaskCode        []int8         `col:"mask_code,null" doc:"0 trained, 1 masked by ratio, 2 stale, 3 overlong, −1 not applicable"`
	RefLogprobs     []float32      `col:"ref_logprobs,null" doc:"of the reference policy"`
	Key             *string        `col:"key,null" doc:"name of a free value"`
	ValueJSON       *string        `col:"value_json,null" doc:"the free value"`
}

func (r *Annotation) check(f *fault) {
	f.episode = r.EpisodeID
	f.require(r.EpisodeID != "", "episode_id", "is empty")
	n := -1
	for _, s := range []struct {
		name string
		len  int
	}{
		{"trainer_logprobs", streamLen(r.TrainerLogprobs)},
		{"entropy", streamLen(r.Entropy)},
		{"advantages", streamLen(r.Advantages)},
		{"values", streamLen(r.Values)},
		{"returns", streamLen(r.Returns)},
		{"is_weight", streamLen(r.ISWeight)},
		{"mask_code", streamLen(r.MaskCode)},
		{"ref_logprobs", streamLen(r.RefLogprobs)},
	} {
		if s.len < 0 {
			continue
		}
		f.require(n < 0 || s.len == n, s.name, "has %d values, the streams before it %d", s.len, n)
		n = s.len
	}
	f.require((r.Key == nil) == (r.ValueJSON == nil), "key", "and value_json must be null together")
}

// streamLen is −1 for a stream that was not captured.
func streamLen[E any](s []E) int {
	if s == nil {
		return -1
	}
	return len(s)
}
