package state

import "sort"

// model is what one run does, written from the architecture alone with lists
// and loops, and compared with the state machine by TestModel. It has one node
// of each role, one env and no evaluations.
type model struct {
	lag, b, steps, every, size int64
	drop                       bool // short groups are dropped, not replaced

	now, grace                 int64
	fence, next                uint64
	state                      string
	head, live, lineage        int64
	versions                   []string // of each version: committed, live, retired, rejected, superseded
	full                       []bool
	groups                     []*mGroup
	batches                    map[int64]*mBatch
	nodes                      map[string]*mNode
	engine                     int64 // version that it serves
	gang                       mLease
	epoch                      uint64
	pub                        mLease
	pubVersion                 int64
	stale, dropped, lost, used int64
}

type (
	mLease struct{ fence, life, expiry uint64 } // fence 0: nobody has it
	mNode  struct{ life, expiry uint64 }        // life 0: fenced
	mBatch struct {
		groups    []*mGroup
		epoch     uint64
		committed bool
	}
	mMember struct {
		state   string // queued, leased, sealed, judged, settled
		attempt int32
		lease   mLease
		low     int64 // oldest version of its tokens; until they exist, that it can have
		since   int64 // queued for its verdict
	}
	mGroup struct {
		id      uint64
		state   string // open, complete, assigned, consumed, dropped
		members []*mMember
	}
)

const mTTL = 10_000_000_000

func (l *mLease) over(m *model) bool {
	return l.fence > 0 && max(int64(l.expiry), m.grace) <= m.now
}

func (m *model) grant(life uint64) mLease {
	m.fence++
	return mLease{m.fence, life, uint64(m.now + mTTL)}
}

func (m *model) ready(role string) bool { return m.nodes[role] != nil && m.nodes[role].life > 0 }

func (g *mGroup) bound() int64 {
	low := g.members[0].low
	for _, x := range g.members {
		low = min(low, x.low)
	}
	return low
}

func (m *model) in(states ...string) (out []*mGroup) {
	for _, g := range m.groups {
		for _, s := range states {
			if g.state == s {
				out = append(out, g)
			}
		}
	}
	return out
}

// lease grants the first queued member, admitting a group when there is none and pacing lets it.
func (m *model) lease() (*mGroup, int) {
	if m.state != "running" || m.live < 0 || !m.ready(RoleEngine) || m.engine < m.live || !m.ready(RoleHost) {
		return nil, 0
	}
	for range 2 {
		for _, g := range m.in("open") {
			for i, x := range g.members {
				if x.state == "queued" {
					x.state, x.lease = "leased", m.grant(m.nodes[RoleRollout].life)
					return g, i
				}
			}
		}
		out := int64(len(m.in("open", "complete", "assigned")))
		if m.versions[m.live] != "live" || out >= (m.lag+1-(m.head-m.live))*m.b || out >= (m.steps-m.head)*m.b {
			return nil, 0
		}
		m.next++
		g := &mGroup{id: m.next, state: "open"}
		for range m.size {
			g.members = append(g.members, &mMember{state: "queued", attempt: 1, low: m.live})
		}
		m.groups = append(m.groups, g)
	}
	return nil, 0
}

// lose ends an attempt; the task's own failure drops the group where short groups are dropped.
func (m *model) lose(g *mGroup, x *mMember, blame bool) {
	m.lost++
	*x = mMember{state: "queued", attempt: x.attempt + 1, low: max(m.live, x.low)}
	if blame && m.drop {
		g.state = "dropped"
		m.dropped++
		for _, y := range g.members {
			y.state, y.lease = "settled", mLease{}
		}
	}
}

// leaseJob gives out the verdict that has waited longest.
func (m *model) leaseJob() (best *mGroup, at int) {
	if !m.ready(RoleHost) {
		return nil, 0
	}
	for _, g := range m.in("open") {
		for i, x := range g.members {
			if x.state == "sealed" && (best == nil || x.since < best.members[at].since) {
				best, at = g, i
			}
		}
	}
	if best != nil {
		x := best.members[at]
		x.state, x.lease = "judged", m.grant(m.nodes[RoleVerifier].life)
	}
	return best, at
}

func (m *model) settle(g *mGroup, x *mMember) {
	x.state, x.lease = "settled", mLease{}
	for _, y := range g.members {
		if y.state != "settled" {
			return
		}
	}
	g.state = "complete"
}

