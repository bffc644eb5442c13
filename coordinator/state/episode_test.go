package state

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

func TestLeaseGrantsWhatAWorkerNeeds(t *testing.T) {
	m := fleet(t)
	grants := m.lease(8)
	require.EqualValues(t, 1, grants[0].Group)
	fences := map[uint64]bool{}
	seeds := map[int64]bool{}
	for i, g := range grants {
		require.EqualValues(t, i/2+1, g.Group, "in the order of admission")
		require.EqualValues(t, i%2, g.Index)
		require.EqualValues(t, 1, g.Attempt)
		require.Equal(t, m.r().Config.Envs[0].Tasks[g.Task], g.TaskRef)
		require.EqualValues(t, -1, g.Pin)
		require.Zero(t, g.Live)
		require.Equal(t, "host-1", g.Host)
		require.Equal(t, "host-1:1", g.HostAddress)
		require.EqualValues(t, 2, g.Size)
		fences[g.Fence], seeds[g.Seed] = true, true
	}
	require.Len(t, fences, 8)
	require.Len(t, seeds, 8)
	r := m.leaseResult(1)
	require.Empty(t, r.Grants)
	require.Contains(t, r.WaitsFor, "admission")
}

func TestLeaseWaitsAndSaysForWhat(t *testing.T) {
	m := newMachine(t)
	require.Equal(t, raftlog.Code_CODE_FENCED, m.apply(&raftlog.Op{Op: &raftlog.Op_LeaseEpisodes{LeaseEpisodes: &raftlog.LeaseEpisodes{Count: 1}}}).Code)
	m.registerAll()
	m.create(config(func(c *raftlog.RunConfig) { c.Concurrency = 3 }))
	require.Equal(t, "an engine that serves the live version", m.leaseResult(1).WaitsFor)
	m.publishNow()
	r := m.leaseResult(10)
	require.Len(t, r.Grants, 3)
	require.Equal(t, "rollout.concurrency", r.WaitsFor)
	require.Zero(t, m.s.Work(m.run).Episodes)
	require.Empty(t, m.leaseResult(-1).Grants)
	m.seal(r.Grants[0])
	require.Equal(t, 1, m.s.Work(m.run).Episodes, "a sealed episode no longer counts")
	m.lease(1)
}

func TestSeal(t *testing.T) {
	m := fleet(t)
	g := m.lease(1)[0]
	other := proto.CloneOf(g)
	other.Index = 1
	older := proto.CloneOf(g)
	older.Fence--
	next := proto.CloneOf(g)
	next.Attempt++
	noShard, noEpisode := sealed("stop", 0, 0), sealed("stop", 0, 0)
	noShard.Steps, noEpisode.Episode = nil, &raftlog.RowRef{}
	for name, tc := range map[string]struct {
		grant  *raftlog.EpisodeGrant
		sealed *raftlog.Sealed
		code   raftlog.Code
	}{
		"another member":    {other, sealed("stop", 0, 0), raftlog.Code_CODE_FENCED},
		"an older fence":    {older, sealed("stop", 0, 0), raftlog.Code_CODE_FENCED},
		"another attempt":   {next, sealed("stop", 0, 0), raftlog.Code_CODE_FENCED},
		"nothing":           {g, nil, raftlog.Code_CODE_INVALID},
		"an unknown reason": {g, sealed("tired", 0, 0), raftlog.Code_CODE_INVALID},
		"a failure":         {g, sealed("env_crash", 0, 0), raftlog.Code_CODE_INVALID},
		"no shard":          {g, noShard, raftlog.Code_CODE_INVALID},
		"no episode row":    {g, noEpisode, raftlog.Code_CODE_INVALID},
		"no version":        {g, sealed("stop", -1, -1), raftlog.Code_CODE_INVALID},
		"versions turned":   {g, sealed("stop", 1, 0), raftlog.Code_CODE_INVALID},
		"a version to come": {g, sealed("stop", 0, 1), raftlog.Code_CODE_INVALID},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.code, m.sealAs(tc.grant, tc.sealed)) })
	}
	require.Equal(t, raftlog.Code_CODE_OK, m.sealAs(g, sealed("max_turns", 0, 0)))
	require.Equal(t, raftlog.Code_CODE_FENCED, m.sealAs(g, sealed("max_turns", 0, 0)))
	require.Equal(t, raftlog.EpisodeState_EPISODE_STATE_SEALED, m.episode(g.Group, g.Index).State)
	require.Len(t, m.s.Jobs(m.run), 1, "its verify job is queued in the same entry")
	ev := events(m.s, func(e *raftlog.Event) *raftlog.EpisodeSealed { return e.GetSealed() })
	require.Len(t, ev, 1)
	require.Equal(t, "max_turns", ev[0].Sealed.EndReason)
}

// One refused item does not refuse the others.
func TestSealItemByItem(t *testing.T) {
	m := fleet(t)
	grants := m.lease(3)
	var items []*raftlog.SealItem
	for i, g := range grants {
		it := &raftlog.SealItem{Group: g.Group, Index: g.Index, Attempt: g.Attempt, Fence: g.Fence, Sealed: sealed("stop", 0, 0)}
		if i == 1 {
			it.Fence += 100
		}
		items = append(items, it)
	}
	r := m.ok(&raftlog.Op{Op: &raftlog.Op_SealEpisodes{SealEpisodes: &raftlog.SealEpisodes{Node: m.ref(RoleRollout), Run: m.run, Items: items}}}).GetItems()
	require.Equal(t, []raftlog.Code{raftlog.Code_CODE_OK, raftlog.Code_CODE_FENCED, raftlog.Code_CODE_OK}, r.Codes)
	require.Len(t, r.Messages, 3)
	require.NotEmpty(t, r.Messages[1])
	require.Len(t, m.s.Jobs(m.run), 2)
}

