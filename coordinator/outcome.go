package coordinator

import (
	"errors"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// The ways a proposal fails.
var (
	ErrNotLeader = errors.New("this node does not lead: ask the leader")
	ErrStarting  = errors.New("the leader is starting: try again in a moment")
	ErrQueueFull = errors.New("too many proposals wait: try again later")
	ErrStopped   = errors.New("the node is stopped")
	ErrInvalid   = errors.New("the request is not valid")
	ErrNotFound  = errors.New("no such run")
	ErrLevel     = errors.New("upgrade the other nodes first")
	ErrUnknown   = errors.New("it is not known whether the proposal was committed: repeat it with the same client and sequence")
)

// Class says whether a failed proposal may have been committed.
type Class int

// Everything that is not named in the table is Unknown.
const (
	Unknown   Class = iota // it may have been committed, or may yet be
	Rejected               // it was not and will not be committed
	Committed              // it was; its result may still refuse it
)

// outcomes is the one table of failures: the class, the reason on the wire and
// the status code. The first row that errors.Is matches counts.
//
// raft.ErrRaftShutdown is missing on purpose: raft returns it both before it
// took an entry and after.
var outcomes = []struct {
	err    error
	class  Class
	reason pb.Reason
	code   codes.Code
}{
	{ErrNotLeader, Rejected, pb.Reason_REASON_NOT_LEADER, codes.Unavailable},
	{raft.ErrNotLeader, Rejected, pb.Reason_REASON_NOT_LEADER, codes.Unavailable},
	{raft.ErrLeadershipTransferInProgress, Rejected, pb.Reason_REASON_NOT_LEADER, codes.Unavailable},
	{ErrStarting, Rejected, pb.Reason_REASON_STARTING, codes.Unavailable},
	{raft.ErrEnqueueTimeout, Rejected, pb.Reason_REASON_STARTING, codes.Unavailable},
	{ErrQueueFull, Rejected, pb.Reason_REASON_QUEUE_FULL, codes.ResourceExhausted},
	{ErrStopped, Rejected, pb.Reason_REASON_STOPPED, codes.Unavailable},
	{ErrInvalid, Rejected, pb.Reason_REASON_INVALID, codes.InvalidArgument},
	{ErrCluster, Rejected, pb.Reason_REASON_INVALID, codes.FailedPrecondition},
	{ErrNoMember, Rejected, pb.Reason_REASON_NOT_FOUND, codes.NotFound},
	{ErrLevel, Rejected, pb.Reason_REASON_LEVEL, codes.FailedPrecondition},
	{ErrWatches, Rejected, pb.Reason_REASON_QUEUE_FULL, codes.ResourceExhausted},
	{ErrResync, Rejected, pb.Reason_REASON_RESYNC, codes.OutOfRange},
	{ErrNotFound, Rejected, pb.Reason_REASON_NOT_FOUND, codes.NotFound},
	{raft.ErrLeadershipLost, Unknown, pb.Reason_REASON_UNKNOWN_OUTCOME, codes.Unknown},
	{raft.ErrAbortedByRestore, Unknown, pb.Reason_REASON_UNKNOWN_OUTCOME, codes.Unknown},
}

// Classify returns the class of a proposal's error; nil is Committed.
func Classify(err error) Class {
	if err == nil {
		return Committed
	}
	for _, o := range outcomes {
		if errors.Is(err, o.err) {
			return o.class
		}
	}
	return Unknown
}

// retryAfter is what a full queue asks of its callers: several entries leave it in that time.
const retryAfter = 20 * time.Millisecond

// statusOf turns an error into a gRPC status with a Refusal. leader and its address may be empty.
func statusOf(err error, leader, address string) error {
	code, detail := codes.Unknown, &pb.Refusal{Reason: pb.Reason_REASON_UNKNOWN_OUTCOME, Leader: leader, LeaderAddress: address}
	for _, o := range outcomes {
		if errors.Is(err, o.err) {
			code, detail.Reason = o.code, o.reason
			break
		}
	}
	if detail.Reason == pb.Reason_REASON_QUEUE_FULL {
		detail.RetryAfterNs = int64(retryAfter)
	}
	s := status.New(code, err.Error())
	if with, detailErr := s.WithDetails(detail); detailErr == nil { // a Refusal always encodes
		s = with
	}
	return s.Err()
}
