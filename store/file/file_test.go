package file

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/rlfleet/rlfleet/store"
	"github.com/rlfleet/rlfleet/store/storetest"
)

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.ObjectStore {
		s, err := Open(filepath.Join(t.TempDir(), "not", "there", "yet"))
		require.NoError(t, err)
		return s
	})
}

// Several processes share a tree: each has a Store of its own.
func TestPut_OneWinnerAcrossStores(t *testing.T) {
	dir := t.TempDir()
	for round := range 10 {
		errs := make([]error, 32)
		var wg sync.WaitGroup
		for i := range errs {
			s, err := Open(dir)
			require.NoError(t, err)
			wg.Go(func() { errs[i] = s.Put(t.Context(), fmt.Sprintf("a/b/%d", round), []byte{byte(i)}) })
		}
		wg.Wait()
		won := 0
		for _, err := range errs {
			if err == nil {
				won++
			} else {
				require.ErrorIs(t, err, store.ErrExists)
			}
		}
		require.Equal(t, 1, won)
	}
	requireNoTemp(t, dir)
}

func TestOpen_RefusesAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	require.NoError(t, os.WriteFile(path, nil, 0o644))
	_, err := Open(path)
	require.ErrorContains(t, err, "not a directory")
}

func TestOpen_SweepsOnlyDeadWriters(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir)
	require.NoError(t, err)
	require.NoError(t, s.Put(t.Context(), "k", []byte("kept")))

	dead := filepath.Join(dir, tempDir, "dead")
	require.NoError(t, os.WriteFile(dead, []byte("half"), 0o644))
	living, err := s.writeTemp([]byte("in flight"))
	require.NoError(t, err)
	defer func() { _ = living.Close() }()

	_, err = Open(dir)
	require.NoError(t, err)
	require.NoFileExists(t, dead)
	require.FileExists(t, living.Name())
	got, err := s.Get(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, "kept", string(got))
}

// A writer killed at any moment leaves no object that is not whole, and its temporary files go at the next Open.
func TestPut_KilledWriter(t *testing.T) {
	if dir := os.Getenv("STORE_FILE_WRITER"); dir != "" {
		s, err := Open(dir)
		require.NoError(t, err)
		for i := 0; ; i++ {
			require.NoError(t, s.Put(t.Context(), fmt.Sprintf("k/%d", i), content(i)))
			fmt.Println("put", i)
		}
	}
	dir := t.TempDir()
	for range 5 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestPut_KilledWriter$")
		cmd.Env = append(os.Environ(), "STORE_FILE_WRITER="+dir)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		buf := make([]byte, 64) // returns once something was put
		_, err = out.Read(buf)
		require.NoError(t, err)
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()

		s, err := Open(dir)
		require.NoError(t, err)
		requireNoTemp(t, dir)
		n := 0
		for info, err := range s.List(t.Context(), "k/") {
			require.NoError(t, err)
			var i int
			_, err = fmt.Sscanf(info.Key, "k/%d", &i)
			require.NoError(t, err)
			got, err := s.Get(t.Context(), info.Key)
			require.NoError(t, err)
			require.True(t, bytes.Equal(content(i), got), info.Key)
			n++
		}
		require.Positive(t, n)
	}
}

func content(i int) []byte { return bytes.Repeat(fmt.Appendf(nil, "%d,", i), 10_000) }

func TestPut_DiskFull(t *testing.T) {
	t.Run("half a write", func(t *testing.T) {
		dir := t.TempDir()
		s, err := Open(dir)
		require.NoError(t, err)
		s.write = func(f *os.File, data []byte) (int, error) {
			n, err := f.Write(data[:len(data)/2])
			require.NoError(t, err)
			return n, &os.PathError{Op: "write", Path: f.Name(), Err: unix.ENOSPC}
		}
		requireFull(t, s, dir, []byte("some data"))
	})
	t.Run("a real small disk", func(t *testing.T) {
		dir := t.TempDir()
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
			t.Skipf("SKIPPED: a small file system cannot be mounted here (%v)", err)
		}
		t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, 0)) })
		s, err := Open(dir)
		require.NoError(t, err)
		require.NoError(t, s.Put(t.Context(), "fits", []byte("x")))
		requireFull(t, s, dir, bytes.Repeat([]byte{1}, 1<<20))
		require.NoError(t, s.Put(t.Context(), "again", []byte("y")), "room is left for small objects")
	})
}

func requireFull(t *testing.T, s *Store, dir string, data []byte) {
	t.Helper()
	require.ErrorIs(t, s.Put(t.Context(), "big", data), store.ErrFull)
	_, err := s.Get(t.Context(), "big")
	require.ErrorIs(t, err, store.ErrNotFound)
	requireNoTemp(t, dir)
}

func requireNoTemp(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, tempDir))
	require.NoError(t, err)
	require.Empty(t, entries)
}

// Both ways of moving a file into place refuse to replace another.
func TestMoveNew(t *testing.T) {
	for name, move := range map[string]func(from, to string) error{"rename": moveNew, "link": linkNew} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			to := filepath.Join(dir, "to")
			for i, want := range []error{nil, fs.ErrExist} {
				from := filepath.Join(dir, fmt.Sprint(i))
				require.NoError(t, os.WriteFile(from, []byte{byte(i)}, 0o644))
				require.ErrorIs(t, move(from, to), want)
			}
			got, err := os.ReadFile(to)
			require.NoError(t, err)
			require.Equal(t, []byte{0}, got)
			require.ErrorIs(t, move(filepath.Join(dir, "none"), filepath.Join(dir, "x")), fs.ErrNotExist)
		})
	}
}

// A tree that another process deleted directories from is not silently written beside.
func TestPut_DirectoryTakenAway(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir)
	require.NoError(t, err)
	require.NoError(t, s.Put(t.Context(), "a/1", []byte("x")))
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "a")))
	require.NoError(t, s.Put(t.Context(), "a/2", []byte("y")))
	got, err := s.Get(t.Context(), "a/2")
	require.NoError(t, err)
	require.Equal(t, "y", string(got))
}

func BenchmarkPut(b *testing.B) {
	for _, size := range []int{4 << 10, 64 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			s, err := Open(b.TempDir())
			require.NoError(b, err)
			data := []byte(strings.Repeat("x", size))
			b.SetBytes(int64(size))
			i := 0
			for b.Loop() {
				require.NoError(b, s.Put(b.Context(), fmt.Sprintf("objects/%02x/%d", i%256, i), data))
				i++
			}
		})
	}
}
