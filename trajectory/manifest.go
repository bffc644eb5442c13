package trajectory

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	"github.com/rlfleet/rlfleet/store"
)

// manifest is one object of a run's mirrored log. Sequence numbers are shared
// by all runs of a coordinator, so they have holes within one run; prev is what
// makes a missing object visible.
type manifest struct {
	First  uint64            `json:"first"`
	Last   uint64            `json:"last"`
	Prev   uint64            `json:"prev"` // last of the run's object before; 0 in the first
	Events []json.RawMessage `json:"events"`
}

// chain is the longest gapless prefix of a run's mirrored log.
type chain struct {
	events []*raftlog.Event
	gap    string // why it ends before the last object; empty when it does not
	beyond int    // objects that were left out
}

// readChain reads the mirrored log of a run; store.ErrNotFound when there is none.
func readChain(ctx context.Context, s store.ObjectStore, run string) (chain, error) {
	var c chain
	var last uint64
	n := 0
	prefix := store.ManifestPrefix(run)
	for info, err := range s.List(ctx, prefix) {
		if err != nil {
			return c, fmt.Errorf("trajectory: list the manifest of %s: %w", run, err)
		}
		name := strings.TrimSuffix(strings.TrimPrefix(info.Key, prefix), ".json")
		first, err := strconv.ParseUint(name, 10, 64)
		if err != nil || len(name) != 20 {
			continue // not of the chain
		}
		n++
		if c.gap != "" {
			c.beyond++
			continue
		}
		data, err := s.Get(ctx, info.Key)
		if err != nil {
			return c, fmt.Errorf("trajectory: read %s: %w", info.Key, err)
		}
		events, end, why := parseManifest(data, run, first, last)
		if why != "" {
			c.gap, c.beyond = fmt.Sprintf("%s: %s", info.Key, why), 1
			continue
		}
		c.events, last = append(c.events, events...), end
	}
	if n == 0 {
		return c, fmt.Errorf("trajectory: run %q: nothing of it is in this store: %w", run, store.ErrNotFound)
	}
	return c, nil
}

// parseManifest returns the events of an object that follows event last, or why it doesn't.
func parseManifest(data []byte, run string, first, last uint64) ([]*raftlog.Event, uint64, string) {
	var m manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, 0, fmt.Sprintf("it cannot be read: %v", err)
	}
	if m.Prev != last {
		return nil, 0, fmt.Sprintf("it follows event %d, but the object before ends with event %d: an object is missing", m.Prev, last)
	}
	events := make([]*raftlog.Event, len(m.Events))
	at := m.Prev
	for i, raw := range m.Events {
		e := &raftlog.Event{}
		// A later build may add fields; those known here keep their meaning.
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(raw, e); err != nil {
			return nil, 0, fmt.Sprintf("event %d of it cannot be read: %v", i, err)
		}
		if e.Seq <= at || e.Run != run {
			return nil, 0, fmt.Sprintf("event %d of run %q is out of place", e.Seq, e.Run)
		}
		at = e.Seq
		events[i] = e
	}
	if len(events) == 0 || m.First != first || events[0].Seq != first || m.Last != at {
		return nil, 0, fmt.Sprintf("it says events %d to %d and holds others", m.First, m.Last)
	}
	return events, at, ""
}
