package task

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// variant returns a small task whose content differs by i.
func variant(i int) map[string]string {
	files := goodFiles()
	files["tests/expected.txt"] = fmt.Sprintln(i)
	return files
}

func ids(tasks []*Task) []string {
	var out []string
	for _, t := range tasks {
		out = append(out, t.ID)
	}
	return out
}

func TestLoadSetSplits(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "train", "b"), variant(1))
	write(t, filepath.Join(dir, "train", "a"), variant(2))
	write(t, filepath.Join(dir, "eval", "c"), variant(3))
	write(t, dir, map[string]string{"README.md": "x", "train/notes.txt": "x", "train/.git/config": "x"})
	train, err := LoadSet(dir, SplitTrain)
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b"}, ids(train))
	eval, err := LoadSet(dir, SplitEval)
	require.NoError(t, err)
	require.Equal(t, []string{"c"}, ids(eval))
}

func TestLoadSetDirect(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a"), variant(1))
	train, err := LoadSet(dir, SplitTrain)
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, ids(train))
	_, err = LoadSet(dir, SplitEval)
	require.ErrorIs(t, err, ErrNotFound)
	require.ErrorContains(t, err, "no eval/ directory")
}

func TestLoadSetRefusals(t *testing.T) {
	named := func(i int) map[string]string {
		files := variant(i)
		files["task.toml"] += "[task]\nname = \"same\"\n"
		return files
	}
	for _, c := range []struct {
		name  string
		make  func(dir string)
		split string
		kind  error
		says  string
	}{
		{"missing", func(dir string) { require.NoError(t, os.Remove(dir)) }, "train", ErrNotFound, "no such"},
		{"empty", func(string) {}, "train", ErrInvalid, "there is no task directory in it"},
		{"empty split", func(dir string) { require.NoError(t, os.MkdirAll(filepath.Join(dir, "eval"), 0o755)) }, "eval", ErrInvalid, "there is no task directory in it"},
		{"no train", func(dir string) { require.NoError(t, os.MkdirAll(filepath.Join(dir, "eval"), 0o755)) }, "train", ErrNotFound, "no train/ directory"},
		{"a file", func(dir string) {
			require.NoError(t, os.Remove(dir))
			require.NoError(t, os.WriteFile(dir, nil, 0o644))
		}, "train", ErrNotFound, "it is a file"},
		{"one task", func(dir string) { write(t, dir, variant(1)) }, "train", ErrInvalid, "it is one task"},
		{"bad split", func(string) {}, "../x", ErrInvalid, "not the name of a split"},
		{"not a task", func(dir string) { write(t, filepath.Join(dir, "a"), map[string]string{"x": ""}) }, "train", ErrInvalid, "no task.toml"},
		{"no tests", func(dir string) {
			files := variant(1)
			delete(files, "tests/test.sh")
			write(t, filepath.Join(dir, "a"), files)
		}, "train", ErrInvalid, "no tests/test.sh"},
		{"same content", func(dir string) {
			write(t, filepath.Join(dir, "a"), variant(1))
			write(t, filepath.Join(dir, "b"), variant(1))
		}, "train", ErrInvalid, "a and b have the same content"},
		{"same name", func(dir string) {
			write(t, filepath.Join(dir, "a"), named(1))
			write(t, filepath.Join(dir, "b"), named(2))
		}, "train", ErrInvalid, "a and b have the same task.name \"same\""},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "set")
			require.NoError(t, os.Mkdir(dir, 0o755))
			c.make(dir)
			_, err := LoadSet(dir, c.split)
			require.ErrorIs(t, err, c.kind)
			require.ErrorContains(t, err, c.says)
			require.NotContains(t, err.Error(), "\n", "one sentence")
		})
	}
}

// BenchmarkLoadSet loads as many tasks as the demo has.
func BenchmarkLoadSet(b *testing.B) {
	dir := b.TempDir()
	for i := range 640 {
		files := variant(i)
		for f := range 4 {
			files[fmt.Sprintf("environment/files/F%d", f)] = "1\n"
		}
		write(b, filepath.Join(dir, "train", fmt.Sprintf("t-%04d", i)), files)
	}
	for b.Loop() {
		if _, err := LoadSet(dir, SplitTrain); err != nil {
			b.Fatal(err)
		}
	}
}
