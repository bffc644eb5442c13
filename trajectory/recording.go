package trajectory

import (
	"fmt"

	"github.com/rlfleet/rlfleet/policy"
)

// Recording collects whole episodes, each with its messages, until the worker
// seals them. It is not safe for concurrent use.
type Recording struct {
	steps    *Writer[Step]
	episodes []Episode
	meta     Meta
}

// Sealed is a closed Recording: two shards to store, and where each episode is in them.
type Sealed struct {
	Steps, Episodes Shard
	Refs            []EpisodeRef // in the order added
}

// EpisodeRef is what the seal of an episode names.
type EpisodeRef struct {
	Episode string
	Steps   Ref
	Row     Ref // in the episodes table
}

// NewRecording returns an empty recording.
func NewRecording(meta Meta) *Recording {
	return &Recording{steps: NewWriter[Step](meta), meta: meta}
}

// Add takes an episode with all its messages, or takes nothing of it and
// returns ErrInvalid. It fills in steps_ref, n_steps, and the counts that follow from the messages.
func (r *Recording) Add(e Episode, steps []Step) error {
	if len(steps) == 0 {
		return fmt.Errorf("trajectory: add %s: %w: it has no steps", e.EpisodeID, ErrInvalid)
	}
	if steps[0].EpisodeID != e.EpisodeID {
		return fmt.Errorf("trajectory: add %s: the steps are of %s: %w", e.EpisodeID, steps[0].EpisodeID, ErrInvalid)
	}
	Count(&e, steps)
	e.StepsRef.Object = policy.DigestOf(nil) // not known before Close
	if err := checkRow(&e); err != nil {
		return err
	}
	if err := appendEpisode(r.steps, steps); err != nil {
		return err
	}
	r.episodes = append(r.episodes, e)
	return nil
}

// Len returns how many episodes were added.
func (r *Recording) Len() int { return len(r.episodes) }

// Bytes returns about how many uncompressed bytes were added.
func (r *Recording) Bytes() int { return r.steps.Bytes() }

// Close encodes both shards.
func (r *Recording) Close() (Sealed, error) {
	var out Sealed
	var err error
	if out.Steps, err = r.steps.Close(); err != nil {
		return out, err
	}
	w := NewWriter[Episode](r.meta)
	for i, e := range r.episodes {
		e.StepsRef = out.Steps.Refs[i].Ref
		if err := w.Append(e); err != nil {
			return out, err
		}
	}
	if out.Episodes, err = w.Close(); err != nil {
		return out, err
	}
	for i, e := range r.episodes {
		out.Refs = append(out.Refs, EpisodeRef{Episode: e.EpisodeID, Steps: out.Steps.Refs[i].Ref, Row: out.Episodes.Refs[i].Ref})
	}
	return out, nil
}

// Count sets what an episode row says about its messages.
func Count(e *Episode, steps []Step) {
	e.NSteps = int32(len(steps))
	e.NTurns, e.NBranches, e.NToolCalls, e.NToolErrors, e.NTruncatedToolOutputs = 0, 0, 0, 0, 0
	e.NPromptTokens, e.NSampledTokens, e.NContextTokensMax = 0, 0, 0
	e.PolicyVersionMin, e.PolicyVersionMax = nil, nil
	context := make([]int64, len(steps)) // tokens from the root up to and with each message
	for i := range steps {
		s := &steps[i]
		e.NBranches = max(e.NBranches, s.Branch+1)
		e.NToolCalls += int32(len(s.ToolCalls))
		if s.Sampled {
			e.NTurns++
		}
		if t := s.ToolResult; t != nil {
			if t.Status != ToolOK {
				e.NToolErrors++
			}
			if t.Truncated {
				e.NTruncatedToolOutputs++
			}
		}
		n := int64(s.SampledTokens())
		e.NSampledTokens += n
		e.NPromptTokens += int64(len(s.TokenIDs)) - n
		context[i] = int64(len(s.TokenIDs))
		if p := s.ParentStep; p != nil && *p >= 0 && int(*p) < i {
			context[i] += context[*p]
		}
		e.NContextTokensMax = max(e.NContextTokensMax, context[i])
		for _, span := range s.PolicySpans {
			v := span.PolicyVersion
			if e.PolicyVersionMin == nil || v < *e.PolicyVersionMin {
				e.PolicyVersionMin = &v
			}
			if e.PolicyVersionMax == nil || v > *e.PolicyVersionMax {
				e.PolicyVersionMax = &v
			}
		}
	}
	e.StepsRef.Rows = e.NSteps
}
