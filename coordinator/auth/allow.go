package auth

import (
	"fmt"
	"path"
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// Who may do what. Nodes hold the log itself, so they may do what an admin may.
var (
	anyone  = []Role{Viewer, Worker, Operator, Admin, Coordinator}
	workers = []Role{Worker, Admin, Coordinator}
	runners = []Role{Operator, Admin, Coordinator}
	both    = []Role{Worker, Operator, Admin, Coordinator}
	admins  = []Role{Admin, Coordinator}
	nodes   = []Role{Coordinator}
	nobody  = []Role{} // the leader does it itself
)

// methods has a row for every RPC. Of a Propose the operation decides, in ops.
var methods = map[string][]Role{
	pb.Coordinator_Propose_FullMethodName: both,
	pb.Coordinator_View_FullMethodName:    anyone,
	pb.Coordinator_Why_FullMethodName:     anyone,
	pb.Coordinator_Changes_FullMethodName: anyone,
	pb.Coordinator_Watch_FullMethodName:   anyone,
	pb.Coordinator_Status_FullMethodName:  anyone,

	pb.Cluster_Init_FullMethodName:            admins,
	pb.Cluster_Adopt_FullMethodName:           admins,
	pb.Cluster_Join_FullMethodName:            admins,
	pb.Cluster_Remove_FullMethodName:          admins,
	pb.Cluster_Transfer_FullMethodName:        admins,
	pb.Cluster_Members_FullMethodName:         anyone,
	pb.Cluster_SaveSnapshot_FullMethodName:    runners,
	pb.Cluster_RestoreSnapshot_FullMethodName: admins,
}

// ops has a row for every field of Op.
var ops = map[protoreflect.Name][]Role{
	"create_run":     runners,
	"control_run":    runners,
	"register":       workers,
	"heartbeat":      workers,
	"tick":           nobody,
	"lease_episodes": workers,
	"seal_episodes":  workers,
	"fail_episodes":  workers,
	"lease_jobs":     workers,
	"settle_jobs":    workers,
	"fail_jobs":      workers,
	"join_gang":      workers,
	"take_batch":     workers,
	"commit_step":    workers,
	"lease_publish":  workers,
	"finish_publish": workers,
	"mirrored":       nobody,
	"deregister":     workers,
	"identify":       nobody,
	"set_member":     nodes,
	"remove_member":  nodes,
	"set_token":      admins,
	"remove_token":   admins,
	"rollback":       both,
	"diverged":       nobody,
}

// Allow returns nil when the identity may call the method, "/service/Method",
// with the request; the request matters for Propose only and is nil for streams.
func Allow(who Identity, method string, request any) error {
	what, roles := path.Base(method), methods[method]
	if p, ok := request.(*raftlog.Proposal); ok && method == pb.Coordinator_Propose_FullMethodName {
		m := p.GetOp().ProtoReflect()
		// An operation that this version does not know has no field; the service refuses it as such.
		if f := m.WhichOneof(m.Descriptor().Oneofs().ByName("op")); f != nil {
			what, roles = "Propose "+string(f.Message().Name()), ops[f.Name()]
		}
	}
	switch {
	case slices.Contains(roles, who.Role):
		return nil
	case len(roles) == 0:
		return fmt.Errorf("auth: %s: %s may not do this: only the leader itself does", what, who)
	}
	return fmt.Errorf("auth: %s: %s may not do this: use a certificate or a token with the role %s", what, who, list(roles))
}
