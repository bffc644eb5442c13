package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// manifest is one object of a run's chain. Sequence numbers are shared by all
// runs, so they have holes within one; Prev is what makes a missing object visible.
type manifest struct {
	First  uint64            `json:"first"`
	Last   uint64            `json:"last"`
	Prev   uint64            `json:"prev"`            // Last of the run's object before; 0 in the first
	Epoch  uint64            `json:"epoch,omitempty"` // snapshots restored by hand before it was written
	Events []json.RawMessage `json:"events"`
}

// ManifestKey is where the object of a run that begins with event first lives; keys sort as events do.
func ManifestKey(run string, first uint64) string {
	return fmt.Sprintf("%s%020d.json", manifestPrefix(run), first)
}

func manifestPrefix(run string) string { return run + "/manifest/" }

func newManifest(prev, epoch uint64, events []*raftlog.Event) (*manifest, error) {
	m := &manifest{First: events[0].Seq, Last: events[len(events)-1].Seq, Prev: prev, Epoch: epoch}
	for _, e := range events {
		b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(e)
		if err != nil {
			return nil, fmt.Errorf("coordinator: encode event %d: %w", e.Seq, err)
		}
		m.Events = append(m.Events, b)
	}
	return m, nil
}

func (m *manifest) encode() ([]byte, error) {
	b, err := json.Marshal(m) // also takes out the spaces that protojson puts in at random
	if err != nil {
		return nil, fmt.Errorf("coordinator: encode manifest %d: %w", m.First, err)
	}
	return append(b, '\n'), nil
}

func readManifest(ctx context.Context, s ManifestStore, key string) (*manifest, error) {
	b, err := s.Get(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("coordinator: read %s: %w", key, err)
	}
	m := &manifest{}
	if err := json.Unmarshal(b, m); err != nil {
		return nil, fmt.Errorf("coordinator: read %s: %w", key, err)
	}
	if m.First == 0 || m.Last < m.First || len(m.Events) == 0 {
		return nil, fmt.Errorf("coordinator: read %s: it holds no events", key)
	}
	return m, nil
}

// chainEnd returns the last object of a run that is in the store, an empty one when none is.
func chainEnd(ctx context.Context, s ManifestStore, run string) (*manifest, error) {
	keys, err := s.Keys(ctx, manifestPrefix(run))
	if err != nil {
		return nil, fmt.Errorf("coordinator: list manifest of %s: %w", run, err)
	}
	for i := len(keys) - 1; i >= 0; i-- {
		name := strings.TrimSuffix(strings.TrimPrefix(keys[i], manifestPrefix(run)), ".json")
		if _, err := strconv.ParseUint(name, 10, 64); err != nil {
			continue // not ours
		}
		m, err := readManifest(ctx, s, keys[i])
		if err != nil {
			return nil, err
		}
		return m, nil
	}
	return &manifest{}, nil
}

// errOtherHistory is seen by people only: nothing but another storage helps.
var errOtherHistory = errors.New("the store holds another coordinator's history of this run: use another storage, or remove the run's folder from this one")

// sameHistory checks that a chain in the store that ends with event end is what
// this state made: either the next event follows it, or it is in it. A run's
// first event not yet mirrored always begins an object.
func sameHistory(ctx context.Context, s ManifestStore, run string, next *raftlog.Event, end uint64) error {
	if next.Seq > end {
		if next.GetRunCreated() != nil {
			return fmt.Errorf("coordinator: mirror %s: %w", run, errOtherHistory)
		}
		return nil
	}
	found, err := readManifest(ctx, s, ManifestKey(run, next.Seq))
	if err != nil {
		return fmt.Errorf("%w: %w", err, errOtherHistory)
	}
	e := &raftlog.Event{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(found.Events[0], e); err != nil || !proto.Equal(e, next) {
		return fmt.Errorf("coordinator: mirror %s: event %d differs: %w", run, next.Seq, errOtherHistory)
	}
	return nil
}
