package trajectory

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/rlfleet/rlfleet/policy"
)

// HashMessage returns the key under which equal messages are found.
func HashMessage(messageJSON string) [16]byte {
	sum := sha256.Sum256([]byte(messageJSON))
	return [16]byte(sum[:16])
}

// HashTokens returns the digest of token ids as little-endian int32.
func HashTokens(ids []int32) policy.Digest {
	buf := make([]byte, 0, 4*len(ids))
	for _, id := range ids {
		buf = binary.LittleEndian.AppendUint32(buf, uint32(id))
	}
	return policy.DigestOf(buf)
}

// check applies the rules of a single message; those between messages are tree's.
func (r *Step) check(f *fault) {
	f.episode, f.step = r.EpisodeID, r.Step
	f.require(r.EpisodeID != "", "episode_id", "is empty")
	f.require((r.TokenIDs == nil) == (r.LossMask == nil), "loss_mask", "must be null exactly when token_ids is")
	f.require(len(r.LossMask) == len(r.TokenIDs), "loss_mask", "has %d entries for %d token_ids", len(r.LossMask), len(r.TokenIDs))
	f.require(r.NScaffold >= 0 && int(r.NScaffold) <= len(r.TokenIDs), "n_scaffold", "%d of %d token_ids", r.NScaffold, len(r.TokenIDs))
	if f.err != nil {
		return // what follows indexes by these lengths
	}
	n := r.SampledTokens()
	if n > 0 {
		f.require(r.Role == Assistant, "loss_mask", "is true on a %s row", r.Role)
		f.require(r.Sampled, "loss_mask", "is true on a message that was not sampled")
		f.require(!r.CopiedContext, "loss_mask", "is true on copied context")
		for _, m := range r.LossMask[:min(int(r.NScaffold), len(r.LossMask))] {
			f.require(!m, "loss_mask", "is true on scaffold")
		}
		f.require(r.Logprobs != nil, "logprobs", "are null, but %d tokens are to be trained on", n)
		f.require(r.PolicyID != nil, "policy_id", "is null on a row with tokens to be trained on")
	}
	f.require(r.Logprobs == nil || len(r.Logprobs) == n, "logprobs", "has %d values for %d sampled tokens", len(r.Logprobs), n)
	for i, lp := range r.Logprobs {
		f.require(lp <= 0, "logprobs", "value %d is %g, above 0", i, lp)
	}
	if err := policy.CheckSpans(r.VersionSpans(), int32(n)); err != nil {
		f.require(false, "policy_spans", "%v", err)
	}
	r.checkSampling(f, n)
	r.checkTools(f)
}

func (r *Step) checkSampling(f *fault, n int) {
	f.require(!r.Sampled || r.Role == Assistant, "sampled", "is true on a %s row", r.Role)
	f.require(r.Sampled == (r.Sampling != nil), "sampling", "must be null exactly on rows that were not sampled")
	f.require(r.Sampled == (r.FinishReason != ""), "finish_reason", "must be null exactly on rows that were not sampled")
	f.require(r.Sampled || (r.StopMatch == nil && r.PromptLen == nil), "stop_match", "and prompt_len must be null on rows that were not sampled")
	f.require(r.MessageHash == HashMessage(r.MessageJSON), "message_hash", "is not that of message_json")
	if m := r.StopMatch; m != nil && n > 0 && m.Kind != StopString {
		f.require(m.TokenID != nil, "stop_match", "%s without its token_id", m.Kind)
		if m.TokenID != nil {
			last := len(r.LossMask) - 1
			for !r.LossMask[last] {
				last--
			}
			f.require(r.TokenIDs[last] == *m.TokenID, "stop_match", "names token %d, but the last sampled token is %d", *m.TokenID, r.TokenIDs[last])
		}
	}
}