// A reason's class decides what a failed attempt counts against.
func TestFailEpisode(t *testing.T) {
	for reason, tc := range map[string]struct {
		code    raftlog.Code
		counted bool
	}{
		"env_crash":         {raftlog.Code_CODE_OK, true},
		"env_timeout":       {raftlog.Code_CODE_OK, true},
		"tool_backend_down": {raftlog.Code_CODE_OK, true},
		"task_setup_failed": {raftlog.Code_CODE_OK, true},
		"unsolvable":        {raftlog.Code_CODE_OK, true},
		"worker_lost":       {raftlog.Code_CODE_OK, false},
		"host_lost":         {raftlog.Code_CODE_OK, false},
		"engine_error":      {raftlog.Code_CODE_OK, false},
		"upload_failed":     {raftlog.Code_CODE_OK, false},
		"platform_timeout":  {raftlog.Code_CODE_OK, false},
		"drained":           {raftlog.Code_CODE_OK, false},
		"stop":              {raftlog.Code_CODE_INVALID, false},
		"max_tokens":        {raftlog.Code_CODE_INVALID, false},
		"nonsense":          {raftlog.Code_CODE_INVALID, false},
	} {
		t.Run(reason, func(t *testing.T) {
			m := fleet(t)
			g := m.lease(1)[0]
			require.Equal(t, tc.code, m.failEpisode(g, reason))
			ep := m.episode(g.Group, g.Index)
			if tc.code != raftlog.Code_CODE_OK {
				require.Equal(t, raftlog.EpisodeState_EPISODE_STATE_LEASED, ep.State)
				return
			}
			require.Equal(t, raftlog.EpisodeState_EPISODE_STATE_QUEUED, ep.State)
			require.EqualValues(t, 2, ep.Attempt)
			require.Equal(t, reason+": because", ep.LastFailure)
			require.Nil(t, ep.Reward, "an infrastructure failure never becomes a reward")
			require.EqualValues(t, 1, m.r().Counters.AttemptsLost)
			require.Equal(t, tc.counted, len(m.r().Failures) == 1)
			require.Equal(t, raftlog.Code_CODE_FENCED, m.failEpisode(g, reason), "the attempt is over")
			again := m.lease(1)[0]
			require.Equal(t, g.Group, again.Group)
			require.EqualValues(t, 2, again.Attempt)
			require.Greater(t, again.Fence, g.Fence)
			require.Equal(t, g.Seed, again.Seed)
		})
	}
}

func TestEpisodeDeadlineEndsAHeldAttempt(t *testing.T) {
	m := fleet(t)
	m.register(RoleHost, "host-2", 1)
	g := m.lease(1)[0]
	m.advance(295 * second)
	require.EqualValues(t, 1, m.episode(g.Group, g.Index).Attempt, "heartbeats keep it")
	m.advance(5 * second)
	require.EqualValues(t, 2, m.episode(g.Group, g.Index).Attempt)
	require.Contains(t, m.episode(g.Group, g.Index).LastFailure, "platform_timeout: its worker waited for model")
	require.Empty(t, m.r().Failures, "the platform's own deadline blames no task")
	require.Equal(t, raftlog.Code_CODE_FENCED, m.sealAs(g, sealed("stop", 0, 0)))
}

// The bound of a group is that of its oldest tokens, or of what may still make tokens for it.
func TestBoundFollowsTheTokens(t *testing.T) {
	m := fleet(t, func(c *raftlog.RunConfig) { c.LagMax, c.Steps = 3, 9 })
	gang := m.join()
	grants := m.lease(8)
	for _, g := range grants[:4] {
		m.seal(g)
	}
	m.judge(1)
	m.step(gang)
	m.publishNow()
	require.EqualValues(t, 1, m.r().Live)
	first, second := grants[4], grants[5] // group 3, leased at version 0
	require.Equal(t, raftlog.Code_CODE_OK, m.sealAs(first, sealed("stop", 1, 1)))
	require.Zero(t, m.group(3).Bound, "a member is still out with tokens of version 0")
	require.Equal(t, raftlog.Code_CODE_OK, m.failEpisode(second, "worker_lost"))
	require.EqualValues(t, 1, m.group(3).Bound, "all its tokens are of version 1 or to be sampled from it")
	next := m.lease(1)[0]
	require.EqualValues(t, 3, next.Group)
	require.Equal(t, raftlog.Code_CODE_OK, m.sealAs(next, sealed("stop", 0, 1)))
	require.Zero(t, m.group(3).Bound, "never assumed: the tokens decide")

	// Members without a token bound nothing.
	empty := sealed("stop", -1, -1)
	empty.Tokens = 0
	require.Equal(t, raftlog.Code_CODE_OK, m.sealAs(grants[6], empty))
	require.Equal(t, raftlog.Code_CODE_OK, m.sealAs(grants[7], sealed("stop", 1, 1)))
	require.EqualValues(t, 1, m.group(4).Bound)
}
