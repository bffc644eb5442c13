package trajectory

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/policy"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	"github.com/rlfleet/rlfleet/store"
)

func TestVerify_Clean(t *testing.T) {
	s := newPlan().write(t)
	rep, err := Verify(t.Context(), s, "run-1", VerifyOptions{})
	require.NoError(t, err)
	require.Equal(t, "verify: 12 episodes, 6 groups, 2 steps: clean", rep.String())
	require.True(t, rep.Clean())
	require.Equal(t, "succeeded", rep.State)
	require.Equal(t, 10, rep.Scored)
	require.Equal(t, int64(1), rep.MaxLag)
	require.Equal(t, 5, rep.Shards)
	require.Zero(t, rep.Pending)
	require.Positive(t, rep.Trained)
}

func TestVerify_RunThatGoesOn(t *testing.T) {
	p := newPlan()
	p.ended, p.ends = nil, p.ends[:4]
	rep, err := Verify(t.Context(), p.write(t), "run-1", VerifyOptions{})
	require.NoError(t, err)
	require.Empty(t, rep.Findings)
	require.Equal(t, 2, rep.Pending)
}

func TestVerify_NothingThere(t *testing.T) {
	_, err := Verify(t.Context(), newPlan().write(t), "run-2", VerifyOptions{})
	require.ErrorIs(t, err, store.ErrNotFound)
	require.ErrorContains(t, err, `run "run-2": nothing of it is in this store`)
}

func rebuild(p *plan) { p.ledgers = [][]LedgerRow{p.ledger(0, 1, 2), p.ledger(1, 3, 4)} }

// without removes the events that match.
func without(match func(*raftlog.Event) bool) func([]*raftlog.Event) []*raftlog.Event {
	return func(events []*raftlog.Event) []*raftlog.Event {
		var out []*raftlog.Event
		for _, e := range events {
			if !match(e) {
				out = append(out, e)
			}
		}
		return out
	}
}

// again repeats the first event that matches, at the end of the run.
func again(match func(*raftlog.Event) bool) func([]*raftlog.Event) []*raftlog.Event {
	return func(events []*raftlog.Event) []*raftlog.Event {
		last := len(events) - 1
		for _, e := range events {
			if match(e) {
				return append(append(events[:last:last], &raftlog.Event{Event: e.Event}), events[last])
			}
		}
		return events
	}
}

