package remote

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rlfleet/rlfleet/coordinator/lease"
	"github.com/rlfleet/rlfleet/envpool"
	rlfleetv1 "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// kinds is the one table of what an error is here and on the wire. The order
// matters: an error of several kinds travels as the first.
var kinds = []struct {
	err  error
	name string
	code codes.Code
}{
	{lease.ErrFenced, "fenced", codes.FailedPrecondition},
	{envpool.ErrNoSlot, "no_slot", codes.ResourceExhausted},
	{envpool.ErrUnknown, "unknown", codes.NotFound},
	{envpool.ErrUnsafe, "unsafe", codes.PermissionDenied},
	{envpool.ErrInvalid, "invalid", codes.InvalidArgument},
	{envpool.ErrUnsupported, "unsupported", codes.Unimplemented},
	{envpool.ErrTooLarge, "too_large", codes.OutOfRange},
	{envpool.ErrNotFound, "not_found", codes.NotFound},
	{envpool.ErrEnvironment, "environment", codes.Aborted},
	{context.DeadlineExceeded, "deadline", codes.DeadlineExceeded},
	{context.Canceled, "cancelled", codes.Canceled},
	{syscall.ENOSPC, "no_space", codes.ResourceExhausted},
}

// toStatus gives an error its code and names its kind in the details.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	for _, k := range kinds {
		if !errors.Is(err, k.err) {
			continue
		}
		st, derr := status.New(k.code, err.Error()).WithDetails(&rlfleetv1.EnvFailure{Kind: k.name})
		if derr != nil {
			break
		}
		return st.Err()
	}
	return status.Error(codes.Internal, err.Error())
}

// fromStatus gives an error its kind back. What no host has classified, such
// as a broken connection, has no kind: nothing is known of the sandbox.
func fromStatus(ctx context.Context, op string, err error) error {
	if err == nil {
		return nil
	}
	st := status.Convert(err)
	for _, d := range st.Details() {
		f, ok := d.(*rlfleetv1.EnvFailure)
		if !ok {
			continue
		}
		for _, k := range kinds {
			if k.name == f.GetKind() {
				return &failure{text: fmt.Sprintf("envpool: remote: %s: %s", op, st.Message()), kind: k.err}
			}
		}
	}
	if cerr := ctx.Err(); cerr != nil {
		return fmt.Errorf("envpool: remote: %s: %w", op, cerr)
	}
	if st.Code() == codes.DeadlineExceeded { // the transport's clock was first
		return fmt.Errorf("envpool: remote: %s: %w", op, context.DeadlineExceeded)
	}
	return fmt.Errorf("envpool: remote: %s: %w", op, err)
}

// failure is a host's error with its kind, which the text already tells.
type failure struct {
	text string
	kind error
}

func (f *failure) Error() string { return f.text }
func (f *failure) Unwrap() error { return f.kind }