// take returns the batch of step head, or nil.
func (m *model) take() *mBatch {
	if b := m.batches[m.head]; b != nil {
		b.epoch = m.epoch
		return b
	}
	if m.head >= m.steps || m.state != "running" {
		return nil
	}
	for _, g := range m.in("complete") {
		if g.bound()+m.lag < m.head {
			g.state = "dropped"
			m.stale, m.dropped = m.stale+1, m.dropped+1
		}
	}
	complete := m.in("complete")
	sort.SliceStable(complete, func(i, j int) bool { return complete[i].bound() < complete[j].bound() })
	if int64(len(complete)) < m.b {
		return nil
	}
	chosen, behind := complete[:m.b], append(m.in("open"), complete[m.b:]...)
	for _, last := range behind { // for each deadline: do those due by then fit?
		d, due, open := last.bound()+m.lag, int64(0), false
		for _, g := range behind {
			if g.bound()+m.lag <= d {
				due, open = due+1, open || g.state == "open"
			}
		}
		if due > max(0, d-m.head)*m.b && open {
			return nil
		}
	}
	for _, g := range chosen {
		g.state = "assigned"
	}
	m.batches[m.head] = &mBatch{groups: chosen, epoch: m.epoch}
	return m.batches[m.head]
}

func (m *model) commit(full bool) {
	b := m.batches[m.head]
	for _, g := range b.groups {
		g.state = "consumed"
		m.used++
	}
	b.committed = true
	m.head++
	if int(m.head) == len(m.versions) {
		m.versions, m.full = append(m.versions, ""), append(m.full, false)
	}
	m.versions[m.head], m.full[m.head] = "committed", full
	if m.head == m.steps {
		m.state = "succeeded"
	}
}

// due is the version to publish, or -1.
func (m *model) due() int64 {
	v := m.head
	if v < m.steps {
		v -= v % m.every
	}
	if v > m.live || (v == m.live && m.versions[v] != "live") {
		return v
	}
	return -1
}

func (m *model) publish() int64 {
	v := m.due()
	if v < 0 || m.state != "running" || m.pub.fence > 0 || !m.ready(RoleEngine) || m.versions[v] == "rejected" {
		return -1
	}
	m.pub, m.pubVersion = m.grant(m.nodes[RolePublisher].life), v
	m.versions[v] = "staging"
	return v
}

func (m *model) finish(accepted bool) {
	v := m.pubVersion
	m.pub = mLease{}
	if !accepted {
		m.versions[v] = "rejected"
		if m.state == "running" {
			m.state = "paused"
		}
		return
	}
	for old := max(0, m.live); old < v; old++ {
		if m.versions[old] != "rejected" {
			m.versions[old] = "retired"
		}
	}
	m.versions[v], m.live = "live", v
	if m.ready(RoleEngine) {
		m.engine = v
	}
}

// back is the newest version that a rollback is certain to reach.
func (m *model) back() int64 {
	for v := m.live; v > 0; v-- {
		if m.full[v] && m.versions[v] != "superseded" && m.versions[v] != "rejected" {
			return v
		}
	}
	return 0
}

func (m *model) rollback(to int64) bool {
	if m.state != "running" && m.state != "paused" || to >= m.head || to < m.back() || !m.full[to] || m.versions[to] == "superseded" || m.versions[to] == "rejected" {
		return false
	}
	for v := to + 1; v <= m.head; v++ {
		m.versions[v] = "superseded"
	}
	for n := to; n < m.head; n++ {
		m.batches[n].committed, m.batches[n].epoch = false, 0
		for _, g := range m.batches[n].groups {
			g.state = "assigned"
			m.used--
		}
	}
	m.head, m.lineage, m.gang, m.pub = to, m.lineage+1, mLease{}, mLease{}
	return true
}

// end takes from a role what it holds, or what of it is over.
func (m *model) end(role string, over func(*mLease) bool) {
	for _, g := range m.in("open") {
		for _, x := range g.members {
			switch {
			case x.lease.fence == 0 || !over(&x.lease):
			case x.state == "leased" && role == RoleRollout:
				m.lose(g, x, false)
			case x.state == "judged" && role == RoleVerifier:
				x.state, x.lease, x.since = "sealed", mLease{}, m.now
			}
		}
	}
	if role == RoleTrainer && over(&m.gang) {
		m.gang = mLease{}
	}
	if role == RolePublisher && over(&m.pub) {
		m.pub = mLease{}
	}
}

func (m *model) fenceOff(role string) {
	m.end(role, func(*mLease) bool { return true })
	m.nodes[role].life = 0
	if role == RoleEngine {
		m.engine = -1
	}
}

func (m *model) tick() {
	for _, role := range roleNames() {
		if n := m.nodes[role]; n.life > 0 && max(int64(n.expiry), m.grace) <= m.now {
			m.fenceOff(role)
		}
		m.end(role, func(l *mLease) bool { return l.over(m) })
	}
}
