package coordinator

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// ErrExposed refuses to listen where others could reach an unauthenticated service.
var ErrExposed = errors.New("connections are not authenticated: listen on a Unix socket or a loopback address")

// streamWorkers are goroutines that wait for RPCs: a new one for each would grow
// its stack each time, which is a tenth of what the leader's processor does.
const streamWorkers = 256

// Serve answers RPCs until the node closes, and closes the listener. Without
// Config.Authenticate that is a Unix socket, a loopback address or one in memory.
func (n *Node) Serve(l net.Listener) error {
	if a, ok := l.Addr().(*net.TCPAddr); ok && n.cfg.Authenticate == nil && !a.IP.IsLoopback() {
		return errors.Join(fmt.Errorf("coordinator: serve on %s: %w", a, ErrExposed), l.Close())
	}
	var options []grpc.ServerOption
	if n.cfg.Authenticate != nil {
		var err error
		if options, err = n.cfg.Authenticate(n); err != nil {
			return errors.Join(fmt.Errorf("coordinator: serve: %w", err), l.Close())
		}
	}
	s := grpc.NewServer(append(options,
		grpc.NumStreamWorkers(streamWorkers),
		grpc.MaxRecvMsgSize(n.cfg.MaxMessage), grpc.MaxSendMsgSize(n.cfg.MaxMessage),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	)...)
	pb.RegisterCoordinatorServer(s, n.Service())
	pb.RegisterClusterServer(s, clusterService{node: n})
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return errors.Join(fmt.Errorf("coordinator: serve: %w", ErrStopped), l.Close())
	}
	n.grpc = append(n.grpc, s)
	n.mu.Unlock()
	if err := s.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("coordinator: serve: %w", err)
	}
	return nil
}

// Service returns the RPC surface, for a server of the caller's.
func (n *Node) Service() pb.CoordinatorServer { return service{node: n} }

type service struct {
	pb.UnimplementedCoordinatorServer
	node *Node
}

func (s service) refuse(err error) error { return s.node.refuse(err) }

// refuse turns an error into a status that names the leader.
func (n *Node) refuse(err error) error {
	_, leader := n.raft.LeaderWithID()
	address := ""
	if leader != "" && errors.Is(err, ErrNotLeader) {
		st, _ := n.Stale()
		address = st.Member(string(leader)).GetAddress()
	}
	return statusOf(err, string(leader), address)
}

// Propose implements the RPC. Housekeeping is the leader's own and is not taken from clients.
func (s service) Propose(ctx context.Context, p *raftlog.Proposal) (*raftlog.Result, error) {
	if p.Client == "" || p.Seq == 0 {
		return nil, s.refuse(fmt.Errorf("coordinator: propose: a client id and a sequence number above 0 are needed: %w", ErrInvalid))
	}
	if !state.Known(p.Op) {
		return nil, s.refuse(fmt.Errorf("coordinator: propose: the operation is unknown to this version: %w", ErrInvalid))
	}
	switch p.Op.Op.(type) {
	case *raftlog.Op_Tick, *raftlog.Op_Mirrored, *raftlog.Op_Identify, *raftlog.Op_RemoveMember, *raftlog.Op_Diverged:
		return nil, s.refuse(fmt.Errorf("coordinator: propose: only the leader itself may do this: %w", ErrInvalid))
	}
	member, about := p.Op.Op.(*raftlog.Op_SetMember) // it is what levels are found from
	if about {
		if _, is := s.node.addressOf(raft.ServerID(member.SetMember.GetMember().GetId())); !is {
			return nil, s.refuse(fmt.Errorf("coordinator: propose: node %s is not in the cluster: %w", member.SetMember.GetMember().GetId(), ErrNoMember))
		}
	}
	if known := max(1, s.node.level()); !about && state.LevelOf(p.Op) > known {
		return nil, s.refuse(fmt.Errorf("coordinator: propose: not all nodes know this command: the cluster is at level %d: %w", known, ErrLevel))
	}
	r, err := s.node.Propose(ctx, p)
	if err != nil {
		return nil, s.refuse(err)
	}
	return r, nil
}

// View implements the RPC.
func (s service) View(req *pb.ViewRequest, stream grpc.ServerStreamingServer[pb.ViewResponse]) error {
	v := selection{run: req.Run, kinds: req.Kinds}
	var index uint64
	if req.Stale {
		v.state, index = s.node.Stale()
	} else {
		var err error
		if v.state, index, err = s.node.Read(stream.Context()); err != nil {
			return s.refuse(err)
		}
	}
	if req.Run != "" && v.state.Run(req.Run) == nil {
		return s.refuse(fmt.Errorf("coordinator: view %q: %w", req.Run, ErrNotFound))
	}
	return v.send(index, req.Stale, stream.Send)
}

