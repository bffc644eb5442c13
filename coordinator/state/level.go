package state

import raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"

// Level is the newest level of commands that this build knows. The leader
// proposes none above Clock.level, which is the lowest of all voters.
const Level = 2

// LevelOf returns the level of an operation: the one in which it, or a field
// that changes what it does, was added.
func LevelOf(op *raftlog.Op) int32 {
	switch op.GetOp().(type) {
	case *raftlog.Op_Identify, *raftlog.Op_SetMember, *raftlog.Op_RemoveMember, *raftlog.Op_SetToken, *raftlog.Op_RemoveToken,
		*raftlog.Op_Rollback, *raftlog.Op_Diverged:
		return 2
	case *raftlog.Op_CreateRun:
		if c := op.GetCreateRun().GetConfig(); c.GetBudgetTokens() != 0 || c.GetBudgetSandboxNs() != 0 {
			return 2
		}
	}
	return 1
}

// Known reports whether this build can carry out the operation, and all that
// may follow it; a node that meets one it does not know must stop.
func Known(op *raftlog.Op) bool {
	return op != nil && op.Op != nil && op.GetIdentify().GetLevel() <= Level
}

// internal reports whether an operation is the leader's own. (Tick and
// Mirrored were open to clients in level 1, and old entries keep their meaning.)
func internal(op *raftlog.Op) bool {
	switch op.GetOp().(type) {
	case *raftlog.Op_Identify, *raftlog.Op_Diverged:
		return true
	}
	return false
}

// atLeast reports whether all voters know the commands of a level. What Apply
// does differently since then hangs on it: the log of an older cluster, and a
// replica of an older build beside us, must come to the same state.
func (s *State) atLeast(level int32) bool { return s.clock.Level >= level }

// identify sets what the cluster is called, once, and raises the level of its commands.
func (s *State) identify(i *raftlog.Identify) *raftlog.Result {
	c := s.clock
	if i.Cluster != "" && c.Cluster != "" && i.Cluster != c.Cluster {
		return refuse(raftlog.Code_CODE_CONFLICT, "the cluster is "+c.Cluster+" and stays so")
	}
	if c.Cluster == "" {
		c.Cluster = i.Cluster
	}
	c.Level = max(c.Level, i.Level)
	return ok()
}