func (r *Step) checkTools(f *fault) {
	f.require(len(r.ToolCalls) == 0 || r.Role == Assistant, "tool_calls", "on a %s row", r.Role)
	t := r.ToolResult
	if t == nil {
		return
	}
	f.require(r.Role == Tool, "tool_result", "on a %s row", r.Role)
	f.require(t.BytesKept >= 0 && t.BytesKept <= t.BytesTotal, "tool_result.bytes_kept", "%d of %d", t.BytesKept, t.BytesTotal)
	f.require(t.Truncated == (t.BytesKept < t.BytesTotal), "tool_result.truncated", "is %t, but %d of %d bytes were kept", t.Truncated, t.BytesKept, t.BytesTotal)
	f.require(t.Truncated == (t.Truncation != TruncNone), "tool_result.truncation", "is %s, but truncated is %t", t.Truncation, t.Truncated)
}

// tree checks the rules between the messages of one episode, in order.
type tree struct {
	episode  string
	turns    []int32 // per step: sampled messages before it, plus itself if sampled
	branches []int32 // per step
	parents  []bool  // per step: has a child
	next     int32   // branch
}

// look reports through f why the message can't follow those before it, and returns its place in the tree.
func (t *tree) look(r *Step, f *fault) (turn, branch int32) {
	n := int32(len(t.turns))
	f.require(r.Step == n, "step", "is %d, want %d: steps count from 0 without gaps", r.Step, n)
	branch = t.next
	if p := r.ParentStep; p != nil {
		f.require(*p >= 0 && *p < n, "parent_step", "%d is not an earlier step", *p)
		if f.err != nil {
			return 0, 0
		}
		turn = t.turns[*p]
		if !t.parents[*p] {
			branch = t.branches[*p]
		}
	}
	f.require(r.Turn == turn, "turn", "is %d, but %d messages were sampled before it", r.Turn, turn)
	f.require(r.Branch == branch, "branch", "is %d, want %d: the first child goes on with its parent's branch, the others start new ones", r.Branch, branch)
	return turn, branch
}

// add takes the message up, unless look finds fault with it.
func (t *tree) add(r *Step, f *fault) {
	turn, branch := t.look(r, f)
	if f.err != nil {
		return
	}
	if r.ParentStep != nil {
		t.parents[*r.ParentStep] = true
	}
	if r.Sampled {
		turn++
	}
	t.next = max(t.next, branch+1)
	t.turns, t.branches, t.parents = append(t.turns, turn), append(t.branches, branch), append(t.parents, false)
}

// CheckSteps returns ErrInvalid unless steps are all the messages of one
// episode, in order, and each keeps the rules of the record.
func CheckSteps(steps []Step) error {
	t := tree{}
	for i := range steps {
		f := fault{table: Steps, step: -1}
		steps[i].check(&f)
		f.require(i == 0 || steps[i].EpisodeID == steps[0].EpisodeID, "episode_id", "differs from %q within one episode", steps[0].EpisodeID)
		t.add(&steps[i], &f)
		if f.err != nil {
			return f.err
		}
	}
	return nil
}

// Branch is one root-to-leaf path of an episode's message tree: one training
// sample. A conversation that only grows has one branch; one whose history is
// rewritten every turn has one for each turn.
type Branch struct {
	ID    int32
	Steps []int // indices, root first
	Fresh int   // the messages from Steps[Fresh] on are in no earlier branch: only those are trained on here (trap T26)
}

// Branches returns the branches of steps that CheckSteps accepts, by number.
func Branches(steps []Step) []Branch {
	leaf := map[int32]int{}
	for i := range steps {
		leaf[steps[i].Branch] = i // the last message of a branch is its leaf
	}
	out := make([]Branch, len(leaf))
	for id := range out {
		b := Branch{ID: int32(id)}
		for i := leaf[int32(id)]; ; i = int(*steps[i].ParentStep) {
			b.Steps = append(b.Steps, i)
			if steps[i].ParentStep == nil {
				break
			}
		}
		for l, r := 0, len(b.Steps)-1; l < r; l, r = l+1, r-1 {
			b.Steps[l], b.Steps[r] = b.Steps[r], b.Steps[l]
		}
		for steps[b.Steps[b.Fresh]].Branch != b.ID {
			b.Fresh++
		}
		out[id] = b
	}
	return out
}
