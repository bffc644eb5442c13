package failpoint

// Point is a place in the code at which a process can be made to fail.
type Point string

// The points, in the order in which work passes them. Those marked E can also
// return an error; the others only end or delay the process.
const (
	// The coordinator.
	LogAppendBefore   Point = "log.append.before"   // E: entries of raft, before they are written
	LogAppendAfter    Point = "log.append.after"    // they are durable, raft does not know yet
	LogDeleteBefore   Point = "log.delete.before"   // E: compaction: the snapshot is durable, the log not yet cut
	LogDeleteAfter    Point = "log.delete.after"    // the log is cut
	TermKeepBefore    Point = "term.keep.before"    // E: a term or vote, before it is written
	TermKeepAfter     Point = "term.keep.after"     // it is durable, nobody has heard of it
	ApplyBefore       Point = "apply.before"        // committed, not applied
	ApplyAfter        Point = "apply.after"         // applied, nobody has heard of it
	AnswerBefore      Point = "answer.before"       // the leader's callers wait for their results
	SnapshotBefore    Point = "snapshot.before"     // E: nothing of a snapshot is written
	SnapshotWritten   Point = "snapshot.written"    // E: written, not yet under its name
	SnapshotAfter     Point = "snapshot.after"      // the snapshot is durable
	MirrorPutBefore   Point = "mirror.put.before"   // E: events, before they are in the store
	MirrorPutAfter    Point = "mirror.put.after"    // in the store, the state does not know
	TransferBefore    Point = "transfer.before"     // leadership is about to be handed over
	JoinAdded         Point = "join.added"          // a new node is a non-voter
	JoinPromoteBefore Point = "join.promote.before" // it has caught up and is about to vote
	RestoreBefore     Point = "restore.before"      // a snapshot has been received and checked
	RestoreAfter      Point = "restore.after"       // it is the state, nobody has been told

	// The other roles.
	ShardPutBefore    Point = "rollout.shard.before"      // E: recorded episodes, before their shard is in the store
	ShardPutAfter     Point = "rollout.shard.after"       // in the store, nobody knows
	SealAfter         Point = "rollout.seal.after"        // SealEpisodes was acknowledged
	VerdictPutBefore  Point = "verifier.put.before"       // E: verdicts, before their shard is in the store
	VerdictPutAfter   Point = "verifier.put.after"        // in the store, nobody knows
	SettleAfter       Point = "verifier.settle.after"     // SettleJobs was acknowledged
	CheckpointBefore  Point = "trainer.checkpoint.before" // E: a step is computed, nothing written
	CheckpointAfter   Point = "trainer.checkpoint.after"  // the checkpoint is in the store, nobody knows
	CommitAfter       Point = "trainer.commit.after"      // CommitStep was acknowledged
	PublishStageAfter Point = "publisher.stage.after"     // engines have the version beside the one they serve
	PublishFlipAfter  Point = "publisher.flip.after"      // some engines serve it, the state does not know
)

// fallible are the points marked E.
var fallible = []Point{
	LogAppendBefore, LogDeleteBefore, TermKeepBefore, SnapshotBefore, SnapshotWritten, MirrorPutBefore,
	ShardPutBefore, VerdictPutBefore, CheckpointBefore,
}

// All returns every point.
func All() []Point {
	return []Point{
		LogAppendBefore, LogAppendAfter, LogDeleteBefore, LogDeleteAfter, TermKeepBefore, TermKeepAfter,
		ApplyBefore, ApplyAfter, AnswerBefore, SnapshotBefore, SnapshotWritten, SnapshotAfter,
		MirrorPutBefore, MirrorPutAfter, TransferBefore, JoinAdded, JoinPromoteBefore, RestoreBefore, RestoreAfter,
		ShardPutBefore, ShardPutAfter, SealAfter, VerdictPutBefore, VerdictPutAfter, SettleAfter,
		CheckpointBefore, CheckpointAfter, CommitAfter, PublishStageAfter, PublishFlipAfter,
	}
}
