package task

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/rlfleet/rlfleet/policy"
)

// maxText bounds the files that are interpreted, in bytes.
const maxText = 1 << 20

// entry is one file or directory of a task directory.
type entry struct {
	path string // relative, slash-separated
	dir  bool
	exec bool
	sum  [sha256.Size]byte
}

// tree is a task directory read once: entries in path order, and the text of the files that are interpreted.
type tree struct {
	root    string
	entries []entry
	text    map[string][]byte
}

// interpreted are the files whose text is kept.
var interpreted = map[string]bool{
	"task.toml": true, "instruction.md": true, "environment/Dockerfile": true, "tests/Dockerfile": true,
}

// readTree reads every file below root once. Symbolic links, devices and
// sockets are refused: a copy of them in a sandbox would not be what was hashed.
func readTree(root string) (*tree, error) {
	t := &tree{root: root, text: map[string][]byte{}}
	buf := make([]byte, 64<<10)
	if err := t.walk("", buf); err != nil {
		return nil, err
	}
	return t, nil
}

func (t *tree) walk(rel string, buf []byte) error {
	list, err := os.ReadDir(filepath.Join(t.root, filepath.FromSlash(rel)))
	if err != nil {
		return err
	}
	for _, d := range list {
		p := path.Join(rel, d.Name())
		switch {
		case d.IsDir():
			t.entries = append(t.entries, entry{path: p, dir: true})
			if err := t.walk(p, buf); err != nil {
				return err
			}
		case d.Type().IsRegular():
			if err := t.readFile(p, buf); err != nil {
				return err
			}
		default:
			return &refusal{ErrUnsupported, fmt.Sprintf("%s is a %s: a task directory holds files and directories only", p, kindName(d.Type()))}
		}
	}
	return nil
}

func (t *tree) readFile(p string, buf []byte) error {
	f, err := os.Open(filepath.Join(t.root, filepath.FromSlash(p)))
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	h := sha256.New()
	var w io.Writer = onlyWriter{h}
	var keep *strings.Builder
	if interpreted[p] {
		if info.Size() > maxText {
			return &refusal{ErrInvalid, fmt.Sprintf("%s is larger than 1 MiB", p)}
		}
		keep = &strings.Builder{}
		w = io.MultiWriter(h, keep)
	}
	if _, err := io.CopyBuffer(w, onlyReader{f}, buf); err != nil {
		return err
	}
	e := entry{path: p, exec: info.Mode().Perm()&0o111 != 0}
	h.Sum(e.sum[:0])
	t.entries = append(t.entries, e)
	if keep != nil {
		t.text[p] = []byte(keep.String())
	}
	return nil
}

// onlyReader and onlyWriter hide ReadFrom and WriteTo, so that CopyBuffer uses the shared buffer.
type (
	onlyReader struct{ io.Reader }
	onlyWriter struct{ io.Writer }
)

func kindName(m fs.FileMode) string {
	switch {
	case m&fs.ModeSymlink != 0:
		return "symbolic link"
	case m&fs.ModeNamedPipe != 0:
		return "named pipe"
	case m&fs.ModeSocket != 0:
		return "socket"
	}
	return "device"
}

// has reports whether rel is a regular file of the tree.
func (t *tree) has(rel string) bool {
	e, ok := t.find(rel)
	return ok && !e.dir
}

func (t *tree) hasDir(rel string) bool {
	e, ok := t.find(rel)
	return ok && e.dir
}

func (t *tree) find(rel string) (entry, bool) {
	for _, e := range t.entries {
		if e.path == rel {
			return e, true
		}
	}
	return entry{}, false
}

// digest covers everything below rel ("" for all), with paths relative to it.
func (t *tree) digest(rel string) policy.Digest {
	h := sha256.New()
	prefix := ""
	if rel != "" {
		prefix = rel + "/"
	}
	for _, e := range t.entries {
		if name, ok := strings.CutPrefix(e.path, prefix); ok {
			writeEntry(h, name, e)
		}
	}
	return policy.Digest("sha256:" + hex.EncodeToString(h.Sum(nil)))
}

// writeEntry adds one entry; names hold no NUL, so that no two trees write the same bytes.
func writeEntry(h hash.Hash, name string, e entry) {
	switch {
	case e.dir:
		fmt.Fprintf(h, "%s\x00d\x00", name)
		return
	case e.exec:
		fmt.Fprintf(h, "%s\x00x\x00", name)
	default:
		fmt.Fprintf(h, "%s\x00f\x00", name)
	}
	h.Write(e.sum[:])
}

// ioProblem turns a file-system error about a task directory into a sentence without hiding its kind.
func ioProblem(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	return err
}