// Every invariant is broken once; each break is reported as what it is.
func TestVerify_BrokenInvariants(t *testing.T) {
	cases := []struct {
		name      string
		edit      func(p *plan)
		invariant string
		want      string // part of a finding
	}{
		{"a group that never ended", func(p *plan) { p.ends = p.ends[:5] }, "I3", "neither consumed nor dropped"},
		{"a group dropped without a reason", func(p *plan) { p.ends[4].Reason = "" }, "I3", "without a reason"},
		{"a group of no known end", func(p *plan) { p.ends[4].Outcome = "forgotten" }, "I3", `ended as "forgotten"`},
		{"a training group only evaluated", func(p *plan) { p.ends[4].Outcome = "evaluated" }, "I3", "only evaluated"},
		{"a sealed member of a consumed group that never settled", func(p *plan) {
			p.find(1, 0, 1).settled = nil
			p.ledgers[0] = p.ledgers[0][1:]
		}, "I3", "never settled, and its group was consumed"},
		{"a member of a consumed group that is not there", func(p *plan) {
			m := p.find(4, 1, 1)
			m.settled = nil
		}, "I4", "0 attempts of member 1 have settled"},
		{"two attempts of one member settled", func(p *plan) {
			m := p.find(3, 0, 1)
			m.lost, m.settled = nil, &raftlog.EpisodeSettled{Group: 3, Index: 0, Attempt: 1, Verdict: "indeterminate", Disposition: "drop"}
		}, "I4", "2 attempts of member 0"},
		{"an attempt both settled and lost", func(p *plan) {
			p.find(1, 0, 1).lost = &raftlog.AttemptLost{Group: 1, Attempt: 1, Reason: "worker_lost"}
		}, "I4", "settled and was lost"},
		{"an attempt lost without a reason", func(p *plan) { p.find(3, 0, 1).lost.Reason = "" }, "I3", "was lost without a reason"},
		{"a verdict on what was never sealed", func(p *plan) {
			m := p.find(1, 1, 1)
			m.steps, m.sealed = nil, nil
			p.ledgers[0] = p.ledgers[0][:1]
		}, "I3", "never sealed"},
		{"an episode sealed twice", func(p *plan) {
			p.editEvents = again(func(e *raftlog.Event) bool { return e.GetSealed() != nil })
		}, "I4", "was sealed twice"},
		{"an episode settled twice", func(p *plan) {
			p.editEvents = again(func(e *raftlog.Event) bool { return e.GetSettled() != nil })
		}, "I4", "was settled twice"},
		{"a group admitted twice", func(p *plan) {
			p.editEvents = again(func(e *raftlog.Event) bool { return e.GetGroupAdmitted() != nil })
		}, "I4", "was admitted twice"},
		{"a group that ended twice", func(p *plan) {
			p.editEvents = again(func(e *raftlog.Event) bool { return e.GetGroupEnded() != nil })
		}, "I4", "ended 2 times"},
		{"a step committed twice", func(p *plan) {
			p.editEvents = again(func(e *raftlog.Event) bool { return e.GetStepCommitted() != nil })
		}, "I4", "was committed when step 2 was next"},
		{"a group that was never admitted", func(p *plan) {
			p.editEvents = without(func(e *raftlog.Event) bool { return e.GetGroupAdmitted().GetGroup() == 1 })
		}, "I4", "never admitted"},
		{"events after the end", func(p *plan) {
			p.editEvents = func(events []*raftlog.Event) []*raftlog.Event {
				n := len(events)
				events[n-1], events[n-2] = events[n-2], events[n-1]
				return events
			}
		}, "I7", "comes after the end of the run"},
		{"a group in two batches", func(p *plan) {
			p.editEvents = func(events []*raftlog.Event) []*raftlog.Event {
				for _, e := range events {
					if c := e.GetStepCommitted(); c.GetStep() == 1 {
						c.Groups = []uint64{1, 3, 4}
					}
				}
				return events
			}
		}, "I4", "was consumed by steps [0 1]"},
		{"a group consumed by a step that does not name it", func(p *plan) { p.ends[0].Step = 1 }, "I4", "which does not name it"},
		{"a dropped group in a batch", func(p *plan) {
			p.ends[0].Outcome, p.ends[0].Reason = "dropped", "stale"
		}, "I4", "was dropped and is in the batch of step 0"},
		{"a group in a batch that was not consumed", func(p *plan) {
			p.ends = p.ends[1:]
		}, "I4", "is in the batch of step 0 but was not consumed"},

		{"an episode trained by two steps", func(p *plan) {
			row := p.ledgers[0][0]
			row.TrainerStep, row.PolicyVersionTrained, row.StalenessMax, row.StalenessMean = 1, 1, 1, 1
			p.ledgers[1] = append(p.ledgers[1], row)
		}, "I4", "branch 0 was trained by step 0 and by step 1"},
		{"an episode trained twice in one step", func(p *plan) { p.ledgers[0] = append(p.ledgers[0], p.ledgers[0][0]) }, "I4", "was trained by step 0 and by step 0"},
		{"a member of the batch left out of the ledger", func(p *plan) { p.ledgers[1] = p.ledgers[1][1:] }, "I4", "is not in its ledger"},
		{"a member of another group in the ledger", func(p *plan) {
			p.ledgers[0][0] = p.ledger(0, 5)[0]
		}, "I4", "not in its batch"},
		{"a ledger row of another step", func(p *plan) { p.ledgers[0][0].TrainerStep, p.ledgers[0][0].PolicyVersionTrained = 1, 1 }, "I4", "has a row of step 1"},
		{"a ledger row of another lineage", func(p *plan) { p.ledgers[0][0].Lineage = 2 }, "I4", "lineage 2"},
		{"a ledger row of nobody", func(p *plan) { p.ledgers[0][0].EpisodeID = "run-1/nobody" }, "I4", "never settled"},
		{"a ledger row that breaks its own rules", func(p *plan) { p.ledgers[0][0].AdvantageScalar = nil }, "I4", "advantage_scalar"},
		{"a ledger row of a branch that is not there", func(p *plan) { p.ledgers[0][0].Branch = 7 }, "I4", "branch 7 of 1"},
		{"a ledger with other token counts", func(p *plan) { p.ledgers[0][0].NLossTokens-- }, "I9", "tokens in the loss"},
		{"a ledger with other staleness", func(p *plan) { p.ledgers[1][1].StalenessMean = 0 }, "I2", "staleness"},

		{"a token beyond the bound", func(p *plan) {
			p.editEvents = func(events []*raftlog.Event) []*raftlog.Event {
				events[0].GetRunCreated().Config.LagMax = 0
				return events
			}
		}, "I2", "lag 1, and the bound is 0"},
		{"a token of a version that did not exist", func(p *plan) {
			m := p.find(1, 0, 1)
			m.steps[2].PolicySpans[0].PolicyVersion = 1
			Count(&m.row, m.steps)
			m.sealed.MaxVersion = 1
			p.ledgers[0][0].StalenessMax, p.ledgers[0][0].StalenessMean = 0, 0
		}, "I2", "tokens of version 1, which did not exist"},
		{"a token of a version committed later", func(p *plan) {
			m := p.find(1, 0, 1)
			m.steps[2].PolicySpans[0].PolicyVersion = 1
			Count(&m.row, m.steps)
			m.sealed.MaxVersion = 1
		}, "I9", "committed only after the episode was sealed"},
		{"a token of a version never committed", func(p *plan) {
			m := p.find(3, 1, 1)
			m.steps[len(m.steps)-1].PolicySpans[1].PolicyVersion = 9
			Count(&m.row, m.steps)
			m.sealed.MaxVersion = 9
			rebuild(p)
		}, "I9", "version 9, which was never committed"},
		{"a token of a rejected version", func(p *plan) {
			p.editEvents = func(events []*raftlog.Event) []*raftlog.Event {
				for _, e := range events {
					if v := e.GetVersionChanged(); v.GetVersion() == 1 {
						v.State, v.Reason = "rejected", "probes differ"
					}
				}
				return events
			}
		}, "I9", "was rejected: probes differ"},
		{"an evaluation by another version", func(p *plan) { p.straddle(p.find(6, 0, 1)) }, "I9", "not the one the evaluation is of"},
		{"versions in the log that the messages do not have", func(p *plan) { p.find(3, 1, 1).sealed.MaxVersion = 0 }, "I2", "the log has"},
		{"a version that changed but never was", func(p *plan) {
			p.editEvents = func(events []*raftlog.Event) []*raftlog.Event {
				for _, e := range events {
					if v := e.GetVersionChanged(); v.GetVersion() == 2 {
						v.Version = 8
					}
				}
				return events
			}
		}, "I7", "never committed"},

		{"a reward without a judgement", func(p *plan) { p.find(4, 1, 1).settled.Reward = ptr(0.0) }, "I5", "no judgement is not a reward"},
		{"a reward without a verdict row", func(p *plan) {
			m := p.find(1, 0, 1)
			m.verdict = nil
		}, "I5", "without a verdict row"},
		{"a reward other than its verdict row's", func(p *plan) {
			m := p.find(1, 0, 1)
			m.settled.Reward = ptr(0.75)
			rebuild(p)
		}, "I5", "settled with reward 0.75, its verdict row says 1"},
		{"a verdict other than its row's", func(p *plan) { p.find(1, 0, 1).settled.Verdict = "fail" }, "I5", "its verdict row says pass"},
		{"a reward other than its components", func(p *plan) { p.find(1, 0, 1).verdict.RewardComponents[0].Weight = 0.5 }, "I5", "its components sum to 0.5"},
		{"another episode's verdict row", func(p *plan) { p.find(1, 0, 1).verdict.EpisodeID = "run-1/other" }, "I5", "names the verdict row of run-1/other"},
		{"a disposition that the table does not give", func(p *plan) {
			m := p.find(5, 1, 1)
			m.settled.Disposition, m.verdict.Disposition = "mask", ""
		}, "I5", "has disposition mask"},
		{"a disposition other than its verdict row's", func(p *plan) { p.find(1, 0, 1).verdict.Disposition = "mask" }, "I5", "its verdict row says mask"},
		{"an infrastructure failure in the statistics", func(p *plan) {
			for i := range p.ledgers[1] {
				if p.ledgers[1][i].GroupID == GroupID("run-1", 4) {
					p.ledgers[1][i].GroupMembersUsed = 2
				}
			}
		}, "I5", "used 2 members in its group's statistics; 1 have a reward"},
		{"an infrastructure failure counted as 0", func(p *plan) {
			for i := range p.ledgers[1] {
				if p.ledgers[1][i].GroupID == GroupID("run-1", 3) {
					p.ledgers[1][i].GroupMean = ptr(1.0 / 3)
				}
			}
		}, "I5", "used the group mean"},
		{"another deviation", func(p *plan) { p.ledgers[0][0].GroupStd = ptr(9.0) }, "I5", "used the group deviation 9"},
		{"an unscored member trained on", func(p *plan) {
			row := p.ledgers[1][0]
			m := p.find(4, 1, 1)
			m.steps = newSteps(m.id(), 2, 0, fixedRand())
			m.row = newEpisode(4, 1, m.steps)
			m.row.GroupSize = 2
			m.sealed = &raftlog.Sealed{EndReason: "stop", Tokens: m.row.NSampledTokens}
			f := factsOf(Branches(m.steps)[0], m.steps)
			row.EpisodeID, row.GroupID, row.NTokens, row.NLossTokens = m.id(), GroupID("run-1", 4), f.tokens, f.loss
			p.ledgers[1] = append(p.ledgers[1], row)
		}, "I5", "trained on it; it settled as drop with reward null"},
		{"an evaluation that counts a failure as 0", func(p *plan) { p.eval.Scored, p.eval.Reward = 3, 1.0/3 }, "I5", "of version 0 reports"},

		{"rows that are not the episode's", func(p *plan) {
			a, b := p.find(1, 0, 1), p.find(1, 1, 1)
			a.steps, b.steps = b.steps, a.steps
		}, "I7", "not its own"},
		{"another episode's row", func(p *plan) { p.find(1, 0, 1).row.EpisodeID = "run-1/other" }, "I7", "names the episodes row of run-1/other"},
		{"a row that counts otherwise than its messages", func(p *plan) { p.find(1, 0, 1).row.NToolCalls++ }, "I9", "its row counts"},
		{"a row that ended otherwise than the log", func(p *plan) { p.find(1, 0, 1).row.EndReason = "forfeit" }, "I5", `ended with "forfeit"`},
		{"a mask on a tool row", func(p *plan) {
			m := p.find(1, 0, 1)
			m.steps[3].LossMask[2] = true
		}, "I9", "loss_mask: is true on a tool row"},
		{"a log-probability above 0", func(p *plan) { p.find(1, 0, 1).steps[2].Logprobs[1] = 0.5 }, "I9", "above 0"},
		{"a gap in the spans", func(p *plan) { p.find(1, 0, 1).steps[2].PolicySpans[0].Length = 5 }, "I9", "policy_spans"},
		{"a missing message", func(p *plan) {
			m := p.find(1, 0, 1)
			m.steps = append(m.steps[:1:1], m.steps[2:]...)
		}, "I9", "steps count from 0 without gaps"},

		{"a manifest of another version", func(p *plan) { p.editPolicy = func(m *policy.Manifest) { m.Version = 7 } }, "I7", "its manifest is of version 7"},
		{"a manifest with another ledger", func(p *plan) { p.editPolicy = func(m *policy.Manifest) { m.Ledger = digest("x") } }, "I7", "its manifest names ledger"},
		{"a version whose file is gone", func(p *plan) { p.dropFile = true }, "I7", "its file model.safetensors"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // writing waits for the disk
			p := newPlan()
			c.edit(p)
			rep, err := Verify(t.Context(), p.write(t), "run-1", VerifyOptions{})
			require.NoError(t, err)
			requireFinding(t, rep, c.invariant, c.want)
		})
	}
}

