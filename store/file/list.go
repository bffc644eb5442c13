package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path"
	"sort"
	"strings"

	"github.com/rlfleet/rlfleet/store"
)

// List implements store.ObjectStore.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[store.Info, error] {
	return func(yield func(store.Info, error) bool) {
		dir := ""
		if i := strings.LastIndexByte(prefix, '/'); i >= 0 {
			dir = prefix[:i]
			if err := store.CheckKey(dir); err != nil {
				yield(store.Info{}, err)
				return
			}
		}
		s.walk(ctx, dir, prefix, yield)
	}
}

// walk yields the objects below dir in key order; it returns false when the caller wants no more.
func (s *Store) walk(ctx context.Context, dir, prefix string, yield func(store.Info, error) bool) bool {
	if err := ctx.Err(); err != nil {
		yield(store.Info{}, fmt.Errorf("file: list %s: %w", prefix, err))
		return false
	}
	entries, err := os.ReadDir(s.path(dir))
	if errors.Is(absent(err), store.ErrNotFound) {
		return true
	}
	if err != nil {
		yield(store.Info{}, fmt.Errorf("file: list %s: %w", prefix, err))
		return false
	}
	// "a-b" sorts before "a/c": directories compare with their slash.
	name := func(i int) string {
		if entries[i].IsDir() {
			return entries[i].Name() + "/"
		}
		return entries[i].Name()
	}
	sort.Slice(entries, func(i, j int) bool { return name(i) < name(j) })
	for _, e := range entries {
		key := path.Join(dir, e.Name())
		if key[0] == '.' {
			continue // the store's own
		}
		if e.IsDir() {
			if k := key + "/"; strings.HasPrefix(k, prefix) || strings.HasPrefix(prefix, k) {
				if !s.walk(ctx, key, prefix, yield) {
					return false
				}
			}
			continue
		}
		if !strings.HasPrefix(key, prefix) || !e.Type().IsRegular() {
			continue
		}
		st, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted meanwhile
		}
		if err != nil {
			yield(store.Info{}, fmt.Errorf("file: list %s: %w", prefix, err))
			return false
		}
		if !yield(store.Info{Key: key, Size: st.Size()}, nil) {
			return false
		}
	}
	return true
}
