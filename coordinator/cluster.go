package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc/status"

	"github.com/rlfleet/rlfleet/coordinator/state"
	"github.com/rlfleet/rlfleet/internal/failpoint"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

const (
	changeTimeout = 10 * time.Second       // one change of raft's configuration
	catchUpPoll   = 100 * time.Millisecond // how often a joining node is asked how far it is
	catchUpSlack  = 64                     // entries behind at which a node counts as caught up
)

// Init makes this node, which must be new, the first of a new cluster and
// returns the cluster's id.
func (n *Node) Init(ctx context.Context) (string, error) {
	n.change.Lock()
	defer n.change.Unlock()
	switch {
	case n.raft.LastIndex() > 0:
		return "", fmt.Errorf("coordinator: init: node %s is part of cluster %s already: %w", n.cfg.Node, n.cluster(), ErrCluster)
	case n.cluster() != "":
		return "", fmt.Errorf("coordinator: init: node %s waits to join cluster %s; empty its directory to begin another cluster: %w", n.cfg.Node, n.cluster(), ErrCluster)
	}
	server := raft.Server{ID: raft.ServerID(n.cfg.Node), Address: n.transport.LocalAddr()}
	if err := n.answer(n.raft.BootstrapCluster(raft.Configuration{Servers: []raft.Server{server}})); err != nil {
		return "", fmt.Errorf("coordinator: init: %w", err)
	}
	if err := n.ready(ctx); err != nil {
		return "", err
	}
	return n.cluster(), nil
}

// Adopt notes which cluster a new node will belong to.
func (n *Node) Adopt(cluster, node string) error {
	n.change.Lock()
	defer n.change.Unlock()
	if node != n.cfg.Node {
		return fmt.Errorf("coordinator: adopt: this is node %s, not %s: %w", n.cfg.Node, node, ErrCluster)
	}
	if own := n.cluster(); own != "" && own != cluster || own == "" && n.raft.LastIndex() > 0 {
		return fmt.Errorf("coordinator: adopt: node %s belongs to cluster %s: start it on an empty directory to join another: %w", node, name(own), ErrCluster)
	}
	return n.setCluster(cluster)
}

// Join adds the node whose RPCs are at address: as a non-voter, then, when it
// has caught up, as a voter. It may be repeated after any failure.
func (n *Node) Join(ctx context.Context, address string) (string, error) {
	s, err := n.changing(ctx)
	if err != nil {
		return "", fmt.Errorf("coordinator: join: %w", err)
	}
	defer n.change.Unlock()
	st, err := n.others.status(ctx, address)
	if err != nil {
		return "", fmt.Errorf("coordinator: join: %s does not answer: %s: %w", address, status.Convert(err).Message(), ErrCluster)
	}
	if err := n.mayJoin(ctx, s, st); err != nil {
		return "", fmt.Errorf("coordinator: join: %w: %w", err, ErrCluster)
	}
	conn, err := n.others.to(address)
	if err != nil {
		return "", fmt.Errorf("coordinator: join: %w", err)
	}
	if _, err := pb.NewClusterClient(conn).Adopt(ctx, &pb.AdoptRequest{Cluster: s.Clock().Cluster, Node: st.Node}); err != nil {
		return "", fmt.Errorf("coordinator: join: %s: %w", status.Convert(err).Message(), ErrCluster)
	}
	m := &raftlog.Member{Id: st.Node, Address: st.Address, Raft: st.Raft, Level: st.Level, Version: st.Version}
	if err := n.housekeep(ctx, &raftlog.Op{Op: &raftlog.Op_SetMember{SetMember: &raftlog.SetMember{Member: m}}}); err != nil {
		return "", fmt.Errorf("coordinator: join: %w", err)
	}
	return st.Node, n.admit(ctx, st)
}

// mayJoin says why a node must not be added.
func (n *Node) mayJoin(ctx context.Context, s *state.State, st *pb.StatusResponse) error {
	ours := s.Clock()
	switch {
	case st.Node == n.cfg.Node:
		return fmt.Errorf("%s is this cluster's leader, or has its name", st.Node)
	case st.Address == "" || st.Raft == "":
		return fmt.Errorf("node %s is no node of a cluster: start it with rlfleetd coordinator --config", st.Node)
	case st.Cluster != "" && st.Cluster != ours.Cluster:
		return fmt.Errorf("node %s belongs to cluster %s: start it on an empty directory", st.Node, st.Cluster)
	case st.Failure != "":
		return fmt.Errorf("node %s has stopped: %s", st.Node, st.Failure)
	case st.Level < ours.Level:
		return fmt.Errorf("node %s knows commands of level %d, this cluster uses level %d: upgrade its binary first", st.Node, st.Level, ours.Level)
	}
	i := slices.IndexFunc(n.servers(), func(v raft.Server) bool { return string(v.ID) == st.Node })
	if i < 0 {
		return nil
	}
	if old := s.Member(st.Node).GetAddress(); old != "" && old != st.Address {
		if other, err := n.others.status(ctx, old); err == nil && other.Node == st.Node {
			return fmt.Errorf("node %s runs at %s: give the new one another name", st.Node, old)
		}
	}
	if n.servers()[i].Suffrage == raft.Voter && st.Cluster == "" { // it has forgotten how it voted and what it acknowledged
		return fmt.Errorf("node %s votes here and its directory is empty: rlctl cluster remove %s first", st.Node, st.Node)
	}
	return nil // it has moved, or an earlier join was cut off
}