func requireFinding(t *testing.T, rep Report, invariant, want string) {
	t.Helper()
	require.False(t, rep.Clean(), "nothing was found")
	require.Contains(t, rep.String(), "finding")
	for _, f := range rep.Findings {
		if f.Invariant == invariant && strings.Contains(f.What, want) {
			return
		}
	}
	require.Failf(t, "not reported", "want %s … %s …, got %s", invariant, want, rep)
}

// What happens to the objects themselves is found and names who is hit.
func TestVerify_BrokenObjects(t *testing.T) {
	damage := map[string]func(data []byte) []byte{
		"gone":    func([]byte) []byte { return nil },
		"flipped": func(data []byte) []byte { data[len(data)/2] ^= 4; return data },
		"cut":     func(data []byte) []byte { return data[:len(data)*2/3] },
	}
	for _, kind := range []Table{Steps, Episodes, Verdicts, Ledger} {
		for name, f := range damage {
			t.Run(string(kind)+" "+name, func(t *testing.T) {
				t.Parallel()
				s := newPlan().write(t)
				n := 0
				for info, err := range s.List(t.Context(), "run-1/objects/") {
					require.NoError(t, err)
					if !strings.HasSuffix(info.Key, kind.Kind()) {
						continue
					}
					n++
					data, err := s.Get(t.Context(), info.Key)
					require.NoError(t, err)
					require.NoError(t, s.Delete(t.Context(), info.Key))
					if data = f(data); data != nil {
						require.NoError(t, s.Put(t.Context(), info.Key, data))
					}
				}
				require.Positive(t, n)
				rep, err := Verify(t.Context(), s, "run-1", VerifyOptions{})
				require.NoError(t, err)
				want := "is damaged"
				if name == "gone" {
					want = "not in the store"
				}
				requireFinding(t, rep, "I7", want)
				require.Contains(t, rep.String(), "named by ")
			})
		}
	}
}