// Why implements the RPC.
func (s service) Why(ctx context.Context, req *pb.WhyRequest) (*pb.WhyResponse, error) {
	st, _, err := s.node.Read(ctx)
	if err != nil {
		return nil, s.refuse(err)
	}
	if st.Run(req.Run) == nil {
		return nil, s.refuse(fmt.Errorf("coordinator: why %q: %w", req.Run, ErrNotFound))
	}
	text := st.Why(req.Run)
	if lag := s.node.MirrorLag(); lag.Err != nil {
		text += " " + lag.sentence()
	}
	return &pb.WhyResponse{Text: text}, nil
}

// Changes implements the RPC. It ends when this node no longer leads, so that
// its watchers go to the one that does.
func (s service) Changes(req *pb.ChangesRequest, stream grpc.ServerStreamingServer[pb.Change]) error {
	n := s.node
	reign, err := n.currentReign()
	if err != nil {
		return s.refuse(fmt.Errorf("coordinator: changes: %w", err))
	}
	leave := n.hub.watch(req.Run)
	defer leave()
	var last *pb.Change
	check := time.NewTicker(time.Second)
	defer check.Stop()
	for {
		c, changed := n.hub.get(req.Run)
		if last == nil || c.Revision > last.Revision {
			if err := stream.Send(c); err != nil {
				return err
			}
			last = c
		}
		select {
		case <-changed:
		case <-check.C:
			if now, err := n.currentReign(); err != nil || now != reign {
				return s.refuse(fmt.Errorf("coordinator: changes: %w", ErrNotLeader))
			}
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-n.stopping.Done():
			return s.refuse(fmt.Errorf("coordinator: changes: %w", ErrStopped))
		}
	}
}

// Status implements the RPC.
func (s service) Status(context.Context, *pb.StatusRequest) (*pb.StatusResponse, error) {
	return s.node.Status(), nil
}

// Status speaks of this node; it asks nobody and needs no leader.
func (n *Node) Status() *pb.StatusResponse {
	clock, index, _ := n.fsm.Progress()
	_, leader := n.raft.LeaderWithID()
	lag := n.MirrorLag()
	r := &pb.StatusResponse{
		Node: n.cfg.Node, State: n.role(), Leader: string(leader), Term: n.raft.CurrentTerm(),
		Applied: n.applied(index), Commit: n.raft.CommitIndex(), NowNs: clock.GetNowNs(), Queue: int32(len(n.queue.in)),
		Mirror: &pb.MirrorStatus{Waiting: lag.Waiting}, Version: n.cfg.Version,
		Cluster: n.cluster(), Epoch: clock.GetEpoch(), Level: n.cfg.level, Raft: string(n.transport.LocalAddr()), Address: n.cfg.Address,
	}
	if reign := n.reign.Load(); reign != nil {
		r.NowNs = max(r.NowNs, reign.now())
	}
	if lag.Err != nil {
		r.Mirror.Reason, r.Mirror.FailingNs = lag.sentence(), int64(time.Since(lag.Since))
	}
	if err := n.Err(); err != nil {
		r.Failure = err.Error()
	}
	return r
}

// applied is the log index up to which this node has applied everything, when
// its state is at index: raft's own entries are behind that, and have nothing
// to apply. Raft's AppliedIndex is what it has handed over, and a node that
// starts reads its log for seconds after that.
func (n *Node) applied(index uint64) uint64 {
	handed := n.raft.AppliedIndex()
	for l := (raft.Log{}); index < handed; index++ {
		if err := n.log.GetLog(index+1, &l); err != nil || l.Type == raft.LogCommand {
			break // compacted by now, or waiting
		}
	}
	return index
}

func (n *Node) role() string {
	switch _, err := n.currentReign(); {
	case err == nil:
		return "leader"
	case errors.Is(err, ErrStopped):
		return "stopped"
	case errors.Is(err, ErrStarting):
		return "starting"
	}
	if n.cfg.Cluster && n.cluster() == "" {
		return "new"
	}
	return strings.ToLower(n.raft.State().String())
}

func (l Lag) sentence() string {
	return fmt.Sprintf("%d events wait for the store, which has failed for %s: %v.", l.Waiting, time.Since(l.Since).Round(time.Second), l.Err)
}