// admit makes a node that was adopted a non-voter, waits until it has caught up, and makes it a voter.
func (n *Node) admit(ctx context.Context, st *pb.StatusResponse) error {
	id, at := raft.ServerID(st.Node), raft.ServerAddress(st.Raft)
	i := slices.IndexFunc(n.servers(), func(s raft.Server) bool { return s.ID == id })
	if i < 0 || n.servers()[i].Address != at { // a voter that has moved stays one
		if err := n.reconfigure(func(prev uint64) raft.Future { return n.raft.AddNonvoter(id, at, prev, changeTimeout) }); err != nil {
			return fmt.Errorf("coordinator: join %s: %w", id, err)
		}
	} else if n.servers()[i].Suffrage == raft.Voter {
		return nil
	}
	must := n.raft.CommitIndex() // it has received entries: that its RPCs answer says nothing of its other port
	poll := time.NewTicker(catchUpPoll)
	defer poll.Stop()
	for {
		now, err := n.others.status(ctx, st.Address)
		if err == nil && now.Node == st.Node && now.Cluster == n.cluster() && now.Applied >= must && now.Applied+catchUpSlack >= n.raft.CommitIndex() {
			break
		}
		if _, reign := n.currentReign(); reign != nil {
			return fmt.Errorf("coordinator: join %s: %w", id, reign)
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return fmt.Errorf("coordinator: join %s: it is a non-voter and has not caught up: repeat the join to wait on: %w", id, ctx.Err())
		case <-n.stopping.Done():
			return fmt.Errorf("coordinator: join %s: %w", id, ErrStopped)
		}
	}
	failpoint.At(failpoint.JoinPromoteBefore)
	if err := n.reconfigure(func(prev uint64) raft.Future { return n.raft.AddVoter(id, at, prev, changeTimeout) }); err != nil {
		return fmt.Errorf("coordinator: join %s: %w", id, err)
	}
	return nil
}

// Remove takes a node out. The others that answer must be a majority of what stays.
func (n *Node) Remove(ctx context.Context, node string) error {
	s, err := n.changing(ctx)
	if err != nil {
		return fmt.Errorf("coordinator: remove %s: %w", node, err)
	}
	defer n.change.Unlock()
	id := raft.ServerID(node)
	if _, known := n.addressOf(id); !known && s.Member(node) != nil { // removed by a call that was cut off
		return n.forget(ctx, node)
	} else if !known {
		return fmt.Errorf("coordinator: remove %s: no such node: rlctl cluster status lists them: %w", node, ErrNoMember)
	}
	stay, answer := 0, 0
	for _, m := range n.ask(ctx, s) {
		if m.Suffrage != suffrage(raft.Voter) || m.Member.Id == node {
			continue
		}
		stay++
		if m.Reachable && m.Failure == "" {
			answer++
		}
	}
	if stay == 0 {
		return fmt.Errorf("coordinator: remove %s: it is the last voter, without it there is no cluster: join another first: %w", node, ErrCluster)
	}
	if answer <= stay/2 {
		return fmt.Errorf("coordinator: remove %s: of the %d nodes that stay only %d answer, which is no majority: bring them back first: %w", node, stay, answer, ErrCluster)
	}
	if node == n.cfg.Node { // the next leader removes it
		if err := n.handOver(ctx, ""); err != nil {
			return fmt.Errorf("coordinator: remove %s: it leads and could not hand over: %w", node, err)
		}
		return fmt.Errorf("coordinator: remove %s: %w", node, ErrNotLeader)
	}
	if err := n.reconfigure(func(prev uint64) raft.Future { return n.raft.RemoveServer(id, prev, changeTimeout) }); err != nil {
		return fmt.Errorf("coordinator: remove %s: %w", node, err)
	}
	return n.forget(ctx, node)
}

// forget removes the record of a node that is out.
func (n *Node) forget(ctx context.Context, node string) error {
	return n.housekeep(ctx, &raftlog.Op{Op: &raftlog.Op_RemoveMember{RemoveMember: &raftlog.RemoveMember{Id: node}}})
}

