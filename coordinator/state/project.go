package state

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// DefaultProject is the project of a run that names none.
const DefaultProject = "default"

func project(c *raftlog.RunConfig) string { return cmp.Or(c.GetProject(), DefaultProject) }

// Projects returns what the runs of each project came to, removed ones too, by name.
func (s *State) Projects() []*raftlog.Project {
	sums := map[string]*raftlog.Project{}
	for _, p := range s.projects.Values() {
		sums[p.Name] = proto.CloneOf(p)
	}
	for _, r := range s.Runs() {
		name := project(r.Config)
		if sums[name] == nil {
			sums[name] = &raftlog.Project{Name: name, Counters: &raftlog.Counters{}}
		}
		addRun(sums[name], r)
	}
	out := make([]*raftlog.Project, 0, len(sums))
	for _, p := range sums {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *raftlog.Project) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// keepProject adds a run that is about to be removed to its project.
func (s *State) keepProject(r *raftlog.Run) {
	if !s.atLeast(2) {
		return
	}
	name := project(r.Config)
	p := &raftlog.Project{Name: name, Counters: &raftlog.Counters{}}
	if old, found := s.projects.Get(name); found {
		p = proto.CloneOf(old)
	}
	addRun(p, r)
	s.projects.Set(name, p)
}

func addRun(p *raftlog.Project, r *raftlog.Run) {
	p.Runs++
	a, b := p.Counters, r.Counters
	a.EpisodesSettled += b.EpisodesSettled
	a.EpisodesPassed += b.EpisodesPassed
	a.EpisodesFailed += b.EpisodesFailed
	a.EpisodesIndeterminate += b.EpisodesIndeterminate
	a.GroupsAdmitted += b.GroupsAdmitted
	a.GroupsConsumed += b.GroupsConsumed
	a.GroupsDropped += b.GroupsDropped
	a.Stale += b.Stale
	a.Straggler += b.Straggler
	a.AttemptsLost += b.AttemptsLost
	a.MaxLag = max(a.MaxLag, b.MaxLag)
	a.Tokens += b.Tokens
	a.Masked += b.Masked
	a.MembersConsumed += b.MembersConsumed
	a.SandboxNs += b.SandboxNs
	a.Rollbacks += b.Rollbacks
}

// used adds the time that a sandbox was leased to its run.
func (s *State) used(run string, l *raftlog.Lease) {
	if l != nil && s.atLeast(2) {
		s.update(run, func(r *raftlog.Run) { r.Counters.SandboxNs += s.clock.NowNs - l.GrantedNs })
	}
}

// spent says which budget of a run is used up, or "".
func spent(r *raftlog.Run) string {
	c, n := r.Config, r.Counters
	switch {
	case c.BudgetTokens > 0 && n.Tokens >= c.BudgetTokens:
		return fmt.Sprintf("budget: %d tokens were sampled, and it was given %d", n.Tokens, c.BudgetTokens)
	case c.BudgetSandboxNs > 0 && n.SandboxNs >= c.BudgetSandboxNs:
		return fmt.Sprintf("budget: sandboxes were leased for %s, and it was given %s",
			time.Duration(n.SandboxNs).Round(time.Second), time.Duration(c.BudgetSandboxNs))
	}
	return ""
}
