package auth

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/reflect/protoreflect"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

func rpcs() (out []string) {
	for _, f := range []protoreflect.FileDescriptor{pb.File_rlfleet_v1_coordinator_proto, pb.File_rlfleet_v1_cluster_proto} {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for j := range s.Methods().Len() {
				out = append(out, "/"+string(s.FullName())+"/"+string(s.Methods().Get(j).Name()))
			}
		}
	}
	return out
}

func opFields() protoreflect.FieldDescriptors {
	return (&raftlog.Op{}).ProtoReflect().Descriptor().Oneofs().ByName("op").Fields()
}

// A new RPC or operation needs a decision on who may use it.
func TestEveryRPCAndOperationHasARow(t *testing.T) {
	all := rpcs()
	require.Len(t, all, 14)
	for _, m := range all {
		require.Contains(t, methods, m)
	}
	require.Len(t, methods, len(all), "rows of RPCs that do not exist")
	for i := range opFields().Len() {
		require.Contains(t, ops, opFields().Get(i).Name())
	}
	require.Len(t, ops, opFields().Len(), "rows of operations that do not exist")
}

// The table, from the other side: what each role may do, in words of its own.
func TestWhatEachRoleMayDo(t *testing.T) {
	const reads = "View Why Changes Watch Status Members"
	const workerOps = " Register Heartbeat Deregister LeaseEpisodes SealEpisodes FailEpisodes LeaseJobs SettleJobs FailJobs JoinGang TakeBatch CommitStep LeasePublish FinishPublish Rollback"
	const runnerOps = " CreateRun ControlRun Rollback"
	const adminOps = " SetToken RemoveToken"
	may := map[Role]string{
		Viewer:   reads,
		Worker:   reads + workerOps,
		Operator: reads + runnerOps + " SaveSnapshot",
		Admin:    reads + workerOps + runnerOps + adminOps + " SaveSnapshot Init Adopt Join Remove Transfer RestoreSnapshot",
		// Nodes, besides: their own membership.
		Coordinator: reads + workerOps + runnerOps + adminOps + " SaveSnapshot Init Adopt Join Remove Transfer RestoreSnapshot SetMember RemoveMember",
		"":          "",
		"root":      "",
	}
	for role, text := range may {
		who, allowed := Identity{Role: role, Name: "x"}, strings.Fields(text)
		check := func(name, method string, request any) {
			err := Allow(who, method, request)
			if slices.Contains(allowed, name) {
				require.NoError(t, err, "%s %s", role, name)
			} else {
				require.ErrorContains(t, err, "may not do this", "%s %s", role, name)
				require.ErrorContains(t, err, who.String())
				require.ErrorContains(t, err, name)
			}
		}
		for _, m := range rpcs() {
			if m != pb.Coordinator_Propose_FullMethodName {
				check(m[strings.LastIndex(m, "/")+1:], m, nil)
			}
		}
		for i := range opFields().Len() {
			f := opFields().Get(i)
			op := &raftlog.Op{}
			op.ProtoReflect().Set(f, op.ProtoReflect().NewField(f))
			check(string(f.Message().Name()), pb.Coordinator_Propose_FullMethodName, &raftlog.Proposal{Op: op})
		}
	}
}

func TestRefusalsNameWhoMay(t *testing.T) {
	viewer := Identity{Viewer, "alice"}
	create := &raftlog.Proposal{Op: &raftlog.Op{Op: &raftlog.Op_CreateRun{}}}
	require.EqualError(t, Allow(viewer, pb.Coordinator_Propose_FullMethodName, create),
		"auth: Propose CreateRun: viewer/alice may not do this: use a certificate or a token with the role operator, admin or coordinator")
	tick := &raftlog.Proposal{Op: &raftlog.Op{Op: &raftlog.Op_Tick{}}}
	require.EqualError(t, Allow(Identity{Coordinator, "n1"}, pb.Coordinator_Propose_FullMethodName, tick),
		"auth: Propose Tick: coordinator/n1 may not do this: only the leader itself does")
	require.Error(t, Allow(Identity{Admin, "a"}, "/rlfleet.v1.Coordinator/Invented", nil), "what has no row is not allowed")
	require.Error(t, Allow(viewer, pb.Coordinator_Propose_FullMethodName, &raftlog.Proposal{}), "no operation: as Propose itself")
	require.NoError(t, Allow(Identity{Worker, "w"}, pb.Coordinator_Propose_FullMethodName, &raftlog.Proposal{}), "the service refuses it")
}

func TestIdentities(t *testing.T) {
	who, err := ParseIdentity("worker/w-1.rack_2")
	require.NoError(t, err)
	require.Equal(t, Identity{Worker, "w-1.rack_2"}, who)
	for _, bad := range []string{"", "worker", "worker/", "boss/x", "worker/../x", "worker/a b", "worker/.x", "worker/" + strings.Repeat("x", 64), "/x", "worker/a/b"} {
		_, err := ParseIdentity(bad)
		require.Error(t, err, bad)
	}
}

func TestLoopback(t *testing.T) {
	for _, a := range []string{"unix:/x/y", "127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1"} {
		require.True(t, Loopback(a), a)
	}
	for _, a := range []string{"", "10.0.0.1:1", "0.0.0.0:1", ":1", "[::]:1", "localhost.example:1", "127.0.0.1.example:1", "127.0.0.1", "dns:///x"} {
		require.False(t, Loopback(a), a)
	}
}