// Readers take the longest gapless prefix and say that it is one.
func TestOpenRun_Gaps(t *testing.T) {
	for name, edit := range map[string]func([]*manifest) []*manifest{
		"an object is missing":   func(m []*manifest) []*manifest { return append(m[:2:2], m[3:]...) },
		"an object is empty":     func(m []*manifest) []*manifest { m[2].Events = nil; return m },
		"an object lies":         func(m []*manifest) []*manifest { m[2].Last++; return m },
		"an event is unreadable": func(m []*manifest) []*manifest { m[2].Events[1] = []byte(`{"seq":"x"}`); return m },
		"an event is repeated":   func(m []*manifest) []*manifest { m[2].Events[1] = m[2].Events[0]; return m },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlan()
			p.editManifest = edit
			r, err := OpenRun(t.Context(), p.write(t), "run-1")
			require.NoError(t, err)
			require.NotEmpty(t, r.Gap)
			require.Equal(t, uint64(3*13+5), r.LastEvent, "two objects of seven events")
			require.False(t, r.Ended())
			require.Len(t, r.Groups, 6)
		})
	}
	t.Run("the beginning is missing", func(t *testing.T) {
		p := newPlan()
		p.editManifest = func(m []*manifest) []*manifest { return m[1:] }
		_, err := OpenRun(t.Context(), p.write(t), "run-1")
		require.ErrorIs(t, err, ErrCorrupt)
		require.ErrorContains(t, err, "does not start with its creation")
	})
}

