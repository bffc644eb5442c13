package enginetest

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/policy"
	"github.com/rlfleet/rlfleet/policy/tiny"
)

// The size of the policies that the suite runs on.
const (
	Vocabulary = 32
	Context    = 256
)

// Policies are versions 0..n-1 in memory, with different random weights.
type Policies struct {
	files   map[policy.Digest]map[string][]byte
	digests []policy.Digest
	Loads   atomic.Int64 // calls of Load
}

// NewPolicies makes n versions of Llama architecture.
func NewPolicies(t *testing.T, n int) *Policies {
	t.Helper()
	p := &Policies{files: make(map[policy.Digest]map[string][]byte)}
	c := tiny.DefaultConfig(Vocabulary)
	c.MaxPositionEmbeddings = Context
	for v := range n {
		m, err := tiny.New(c, uint64(100+v))
		require.NoError(t, err)
		files, err := m.Files()
		require.NoError(t, err)
		b, err := json.Marshal(files)
		require.NoError(t, err)
		d := policy.DigestOf(b)
		p.files[d] = files
		p.digests = append(p.digests, d)
	}
	return p
}

// Digest returns the manifest digest of a version.
func (p *Policies) Digest(v policy.Version) policy.Digest { return p.digests[v] }

// Load returns a policy's files.
func (p *Policies) Load(_ context.Context, v policy.Version, d policy.Digest) (map[string][]byte, error) {
	p.Loads.Add(1)
	f, ok := p.files[d]
	if !ok {
		return nil, fmt.Errorf("version %d has no manifest %s", v, d)
	}
	return f, nil
}

// Resolve returns the manifest digest of a version, or an error when there is none.
func (p *Policies) Resolve(_ context.Context, v policy.Version) (policy.Digest, error) {
	if v < 0 || int(v) >= len(p.digests) {
		return "", fmt.Errorf("no version %d", v)
	}
	return p.digests[v], nil
}
