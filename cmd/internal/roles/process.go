package roles

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/rlfleet/rlfleet/coordinator/client"
	"github.com/rlfleet/rlfleet/envpool"
	envremote "github.com/rlfleet/rlfleet/envpool/remote"
	"github.com/rlfleet/rlfleet/policy"
	"github.com/rlfleet/rlfleet/policy/engine"
	engineremote "github.com/rlfleet/rlfleet/policy/engine/remote"
	model "github.com/rlfleet/rlfleet/policy/tiny"
	"github.com/rlfleet/rlfleet/rollout"
	"github.com/rlfleet/rlfleet/store"
	"github.com/rlfleet/rlfleet/trajectory"
)

// Config says what a process works on.
type Config struct {
	Plan       *Plan
	Run        string
	Storage    string // directory of the file storage
	Store      store.ObjectStore
	Client     *client.Client // of the coordinator
	Apart      bool           // other roles are in other processes of this machine
	Name       string         // of this process's nodes
	Guest      string         // path of rlguest; empty: beside this program
	Build      string
	Log        *slog.Logger
	Registerer prometheus.Registerer
	Journal    *trajectory.AckJournal
}

// Process holds what the roles of one process share.
type Process struct {
	Config
	files     map[string][]byte // of version 0
	tokenizer *model.Tokenizer
	base      policy.Digest // of version 0's manifest

	mu      sync.Mutex // guards hosts, engines, conns and metrics
	hosts   map[string]envpool.Host
	engines map[string]engine.Engine
	conns   map[string]*grpc.ClientConn
	metrics *rollout.Metrics
}

// NewProcess reads what every role needs of the run: version 0 with its tokenizer.
func NewProcess(ctx context.Context, cfg Config) (*Process, error) {
	p := &Process{Config: cfg, hosts: map[string]envpool.Host{}, engines: map[string]engine.Engine{}, conns: map[string]*grpc.ClientConn{}}
	v, err := Version(ctx, cfg.Client, cfg.Run, 0)
	if err != nil {
		return nil, err
	}
	p.base = policy.Digest(v.Manifest)
	if p.files, err = GetPolicy(ctx, cfg.Store, cfg.Run, p.base); err != nil {
		return nil, err
	}
	p.tokenizer, err = model.OpenTokenizer(p.files, p.context())
	if err != nil {
		return nil, fmt.Errorf("roles: policy of run %s: %w", cfg.Run, err)
	}
	return p, nil
}

// context is the longest history of any env.
func (p *Process) context() int {
	longest := 0
	for _, e := range p.Plan.Envs {
		longest = max(longest, e.Spec.Agent.MaxContext)
	}
	return longest
}

// Close ends the connections to other processes.
func (p *Process) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, c := range p.conns {
		errs = append(errs, c.Close())
	}
	clear(p.conns)
	return errors.Join(errs...)
}

// dial returns a connection to an address, made once.
func (p *Process) dial(address string) (*grpc.ClientConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c, ok := p.conns[address]; ok {
		return c, nil
	}
	name, is := strings.CutPrefix(address, socketScheme)
	if !is {
		return nil, fmt.Errorf("roles: reach %s: roles of a run are processes of one machine in this build", address)
	}
	c, err := grpc.NewClient("passthrough:///"+name, grpc.WithTransportCredentials(insecure.NewCredentials()), throughSocket(p.Storage, name),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)))
	if err != nil {
		return nil, fmt.Errorf("roles: reach %s: %w", address, err)
	}
	p.conns[address] = c
	return c, nil
}

// socketScheme begins the address of a role's socket below the storage.
const socketScheme = "socket:"

// maxMessage bounds one RPC message between processes, in bytes.
const maxMessage = 32 << 20

// host returns a host by the name it registered under: one of this process, or one at its address.
func (p *Process) host(name, address string) (envpool.Host, error) {
	p.mu.Lock()
	h := p.hosts[name]
	p.mu.Unlock()
	if h != nil {
		return h, nil
	}
	if address == "" {
		return nil, fmt.Errorf("roles: host %s is not in this process", name)
	}
	conn, err := p.dial(address)
	if err != nil {
		return nil, err
	}
	return envremote.NewClient(conn), nil
}

// engine returns an engine by the name it registered under.
func (p *Process) engine(name, address string) (engine.Engine, error) {
	p.mu.Lock()
	e := p.engines[name]
	p.mu.Unlock()
	if e != nil {
		return e, nil
	}
	if address == "" {
		return nil, fmt.Errorf("roles: engine %s is not in this process", name)
	}
	conn, err := p.dial(address)
	if err != nil {
		return nil, err
	}
	return engineremote.NewClient(conn), nil
}

// load fetches a policy's files for the engine.
func (p *Process) load(ctx context.Context, _ policy.Version, manifest policy.Digest) (map[string][]byte, error) {
	return GetPolicy(ctx, p.Store, p.Run, manifest)
}

// resolve returns the manifest of a version that an evaluation is pinned to.
func (p *Process) resolve(ctx context.Context, v policy.Version) (policy.Digest, error) {
	rec, err := Version(ctx, p.Client, p.Run, int64(v))
	if err != nil {
		return "", err
	}
	return policy.Digest(rec.Manifest), nil
}
