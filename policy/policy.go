// Package policy names the versions of a policy and what a version is made of.
//
// It is a leaf: pure values, no I/O. Version 0 is the initial policy; step n
// trains from version n and commits version n+1.
package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"strings"
)

// Version numbers the policies of one run; it never falls.
type Version int64

// Lag is how many versions behind another version one is; never negative in a healthy run.
type Lag int64

// Behind returns the lag of v at step n, that is n − v.
func (v Version) Behind(n Version) Lag { return Lag(n - v) }

// Digest is a content address, "sha256:" followed by 64 hexadecimal digits.
type Digest string

// ErrDigest reports a string that is not a digest.
var ErrDigest = errors.New("not a sha256 digest")

// DigestOf returns the content address of data.
func DigestOf(data []byte) Digest {
	sum := sha256.Sum256(data)
	return Digest("sha256:" + hex.EncodeToString(sum[:]))
}

// Hex returns the 64 hexadecimal digits without the algorithm.
func (d Digest) Hex() string { return strings.TrimPrefix(string(d), "sha256:") }

// Validate returns ErrDigest unless d is well formed.
func (d Digest) Validate() error {
	h, ok := strings.CutPrefix(string(d), "sha256:")
	if !ok || len(h) != 64 || strings.ToLower(h) != h {
		return fmt.Errorf("policy: digest %q: %w", string(d), ErrDigest)
	}
	if _, err := hex.DecodeString(h); err != nil {
		return fmt.Errorf("policy: digest %q: %w", string(d), ErrDigest)
	}
	return nil
}

// File is one file of a stored policy.
type File struct {
	Path   string `json:"path"` // relative, slash-separated
	Digest Digest `json:"digest"`
	Size   int64  `json:"size"` // bytes
}

// Manifest lists what one policy version is made of. Its digest, over the
// canonical JSON, is what the log names; a checkpoint without a named manifest
// does not exist (invariant I7).
type Manifest struct {
	Version Version `json:"version"`
	Lineage int64   `json:"lineage"`
	Full    bool    `json:"full"`             // carries optimizer, RNG and cursor besides weights
	Ledger  Digest  `json:"ledger,omitempty"` // train ledger of the step that made it; empty at version 0
	Files   []File  `json:"files"`            // sorted by path
}

// Encode returns the canonical JSON: files sorted by path, no spaces.
func (m Manifest) Encode() ([]byte, error) {
	files := append([]File(nil), m.Files...)
	sort.Slice(files, func(i, j int) bool { return files[i].Path < files[j].Path })
	m.Files = files
	b, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("policy: encode manifest: %w", err)
	}
	return b, nil
}

// ParseManifest decodes and checks a manifest written by Encode.
func ParseManifest(b []byte) (Manifest, error) {
	var m Manifest
	if err := json.Unmarshal(b, &m); err != nil {
		return m, fmt.Errorf("policy: parse manifest: %w", err)
	}
	for _, f := range m.Files {
		if err := f.Digest.Validate(); err != nil {
			return m, fmt.Errorf("policy: parse manifest: file %q: %w", f.Path, err)
		}
	}
	return m, nil
}