func TestOpenRun_Joins(t *testing.T) {
	p := newPlan()
	r, err := OpenRun(t.Context(), p.write(t), "run-1")
	require.NoError(t, err)
	require.True(t, r.Ended())
	require.Len(t, r.Versions, 3)
	require.Equal(t, "live", r.Versions[2].State)
	require.Len(t, r.Steps, 2)
	require.Equal(t, "dropped", r.Group(5).End.Outcome)
	require.Len(t, r.Group(3).Attempts, 3)
	require.Len(t, r.Group(3).Members(), 2)

	m := p.find(3, 1, 1)
	a := r.Find(m.id())
	require.NotNil(t, a)
	row, err := r.EpisodeRow(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, m.row.EpisodeID, row.EpisodeID)
	steps, err := r.StepRows(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, normal(m.steps), normal(steps))
	v, ok, err := r.VerdictRow(t.Context(), a)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, *m.verdict, v)
	_, ok, err = r.VerdictRow(t.Context(), r.Find(EpisodeID("run-1", 4, 1, 1)))
	require.NoError(t, err)
	require.False(t, ok)
	ledger, err := r.LedgerRows(t.Context(), r.Steps[1])
	require.NoError(t, err)
	require.Equal(t, p.ledgers[1], ledger)
	_, err = r.StepRows(t.Context(), r.Find(EpisodeID("run-1", 2, 1, 1)))
	require.ErrorIs(t, err, store.ErrNotFound)
}

// A rollback opens a new lineage: what it supersedes may be trained again.
func TestVerify_Rollback(t *testing.T) {
	p := newPlan()
	p.editEvents = func(events []*raftlog.Event) []*raftlog.Event {
		var out []*raftlog.Event
		for _, e := range events {
			if c := e.GetStepCommitted(); c.GetStep() == 1 {
				old := &raftlog.StepCommitted{Step: 1, Lineage: 1, Groups: c.Groups, Manifest: string(digest("lost")), Ledger: string(digest("lost"))}
				out = append(out, &raftlog.Event{Event: &raftlog.Event_StepCommitted{StepCommitted: old}})
				c.Lineage = 2
			}
			out = append(out, e)
		}
		return out
	}
	for i := range p.ledgers[1] {
		p.ledgers[1][i].Lineage = 2
	}
	s := p.write(t)
	rep, err := Verify(t.Context(), s, "run-1", VerifyOptions{})
	require.NoError(t, err)
	require.Empty(t, rep.Findings)
	r, err := OpenRun(t.Context(), s, "run-1")
	require.NoError(t, err)
	require.Equal(t, "superseded", r.Versions[2].State)
}

