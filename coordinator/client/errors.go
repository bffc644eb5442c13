package client

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rlfleet/rlfleet/coordinator/lease"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// The kinds of failure of a call; the coordinator's refusal of an old fence is lease.ErrFenced.
var (
	ErrNotFound    = errors.New("the coordinator does not know it")
	ErrConflict    = errors.New("it exists, or its state does not allow this")
	ErrInvalid     = errors.New("the coordinator refuses the request as invalid")
	ErrStaleSeq    = errors.New("the sequence number is of the past")
	ErrUnavailable = errors.New("the coordinator cannot be reached")
	ErrDenied      = errors.New("the coordinator does not accept the certificate or token")
	ErrForbidden   = errors.New("the role does not allow it")
	ErrLevel       = errors.New("not every node of the coordinator knows the command yet: finish the upgrade first")
	ErrResync      = errors.New("the watch fell too far behind: begin again without a revision")
)

// kinds maps the codes of the state machine to kinds.
var kinds = map[raftlog.Code]error{
	raftlog.Code_CODE_FENCED:    lease.ErrFenced,
	raftlog.Code_CODE_NOT_FOUND: ErrNotFound,
	raftlog.Code_CODE_CONFLICT:  ErrConflict,
	raftlog.Code_CODE_INVALID:   ErrInvalid,
	raftlog.Code_CODE_STALE_SEQ: ErrStaleSeq,
}

// Refused is a committed operation that the state machine did not carry out.
type Refused struct {
	op      string
	code    raftlog.Code
	message string
}

// Error implements error.
func (e *Refused) Error() string {
	if e.message == "" {
		return fmt.Sprintf("client: %s: %v", e.op, e.Unwrap())
	}
	return fmt.Sprintf("client: %s: %s", e.op, e.message)
}

// Code returns the state machine's code.
func (e *Refused) Code() raftlog.Code { return e.code }

// Unwrap returns the kind, for errors.Is.
func (e *Refused) Unwrap() error {
	if k := kinds[e.code]; k != nil {
		return k
	}
	return fmt.Errorf("code %s", e.code)
}

// callError is a call that no try can bring to an end.
type callError struct {
	op       string
	kind     error
	sentence string
}

// Error implements error. A sentence of the coordinator says everything.
func (e *callError) Error() string {
	if strings.HasPrefix(e.sentence, "coordinator: ") {
		return e.sentence
	}
	return fmt.Sprintf("client: %s: %v: %s", e.op, e.kind, e.sentence)
}

// Unwrap returns the kind, for errors.Is.
func (e *callError) Unwrap() error { return e.kind }

// verdict is what a failed try means for the next one.
type verdict int

const (
	again     verdict = iota // the same node, after a pause
	elsewhere                // the next node, after a pause
	denied                   // the next node; when all say so, no try can succeed
	final                    // no try can succeed
)

// judge reads a failed try. What is not understood may have happened and is
// repeated with the same numbers. kind is set when the verdict is denied or
// final, and when it becomes final if it does not change.
func judge(err error) (v verdict, detail *pb.Refusal, kind error) {
	s := status.Convert(err)
	for _, d := range s.Details() {
		if r, ok := d.(*pb.Refusal); ok {
			detail = r
		}
	}
	switch detail.GetReason() {
	case pb.Reason_REASON_INVALID:
		return final, detail, ErrInvalid
	case pb.Reason_REASON_NOT_FOUND:
		return final, detail, ErrNotFound
	case pb.Reason_REASON_FORBIDDEN:
		return final, detail, ErrForbidden
	case pb.Reason_REASON_LEVEL:
		return again, detail, ErrLevel // a new cluster, or one that was just upgraded, is at that level in a moment
	case pb.Reason_REASON_RESYNC:
		return final, detail, ErrResync
	case pb.Reason_REASON_UNAUTHENTICATED: // a node that lags may not have seen a new token
		return denied, detail, ErrDenied
	case pb.Reason_REASON_NOT_LEADER, pb.Reason_REASON_STOPPED:
		return elsewhere, detail, nil
	case pb.Reason_REASON_STARTING, pb.Reason_REASON_QUEUE_FULL, pb.Reason_REASON_UNKNOWN_OUTCOME:
		return again, detail, nil
	}
	switch s.Code() { // gRPC's own
	case codes.ResourceExhausted, codes.Unimplemented, codes.InvalidArgument: // a message beyond the limits, another service
		return final, detail, ErrInvalid
	case codes.PermissionDenied:
		return final, detail, ErrForbidden
	case codes.Unauthenticated:
		return denied, detail, ErrDenied
	case codes.Unavailable, codes.DeadlineExceeded:
		return elsewhere, detail, nil
	}
	return again, detail, nil
}
