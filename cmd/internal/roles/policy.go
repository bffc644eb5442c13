package roles

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"sort"
	"strconv"
	"strings"

	"github.com/rlfleet/rlfleet/policy"
	model "github.com/rlfleet/rlfleet/policy/tiny"
	"github.com/rlfleet/rlfleet/store"
)

// policyKind is the suffix of a policy's stored objects: manifests and files.
const policyKind = "blob"

// PutPolicy stores the files of version 0 and returns the digest of its manifest.
func PutPolicy(ctx context.Context, s store.ObjectStore, run string, files map[string][]byte) (policy.Digest, error) {
	m := policy.Manifest{Version: 0, Lineage: 1, Full: true}
	paths := make([]string, 0, len(files))
	for p := range files {
		paths = append(paths, p)
	}
	sort.Strings(paths)
	for _, p := range paths {
		d, err := store.PutObject(ctx, s, run, policyKind, files[p])
		if err != nil {
			return "", fmt.Errorf("roles: store policy: %s: %w", p, err)
		}
		m.Files = append(m.Files, policy.File{Path: p, Digest: d, Size: int64(len(files[p]))})
	}
	raw, err := m.Encode()
	if err != nil {
		return "", err
	}
	return store.PutObject(ctx, s, run, policyKind, raw)
}

// GetPolicy returns the files of a version by its manifest's digest; every byte is checked.
func GetPolicy(ctx context.Context, s store.ObjectStore, run string, manifest policy.Digest) (map[string][]byte, error) {
	raw, err := store.GetObject(ctx, s, run, manifest, policyKind)
	if err != nil {
		return nil, fmt.Errorf("roles: load policy %s: %w", manifest, err)
	}
	m, err := policy.ParseManifest(raw)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for _, f := range m.Files {
		if files[f.Path], err = store.GetObject(ctx, s, run, f.Digest, policyKind); err != nil {
			return nil, fmt.Errorf("roles: load policy version %d: %s: %w", m.Version, f.Path, err)
		}
	}
	return files, nil
}

// ExportPolicy writes a stored version as a directory in Hugging Face layout, without what only a trainer needs.
func ExportPolicy(ctx context.Context, s store.ObjectStore, run, manifest, dir string) error {
	files, err := GetPolicy(ctx, s, run, policy.Digest(manifest))
	if err != nil {
		return err
	}
	delete(files, model.OptimizerFile)
	delete(files, "trainer.json")
	return model.WriteDir(dir, files)
}

// OpenPolicy reads version 0 from where the experiment says: a directory in
// Hugging Face layout, or tiny://llama?layers=2&dim=32 for random weights over
// the words of the given texts.
func OpenPolicy(uri, dir string, seed int64, texts []string) (map[string][]byte, error) {
	if !strings.HasPrefix(uri, "tiny://") {
		files, err := model.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, model.ErrMissing) {
			return nil, fmt.Errorf("policy.init: there is no policy in %s: make one with rlctl policy init --sft FILE --out %s", dir, dir)
		}
		if err != nil {
			return nil, fmt.Errorf("roles: policy.init %s: %w", dir, err)
		}
		return files, nil
	}
	c, err := sizes(uri)
	if err != nil {
		return nil, fmt.Errorf("roles: policy.init %s: %w", uri, err)
	}
	tok, err := model.Build(texts, c.MaxPositionEmbeddings)
	if err != nil {
		return nil, fmt.Errorf("roles: policy.init %s: %w", uri, err)
	}
	c.VocabSize = tok.Size()
	m, err := model.New(c, uint64(seed))
	if err != nil {
		return nil, fmt.Errorf("roles: policy.init %s: %w", uri, err)
	}
	files, err := m.Files()
	if err != nil {
		return nil, err
	}
	words, err := tok.Files()
	if err != nil {
		return nil, err
	}
	maps.Copy(files, words)
	return files, nil
}

// sizes reads the sizes that a tiny:// address names; the others are the demo's.
func sizes(uri string) (model.Config, error) {
	c := model.DefaultConfig(64)
	u, err := url.Parse(uri)
	if err != nil {
		return c, err
	}
	if u.Host != "llama" {
		return c, fmt.Errorf("architecture %q is not known: use tiny://llama", u.Host)
	}
	to := map[string]*int{"layers": &c.NumHiddenLayers, "dim": &c.HiddenSize, "heads": &c.NumAttentionHeads, "ffn": &c.IntermediateSize}
	for key, values := range u.Query() {
		n, err := strconv.Atoi(values[0])
		if to[key] == nil || err != nil || n < 1 {
			return c, fmt.Errorf("%s=%s is not understood: use layers, dim, heads and ffn with whole numbers", key, values[0])
		}
		*to[key] = n
	}
	c.NumKeyValueHeads, c.HeadDim = c.NumAttentionHeads, c.HiddenSize/c.NumAttentionHeads
	return c, nil
}
