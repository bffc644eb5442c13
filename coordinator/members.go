package coordinator

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/rlfleet/rlfleet/coordinator/fsm"
	"github.com/rlfleet/rlfleet/coordinator/state"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// announceEvery is how often a node looks whether the others know it as it is.
const announceEvery = time.Second

// self is what the others should know of this node.
func (n *Node) self() *raftlog.Member {
	return &raftlog.Member{Id: n.cfg.Node, Address: n.cfg.Address, Raft: string(n.transport.LocalAddr()), Level: n.cfg.level, Version: n.cfg.Version}
}

// known reports whether a record says of a node what it says itself.
func (n *Node) known(m *raftlog.Member) bool {
	want := n.self()
	if m != nil {
		want.SinceNs = m.SinceNs
	}
	return proto.Equal(m, want)
}

// announce keeps this node's Member record right, from its first entry to its end.
func (n *Node) announce(ctx context.Context) {
	every := time.NewTicker(announceEvery)
	defer every.Stop()
	for {
		select {
		case <-every.C:
		case <-ctx.Done():
			return
		}
		if err := n.hold(); err != nil {
			n.cfg.Logger.Warn("the directory could not be marked", "error", err)
		}
		s, _ := n.Stale()
		n.checkRemoved(ctx, s)
		if s.Clock().Cluster == "" || n.known(s.Member(n.cfg.Node)) {
			continue
		}
		if err := n.tell(ctx, s); err != nil && ctx.Err() == nil && !errors.Is(err, ErrNotLeader) {
			n.cfg.Logger.Warn("the cluster could not be told about this node", "error", err)
		}
	}
}

// tell proposes this node's record, to itself or to the leader.
func (n *Node) tell(ctx context.Context, s *state.State) error {
	if n.voice() == nil {
		return nil // not a member yet: who joins it also announces it
	}
	op := &raftlog.Op{Op: &raftlog.Op_SetMember{SetMember: &raftlog.SetMember{Member: n.self()}}}
	if _, err := n.currentReign(); err == nil {
		return n.housekeep(ctx, op)
	}
	_, id := n.raft.LeaderWithID()
	leader := s.Member(string(id))
	if leader.GetAddress() == "" {
		return ErrNotLeader
	}
	conn, err := n.others.to(leader.Address)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, announceEvery)
	defer cancel()
	_, err = pb.NewCoordinatorClient(conn).Propose(ctx, &raftlog.Proposal{Client: "node." + n.cfg.Node + "." + randomID(), Seq: 1, Op: op})
	return err
}

// voice returns this node in raft's configuration, nil when it is not there.
func (n *Node) voice() *raft.Server {
	for _, s := range n.servers() {
		if s.ID == raft.ServerID(n.cfg.Node) {
			return &s
		}
	}
	return nil
}

// servers is raft's newest configuration, committed or not.
func (n *Node) servers() []raft.Server { return n.raft.GetConfiguration().Configuration().Servers }

// addressOf is where the configuration says that a node takes log entries.
func (n *Node) addressOf(id raft.ServerID) (raft.ServerAddress, bool) {
	if n.raft == nil {
		return "", false
	}
	for _, s := range n.servers() {
		if s.ID == id {
			return s.Address, true
		}
	}
	return "", false
}

// alone is how many election timeouts without a leader make a node ask whether it still belongs here.
const alone = 5

// checkRemoved ends a node that a leader no longer counts in: nobody sends it the
// entry that says so. Only a leader answers what it is asked.
func (n *Node) checkRemoved(ctx context.Context, s *state.State) {
	if n.raft.State() == raft.Leader || time.Since(n.raft.LastContact()) < alone*n.cfg.Election {
		return
	}
	for _, m := range s.Members() {
		if m.Id == n.cfg.Node || m.Address == "" {
			continue
		}
		conn, err := n.others.to(m.Address)
		if err != nil {
			continue
		}
		try, cancel := context.WithTimeout(ctx, 3*announceEvery) // it asks the others first, those that are dead for a second
		r, err := pb.NewClusterClient(conn).Members(try, &pb.MembersRequest{})
		cancel()
		if err != nil || r.Cluster != n.cluster() {
			continue
		}
		if !slices.ContainsFunc(r.Members, func(x *pb.MemberStatus) bool { return x.Member.Id == n.cfg.Node }) {
			n.fail(fmt.Errorf("coordinator: node %s was removed from cluster %s: empty its directory to join it again: %w", n.cfg.Node, r.Cluster, ErrStopped))
		}
		return
	}
}