// Transfer hands leadership to a node, or to the most advanced one when node is
// empty, and returns when this one no longer leads.
func (n *Node) Transfer(ctx context.Context, node string) error {
	if _, err := n.changing(ctx); err != nil {
		return fmt.Errorf("coordinator: transfer: %w", err)
	}
	defer n.change.Unlock()
	if node == n.cfg.Node {
		return nil
	}
	if err := n.handOver(ctx, node); err != nil {
		return fmt.Errorf("coordinator: transfer: %w", err)
	}
	return nil
}

// handOver transfers leadership. Should that fail, the node proves that it can
// still commit, or ends: raft has been seen to take nothing more after a
// transfer that met a step-down (hashicorp/raft#696).
func (n *Node) handOver(ctx context.Context, node string) error {
	failpoint.At(failpoint.TransferBefore)
	var f raft.Future
	if node == "" {
		f = n.raft.LeadershipTransfer()
	} else {
		at, known := n.addressOf(raft.ServerID(node))
		if !known {
			return fmt.Errorf("no node %s: rlctl cluster status lists them: %w", node, ErrNoMember)
		}
		f = n.raft.LeadershipTransferToServer(raft.ServerID(node), at)
	}
	err := n.answer(f)
	if err == nil {
		return nil
	}
	if n.raft.State() != raft.Leader {
		return fmt.Errorf("%w: %w", err, ErrNotLeader)
	}
	alive := make(chan error, 1)
	n.reads.Go(func() { alive <- n.answer(n.raft.Barrier(changeTimeout)) })
	select {
	case <-alive: // whatever it says, raft's main loop runs
	case <-time.After(2 * changeTimeout):
		n.fail(fmt.Errorf("coordinator: transfer: raft does not answer after %w: start this node again", err))
	case <-n.stopping.Done():
	}
	return fmt.Errorf("%w: %w", err, ErrCluster)
}

// changing begins a change of the cluster, one at a time; the caller unlocks change.
func (n *Node) changing(ctx context.Context) (*state.State, error) {
	if _, err := n.currentReign(); err != nil {
		return nil, err
	}
	if !n.change.TryLock() {
		return nil, fmt.Errorf("another change of the cluster is going on: wait for it: %w", ErrCluster)
	}
	s, _, err := n.Read(ctx)
	if err != nil {
		n.change.Unlock()
		return nil, err
	}
	return s, nil
}

// reconfigure changes raft's configuration unless it changed meanwhile.
func (n *Node) reconfigure(change func(prev uint64) raft.Future) error {
	f := n.raft.GetConfiguration()
	if err := n.answer(f); err != nil {
		return err
	}
	err := n.answer(change(f.Index()))
	if err != nil && Classify(err) == Unknown {
		return fmt.Errorf("%w: %w", err, ErrUnknown)
	}
	return err
}

// Members lists the nodes as the leader sees them.
func (n *Node) Members(ctx context.Context) (*pb.MembersResponse, error) {
	s, _, err := n.Read(ctx)
	if err != nil {
		return nil, err
	}
	c := s.Clock()
	return &pb.MembersResponse{
		Cluster: c.Cluster, Epoch: c.Epoch, Level: max(1, c.Level), Term: n.raft.CurrentTerm(), Commit: n.raft.CommitIndex(),
		Members: n.ask(ctx, s),
	}, nil
}

// ask asks every node of raft's configuration how it is, at the same time.
func (n *Node) ask(ctx context.Context, s *state.State) []*pb.MemberStatus {
	servers := n.servers()
	out := make([]*pb.MemberStatus, len(servers))
	var wg sync.WaitGroup
	for i, v := range servers {
		m := s.Member(string(v.ID))
		if m == nil {
			m = &raftlog.Member{Id: string(v.ID)}
		}
		out[i] = &pb.MemberStatus{Member: m, Suffrage: suffrage(v.Suffrage), Leader: m.Id == n.cfg.Node}
		wg.Go(func() {
			st, err := n.Status(), error(nil)
			if m.Id != n.cfg.Node {
				st, err = n.others.status(ctx, m.Address)
			}
			switch {
			case err != nil:
				out[i].Failure = status.Convert(err).Message()
			case st.Node != m.Id:
				out[i].Failure = fmt.Sprintf("node %s answers at %s", st.Node, m.Address)
			case st.Cluster != s.Clock().Cluster:
				out[i].Failure = fmt.Sprintf("it runs on the data of cluster %s: stop it and empty its directory", name(st.Cluster))
			default:
				out[i].Reachable, out[i].State, out[i].Applied, out[i].Failure = true, st.State, st.Applied, st.Failure
			}
		})
	}
	wg.Wait()
	return out
}

func suffrage(s raft.ServerSuffrage) string {
	if s == raft.Voter {
		return "voter"
	}
	return "non-voter"
}

// ErrCluster and ErrNoMember refuse changes of the cluster.
var (
	ErrCluster  = errors.New("the cluster stays as it is")
	ErrNoMember = errors.New("the cluster does not know it")
)
