package task

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/rlfleet/rlfleet/policy"
)

// The splits of a source directory.
const (
	SplitTrain = "train"
	SplitEval  = "eval"
)

// LoadSet loads the tasks of one split of a source directory, in order of ID.
//
// The directory holds train/ and eval/ with task directories, or task
// directories directly, which are then all of split train. Two tasks with the
// same content or the same task.name are refused: one of them would count twice.
func LoadSet(dir, split string) ([]*Task, error) {
	root, err := splitDir(dir, split)
	if err != nil {
		return nil, fmt.Errorf("task: load set %s: %w", dir, err)
	}
	list, err := os.ReadDir(root)
	if err != nil {
		return nil, fmt.Errorf("task: load set %s: %w", dir, ioProblem(err))
	}
	var tasks []*Task
	byDigest, byName := map[policy.Digest]string{}, map[string]string{}
	for _, d := range list { // sorted by name
		if !d.IsDir() || strings.HasPrefix(d.Name(), ".") {
			continue
		}
		t, err := Load(filepath.Join(root, d.Name()))
		if err != nil {
			return nil, err
		}
		if other, dup := byDigest[t.Digest]; dup {
			return nil, fmt.Errorf("task: load set %s: %w", root, &refusal{ErrInvalid, fmt.Sprintf("%s and %s have the same content: remove one", other, t.ID)})
		}
		if other, dup := byName[t.Name]; dup && t.Name != "" {
			return nil, fmt.Errorf("task: load set %s: %w", root, &refusal{ErrInvalid, fmt.Sprintf("%s and %s have the same task.name %q: rename one", other, t.ID, t.Name)})
		}
		byDigest[t.Digest], byName[t.Name] = t.ID, t.ID
		tasks = append(tasks, t)
	}
	if len(tasks) == 0 {
		return nil, fmt.Errorf("task: load set %s: %w", root, &refusal{ErrInvalid, "there is no task directory in it"})
	}
	return tasks, nil
}

// splitDir finds where the tasks of a split are.
func splitDir(dir, split string) (string, error) {
	if split == "" || split != filepath.Base(split) || strings.HasPrefix(split, ".") {
		return "", &refusal{ErrInvalid, fmt.Sprintf("%q is not the name of a split", split)}
	}
	if info, err := os.Stat(dir); err != nil {
		return "", ioProblem(err)
	} else if !info.IsDir() {
		return "", fmt.Errorf("%w: it is a file", ErrNotFound)
	}
	if _, err := os.Stat(filepath.Join(dir, "task.toml")); err == nil {
		return "", &refusal{ErrInvalid, "it is one task, not a directory of tasks: name the directory above it"}
	}
	if isDir(filepath.Join(dir, split)) {
		return filepath.Join(dir, split), nil
	}
	if split == SplitTrain && !isDir(filepath.Join(dir, SplitEval)) {
		return dir, nil
	}
	return "", fmt.Errorf("%w: it has no %s/ directory", ErrNotFound, split)
}

func isDir(p string) bool {
	info, err := os.Stat(p)
	return err == nil && info.Mode()&fs.ModeDir != 0
}
