package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// interrupted is a run that was killed in the middle, with its command.
type interrupted struct {
	programs, dir string
	command       []string
	coordinator   string // its directory
}

const damagedRun = "files-small-1"

func interrupt(t *testing.T) interrupted {
	t.Helper()
	i := interrupted{programs: setUp(t), dir: t.TempDir()}
	i.command = []string{"run", filepath.Join(i.programs, "example", "small.yaml"), "--set", "spec.steps=20"}
	i.coordinator = filepath.Join(i.dir, ".rlfleet", "coordinator")
	r := begin(t, i.programs, i.dir, i.command...)
	r.beyond(t, i.programs, i.dir, damagedRun, 3)
	r.signal(t, syscall.SIGKILL)
	require.Equal(t, -1, r.wait(t))
	return i
}

// object returns where an object of the run lies.
func (i interrupted) object(digest, kind string) string {
	hex := strings.TrimPrefix(digest, "sha256:")
	return filepath.Join(i.dir, ".rlfleet", damagedRun, "objects", "sha256", hex[:2], hex+"."+kind)
}

// checkpoint returns the manifest of the newest version and one of its files.
func (i interrupted) checkpoint(t *testing.T, file string) (manifest, part string) {
	t.Helper()
	var versions []struct {
		Manifest string `json:"manifest"`
	}
	askJSON(t, &versions, i.programs, i.dir, "policy", "ls", "-o", "json", damagedRun)
	manifest = i.object(versions[len(versions)-1].Manifest, "blob")
	b, err := os.ReadFile(manifest)
	require.NoError(t, err)
	var m struct {
		Files []struct{ Path, Digest string } `json:"files"`
	}
	require.NoError(t, json.Unmarshal(b, &m))
	for _, f := range m.Files {
		if f.Path == file {
			return manifest, i.object(f.Digest, "blob")
		}
	}
	t.Fatalf("%s is not in %s", file, b)
	return "", ""
}

// damage changes a file, runs what is to see it, and undoes the change.
func damage(t *testing.T, path string, change func([]byte) []byte, see func()) {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.Chmod(path, 0o644))
	require.NoError(t, os.WriteFile(path, change(bytes.Clone(whole)), 0o644))
	see()
	require.NoError(t, os.WriteFile(path, whole, 0o644))
	require.NoError(t, os.Chmod(path, info.Mode()))
}

// flip changes a bit in the middle of what is not padding.
func flip(b []byte) []byte {
	b[len(bytes.TrimRight(b, "\x00"))/2] ^= 1
	return b
}

// half cuts behind half of what is not padding.
func half(b []byte) []byte { return b[:len(bytes.TrimRight(b, "\x00"))/2] }

// TestDamage damages everything that a stopped run left, one thing after the
// other. Each is told in one sentence, nothing is changed by the attempt, and
// once the damage is undone the same command goes on to a clean end.
func TestDamage(t *testing.T) {
	i := interrupt(t)
	refused := func(words ...string) func() {
		return func() { t.Helper(); refuses(t, i.programs, i.dir, 1, words, i.command...) }
	}
	segments, err := filepath.Glob(filepath.Join(i.coordinator, "log", "*.wal"))
	require.NoError(t, err)
	require.Len(t, segments, 1)
	clean(t, i.programs, i.dir, damagedRun)

	t.Run("a log entry", func(t *testing.T) {
		damage(t, segments[0], flip, refused("log entry", "is damaged", "restore the directory from a copy", "nothing was changed"))
	})
	t.Run("the end of the log", func(t *testing.T) {
		damage(t, segments[0], half, refused("the log ends with event", "the store has event", "is damaged", "restore the directory from a copy"))
	})
	t.Run("the whole log", func(t *testing.T) {
		aside := filepath.Join(i.dir, "aside")
		require.NoError(t, os.Rename(segments[0], aside))
		refused("is damaged", "restore the directory from a copy")()
		require.NoError(t, os.Rename(aside, segments[0]))
	})
	t.Run("a newer format", func(t *testing.T) {
		damage(t, filepath.Join(i.coordinator, "version.json"), func(b []byte) []byte {
			return bytes.Replace(b, []byte(`"format":1`), []byte(`"format":99`), 1)
		}, func() {
			newer := []string{"format 99", "this binary knows 1", "run that version or a later one"}
			refuses(t, i.programs, i.dir, 1, newer, i.command...)
			refuses(t, i.programs, i.dir, 1, newer, "runs", "ls")
			refuses(t, i.programs, i.dir, 1, newer, "runs", "pause", damagedRun)
		})
	})
	manifest, weights := i.checkpoint(t, "model.safetensors")
	_, optimizer := i.checkpoint(t, "optimizer.safetensors")
	for name, path := range map[string]string{"a checkpoint's manifest": manifest, "a checkpoint's weights": weights, "a checkpoint's optimizer": optimizer} {
		t.Run(name, func(t *testing.T) {
			damage(t, path, flip, func() {
				refused("checkpoint", "is damaged: restore the object from a copy")()
				i.finds(t, "version ")
			})
		})
	}
	shards, err := filepath.Glob(filepath.Join(i.dir, ".rlfleet", damagedRun, "objects", "sha256", "*", "*.steps.arrow"))
	require.NoError(t, err)
	require.NotEmpty(t, shards)
	// A shard whose seal was refused is an orphan that nobody reads.
	shard := shards[slices.IndexFunc(shards, func(path string) bool { return i.named(t, digestOf(path)) })]
	t.Run("a shard's bit", func(t *testing.T) { damage(t, shard, flip, func() { i.finds(t, digestOf(shard)) }) })
	t.Run("a shard's end", func(t *testing.T) { damage(t, shard, half, func() { i.finds(t, digestOf(shard)) }) })
	t.Run("a piece of the record", func(t *testing.T) {
		pieces, err := filepath.Glob(filepath.Join(i.dir, ".rlfleet", damagedRun, "manifest", "*.json"))
		require.NoError(t, err)
		damage(t, pieces[len(pieces)/2], half, func() { i.finds(t, filepath.Base(pieces[len(pieces)/2])) })
	})

	clean(t, i.programs, i.dir, damagedRun)
	said, err := rlctl(t, i.programs, i.dir, i.command...)
	require.NoError(t, err, said)
	require.Contains(t, lastLine(said), "done: succeeded")
	clean(t, i.programs, i.dir, damagedRun)
}

func digestOf(shard string) string { return strings.TrimSuffix(filepath.Base(shard), ".steps.arrow") }

// named reports whether the log names an object.
func (i interrupted) named(t *testing.T, digest string) bool {
	t.Helper()
	pieces, err := filepath.Glob(filepath.Join(i.dir, ".rlfleet", damagedRun, "manifest", "*.json"))
	require.NoError(t, err)
	for _, p := range pieces {
		b, err := os.ReadFile(p)
		require.NoError(t, err)
		if bytes.Contains(b, []byte(digest)) {
			return true
		}
	}
	return false
}

// finds requires that the verifier names what is damaged, and does not stumble.
func (i interrupted) finds(t *testing.T, what string) {
	t.Helper()
	said, err := rlctl(t, i.programs, i.dir, "traj", "verify", damagedRun)
	require.Equal(t, 1, code(t, err), said)
	require.Contains(t, said, "finding")
	require.Contains(t, said, what)
	require.NotContains(t, said, "goroutine ")
}