func TestVerify_Acks(t *testing.T) {
	p := newPlan()
	s := p.write(t)
	r, err := OpenRun(t.Context(), s, "run-1")
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "acks.jsonl")
	j, err := NewAckJournal(path)
	require.NoError(t, err)
	n := 0
	for _, a := range r.Attempts() {
		if a.Sealed != nil {
			require.NoError(t, j.Sealed("run-1", a.Group.Group, a.Index, a.Attempt, policy.Digest(a.Sealed.Steps.Object)))
			n++
		}
		if a.Settled.GetVerdictRow() != nil {
			require.NoError(t, j.Settled("run-1", a.Group.Group, a.Index, a.Attempt, "pass", policy.Digest(a.Settled.VerdictRow.Object)))
			n++
		}
	}
	for _, st := range r.Steps {
		require.NoError(t, j.Committed("run-1", st.Step, policy.Digest(st.Manifest), policy.Digest(st.Ledger)))
		n++
	}
	require.NoError(t, j.Sealed("another-run", 1, 1, 1, digest("x")))
	require.NoError(t, j.Close())
	// The fixture has passes and fails; the journal above says pass for all.
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	lines := strings.Split(string(data), "\n")
	for i, line := range lines {
		for _, a := range r.Attempts() {
			if a.Settled != nil && a.Settled.Verdict == "fail" && strings.Contains(line, "settled") && strings.Contains(line, ackKey(a)) {
				lines[i] = strings.Replace(line, `"pass"`, `"fail"`, 1)
			}
		}
	}
	good := strings.Join(lines, "\n")
	require.NoError(t, os.WriteFile(path, []byte(good), 0o644))
	rep, err := Verify(t.Context(), s, "run-1", VerifyOptions{AcksFile: path})
	require.NoError(t, err)
	require.Empty(t, rep.Findings)
	require.Equal(t, n, rep.Acks)

	for name, c := range map[string]struct{ line, want string }{
		"sealed and lost":        {`{"kind":"sealed","run":"run-1","group":9,"index":0,"attempt":1,"steps":"sha256:aa"}`, "is not in the manifest"},
		"sealed with other rows": {`{"kind":"sealed","run":"run-1","group":1,"index":0,"attempt":1,"steps":"sha256:aa"}`, "not sha256:aa"},
		"settled and lost":       {`{"kind":"settled","run":"run-1","group":5,"index":0,"attempt":1,"verdict":"pass"}`, "is not in the manifest"},
		"settled otherwise":      {`{"kind":"settled","run":"run-1","group":1,"index":0,"attempt":1,"verdict":"fail"}`, "with another verdict"},
		"committed and lost":     {`{"kind":"committed","run":"run-1","step":2}`, "is not in the manifest"},
		"committed otherwise":    {`{"kind":"committed","run":"run-1","step":1,"manifest":"sha256:aa"}`, "with another checkpoint"},
		"a kind of no meaning":   {`{"kind":"promised","run":"run-1"}`, "of no kind"},
		"a line that is torn":    {`{"kind":"sealed","run":"ru`, "line "},
	} {
		t.Run(name, func(t *testing.T) {
			bad := filepath.Join(t.TempDir(), "acks.jsonl")
			require.NoError(t, os.WriteFile(bad, []byte(good+c.line+"\n"), 0o644))
			rep, err := Verify(t.Context(), s, "run-1", VerifyOptions{AcksFile: bad})
			require.NoError(t, err)
			require.Len(t, rep.Findings, 1)
			requireFinding(t, rep, "I3", c.want)
		})
	}
	_, err = Verify(t.Context(), s, "run-1", VerifyOptions{AcksFile: filepath.Join(t.TempDir(), "none")})
	require.ErrorIs(t, err, os.ErrNotExist)
}

func ackKey(a *Attempt) string {
	b, _ := jsonOf(ack{Kind: ackSettled, Run: "run-1", Group: a.Group.Group, Index: a.Index, Attempt: a.Attempt})
	return b
}

func TestAckJournal_Nil(t *testing.T) {
	j, err := NewAckJournal("")
	require.NoError(t, err)
	require.NoError(t, j.Sealed("r", 1, 2, 3, ""))
	require.NoError(t, j.Settled("r", 1, 2, 3, "pass", ""))
	require.NoError(t, j.Committed("r", 1, "", ""))
	require.NoError(t, j.Close())
}
