package trainer

import (
	"errors"
	"fmt"
	"slices"

	"github.com/rlfleet/rlfleet/outcome"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	"github.com/rlfleet/rlfleet/trainer/objective"
)

// groupStats is what a group's rewards say about its members.
type groupStats struct {
	id         uint64
	members    []*raftlog.BatchMember // by index
	advantages []objective.Advantage  // of each member; null without a reward that counts (trap T27)
	stats      objective.Statistics
	alone      bool // a single member counts: nobody to be compared with
}

// group turns the rewards of a group's members into advantages. The group is
// named by its id and never cut out of a list by its size (trap T23).
func (t *step) group(g *raftlog.BatchGroup) (*groupStats, error) {
	s := &groupStats{id: g.Group, members: slices.Clone(g.Members)}
	slices.SortFunc(s.members, func(a, b *raftlog.BatchMember) int { return int(a.Index - b.Index) })
	members := make([]objective.Member, len(s.members))
	for i, m := range s.members {
		if i > 0 && m.Index == s.members[i-1].Index {
			return nil, fmt.Errorf("trainer: group %d has member %d twice: %w", g.Group, m.Index, ErrBatch)
		}
		if !slices.Contains(outcome.Dispositions, m.Disposition) {
			return nil, fmt.Errorf("trainer: group %d member %d has disposition %q: %w", g.Group, m.Index, m.Disposition, ErrBatch)
		}
		members[i] = objective.Member{Reward: m.Reward, Disposition: outcome.Disposition(m.Disposition)}
	}
	var err error
	s.advantages, s.stats, err = t.cfg.Advantage.Group(members)
	switch {
	case errors.Is(err, objective.ErrSingleton):
		s.advantages, s.alone = make([]objective.Advantage, len(members)), true
	case err != nil:
		return nil, fmt.Errorf("trainer: group %d: %w: %w", g.Group, ErrBatch, err)
	}
	return s, nil
}