// identify gives the cluster its id, once, and notes it in the directory of this node.
func (n *Node) identify(ctx context.Context) error {
	s, _ := n.Stale()
	id := s.Clock().Cluster
	if id == "" {
		if id = n.cluster(); id == "" {
			id = randomID()
		}
		if err := n.housekeep(ctx, &raftlog.Op{Op: &raftlog.Op_Identify{Identify: &raftlog.Identify{Cluster: id}}}); err != nil {
			return err
		}
	}
	if !n.known(s.Member(n.cfg.Node)) {
		if err := n.housekeep(ctx, &raftlog.Op{Op: &raftlog.Op_SetMember{SetMember: &raftlog.SetMember{Member: n.self()}}}); err != nil {
			return err
		}
	}
	s, _ = n.Stale()
	if err := n.raiseLevel(ctx, s); err != nil {
		return err
	}
	return n.setCluster(id)
}

// raiseLevel lets new commands in when every voter knows them.
func (n *Node) raiseLevel(ctx context.Context, s *state.State) error {
	level := n.cfg.level
	for _, v := range n.servers() {
		level = min(level, s.Member(string(v.ID)).GetLevel())
	}
	if level <= max(1, s.Clock().Level) {
		return nil
	}
	return n.housekeep(ctx, &raftlog.Op{Op: &raftlog.Op_Identify{Identify: &raftlog.Identify{Cluster: s.Clock().Cluster, Level: level}}})
}

// Token returns a token of the newest state this node has, nil when there is none.
func (n *Node) Token(id string) *raftlog.Token {
	s, _ := n.Stale()
	return s.Token(id)
}

// LogTime is the newest log time this node knows, in nanoseconds; tokens end by it.
func (n *Node) LogTime() int64 {
	if r := n.reign.Load(); r != nil {
		return r.now()
	}
	clock, _, _ := n.fsm.Progress()
	return clock.GetNowNs()
}

// level is that of the commands the cluster takes, 0 while that is not known.
func (n *Node) level() int32 {
	clock, _, _ := n.fsm.Progress()
	return clock.GetLevel()
}

// cluster is the id this node answers to; empty while it waits for one.
func (n *Node) cluster() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dir.Cluster()
}

func (n *Node) setCluster(id string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dir.SetCluster(id)
}

// hold marks the directory once the log has entries.
func (n *Node) hold() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.dir.Held() || n.raft.LastIndex() == 0 {
		return nil
	}
	return n.dir.SetHeld()
}

// checkCluster compares what a snapshot, the directory and the configuration say; belongs may be empty.
func checkCluster(dir *fsm.Dir, belongs string, s *state.State) error {
	own := dir.Cluster()
	if id := s.Clock().Cluster; id != "" && own != "" && id != own {
		return fmt.Errorf("coordinator: open %s: its snapshot is of cluster %s, not %s: %w", dir.Path(), id, own, fsm.ErrOtherCluster)
	}
	if belongs != "" && own != "" && belongs != own {
		return fmt.Errorf("coordinator: open %s: it is of cluster %s, and the configuration says %s: %w", dir.Path(), own, belongs, fsm.ErrOtherCluster)
	}
	return nil
}

func randomID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// others are connections to the RPCs of other nodes, made when they are used.
type others struct {
	dial  []grpc.DialOption
	conns sync.Map // address to *grpc.ClientConn
}

func (o *others) to(address string) (*grpc.ClientConn, error) {
	if c, ok := o.conns.Load(address); ok {
		return c.(*grpc.ClientConn), nil //nolint:forcetypeassert // nothing else is stored
	}
	c, err := grpc.NewClient("passthrough:///"+address, o.dial...)
	if err != nil {
		return nil, fmt.Errorf("coordinator: reach %s: %w", address, err)
	}
	if was, twice := o.conns.LoadOrStore(address, c); twice {
		return was.(*grpc.ClientConn), c.Close() //nolint:forcetypeassert // nothing else is stored
	}
	return c, nil
}

func (o *others) close() error {
	var errs []error
	o.conns.Range(func(_, c any) bool {
		errs = append(errs, c.(*grpc.ClientConn).Close()) //nolint:forcetypeassert // nothing else is stored
		return true
	})
	return errors.Join(errs...)
}

// status asks a node about itself.
func (o *others) status(ctx context.Context, address string) (*pb.StatusResponse, error) {
	conn, err := o.to(address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return pb.NewCoordinatorClient(conn).Status(ctx, &pb.StatusRequest{})
}
