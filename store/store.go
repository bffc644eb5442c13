// Package store keeps immutable objects under keys.
//
// ObjectStore is the whole contract; storetest (beside it) is the suite every
// implementation passes. Objects are created once and never changed.
package store

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/rlfleet/rlfleet/policy"
)

// The kinds of failure an implementation reports, wrapped with operation and key.
var (
	ErrNotFound = errors.New("object not found")
	ErrExists   = errors.New("object exists with other content")
	ErrCorrupt  = errors.New("object does not match its digest")
	ErrFull     = errors.New("storage is full: free space and run the same command again")
	ErrKey      = errors.New("key is not allowed")
)

// Info describes an object.
type Info struct {
	Key  string
	Size int64 // bytes
}

// ObjectStore keeps immutable objects. Keys are relative, slash-separated,
// without ".." (see CheckKey); other keys are refused with ErrKey. All methods
// are safe for concurrent use.
type ObjectStore interface {
	// Put creates the object durably, or does nothing when it exists with the
	// same content. It returns ErrExists when it exists with other content and
	// ErrFull when there is no room; nothing half-written is ever visible.
	Put(ctx context.Context, key string, data []byte) error
	// Get returns the whole object, or ErrNotFound.
	Get(ctx context.Context, key string) ([]byte, error)
	// GetRange returns up to length bytes from offset: fewer where the object
	// ends, none past its end, ErrNotFound when there is no such object.
	GetRange(ctx context.Context, key string, offset, length int64) ([]byte, error)
	// Head returns ErrNotFound when there is no such object.
	Head(ctx context.Context, key string) (Info, error)
	// List yields the objects whose key starts with prefix, in byte order of
	// the keys. An error ends the sequence. An object put or deleted meanwhile
	// may or may not be seen.
	List(ctx context.Context, prefix string) iter.Seq2[Info, error]
	// Delete removes an object; deleting what is not there is no error.
	Delete(ctx context.Context, key string) error
}

// CheckKey returns ErrKey unless key is relative and slash-separated, with no
// empty, "." or ".." element, no control character and no backslash. A first
// element that starts with "." belongs to the implementation.
func CheckKey(key string) error {
	if key == "" || len(key) > 1024 || key[0] == '.' {
		return fmt.Errorf("store: key %q: %w", key, ErrKey)
	}
	for _, c := range []byte(key) {
		if c < 0x20 || c == 0x7f || c == '\\' {
			return fmt.Errorf("store: key %q: %w", key, ErrKey)
		}
	}
	for el := range strings.SplitSeq(key, "/") {
		if el == "" || el == "." || el == ".." || len(el) > 255 {
			return fmt.Errorf("store: key %q: %w", key, ErrKey)
		}
	}
	return nil
}

// ObjectKey is where a content-addressed object of the run lives; kind is its suffix, for example "steps.arrow".
func ObjectKey(run string, d policy.Digest, kind string) string {
	h := d.Hex()
	return fmt.Sprintf("%s/objects/sha256/%s/%s.%s", run, h[:2], h, kind)
}

// ManifestPrefix is what the keys of a run's mirrored log entries start with.
func ManifestPrefix(run string) string { return run + "/manifest/" }

// ManifestKey is where the mirrored log entries of a run that start with sequence number first live; keys sort by number.
func ManifestKey(run string, first uint64) string {
	return fmt.Sprintf("%s%020d.json", ManifestPrefix(run), first)
}

// PutObject stores data under its own digest and returns the digest.
func PutObject(ctx context.Context, s ObjectStore, run, kind string, data []byte) (policy.Digest, error) {
	d := policy.DigestOf(data)
	if err := s.Put(ctx, ObjectKey(run, d, kind), data); err != nil {
		return "", fmt.Errorf("store: put %s: %w", kind, err)
	}
	return d, nil
}

// GetObject returns the object with digest d after checking its content; it returns ErrCorrupt when they differ.
func GetObject(ctx context.Context, s ObjectStore, run string, d policy.Digest, kind string) ([]byte, error) {
	if err := d.Validate(); err != nil {
		return nil, fmt.Errorf("store: get %s: %w", kind, err)
	}
	data, err := s.Get(ctx, ObjectKey(run, d, kind))
	if err != nil {
		return nil, err
	}
	if got := policy.DigestOf(data); got != d {
		return nil, fmt.Errorf("store: get %s: content is %s, want %s: %w", kind, got, d, ErrCorrupt)
	}
	return data, nil
}
