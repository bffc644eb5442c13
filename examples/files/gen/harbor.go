package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// format is raised when the same flags make other bytes than before.
const format = 1

// originFile says how a directory was made; it lies beside train and eval.
const originFile = "origin.txt"

const taskConfig = `schema_version = "1.4"
artifacts = ["/app/answer.txt"]

[metadata]
example = "files"

[agent]
timeout_sec = 60.0
network_mode = "no-network"

[verifier]
timeout_sec = 20.0
environment_mode = "separate"
network_mode = "no-network"

[environment]
network_mode = "no-network"
workdir = "/app"
cpus = 1
memory_mb = 256
storage_mb = 256
`

const agentDockerfile = `FROM debian:12-slim
WORKDIR /app
COPY files/ /app/
`

const slowDockerfile = agentDockerfile + `COPY bin/ /app/.bin/
ENV PATH=/app/.bin:$PATH
`

const verifierDockerfile = `FROM debian:12-slim
WORKDIR /app
COPY . /tests/
`

// testScript decides. A missing answer is a 0: not answering is a result. A
// missing expectation is no reward at all, for it says nothing of the agent.
const testScript = `#!/bin/bash
# 1 when the answer is the expected digit, else 0. Builtins only: a process costs more than the comparison.
read -r want < /tests/expected.txt || exit 1
got=
if [ -f /app/answer.txt ]; then read -r got < /app/answer.txt; fi
if [ "$got" = "$want" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
`

// writeTasks makes o.out whole, or leaves it alone when it was made with the same flags.
func writeTasks(o options, stdout io.Writer) error {
	origin := fmt.Sprintf("examples/files/gen -seed %d -train %d -eval %d -latency=%t (format %d)\n", o.seed, o.train, o.eval, o.latency, format)
	had, err := os.ReadFile(filepath.Join(o.out, originFile))
	switch {
	case err == nil && string(had) == origin:
		fmt.Fprintf(stdout, "%s: there already, made with the same flags\n", o.out)
		return nil
	case err == nil:
		return fmt.Errorf("%s was made with other flags (%s): remove it or name another directory", o.out, string(had[:len(had)-1]))
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if list, err := os.ReadDir(o.out); err == nil && len(list) > 0 {
		return fmt.Errorf("%s is not empty and was not made by this program: name another directory", o.out)
	}
	if err := os.MkdirAll(filepath.Dir(filepath.Clean(o.out)), 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(filepath.Clean(o.out)), ".gen-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp) // gone already when all went well
	if err := fill(tmp, o); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(tmp, originFile), []byte(origin), 0o644); err != nil {
		return err
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	if err := os.Remove(o.out); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(tmp, o.out); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%s: %d training and %d evaluation tasks\n", o.out, o.train, o.eval)
	return nil
}

// fill writes both splits below dir. Evaluation draws from its own stream and leaves out what training has.
func fill(dir string, o options) error {
	seen := map[world]bool{}
	for _, split := range []struct {
		name            string
		n               int
		stream, latency uint64
	}{
		{"train", o.train, streamTrain, streamTrainLatency},
		{"eval", o.eval, streamEval, streamEvalLatency},
	} {
		slow := rand.New(rand.NewPCG(o.seed, split.latency))
		for i, w := range draw(o.seed, split.stream, split.n, seen) {
			files := w.taskFiles()
			if o.latency {
				files["environment/Dockerfile"] = slowDockerfile
				files["environment/bin/cat"] = slowCat(drawLatencies(slow))
			}
			if err := writeFiles(filepath.Join(dir, split.name, fmt.Sprintf("%s-%04d", split.name, i)), files); err != nil {
				return err
			}
		}
	}
	return nil
}

// taskFiles is the task directory of a world, by path.
func (w world) taskFiles() map[string]string {
	files := map[string]string{
		"task.toml":              taskConfig,
		"instruction.md":         w.instruction() + "\n",
		"environment/Dockerfile": agentDockerfile,
		"tests/Dockerfile":       verifierDockerfile,
		"tests/test.sh":          testScript,
		"tests/expected.txt":     w.cat(w.target) + "\n",
		"solution/solve.sh":      "#!/bin/bash\ncat " + fileName(w.target) + " > answer.txt\n",
	}
	for i, d := range w.digit {
		if d >= 0 {
			files["environment/files/"+fileName(i)] = fmt.Sprintf("%d\n", d)
		}
	}
	return files
}

// executable are the files that get the bit.
var executable = map[string]bool{"tests/test.sh": true, "solution/solve.sh": true, "environment/bin/cat": true}

func writeFiles(dir string, files map[string]string) error {
	for name, text := range files {
		p := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if executable[name] {
			mode = 0o755
		}
		if err := os.WriteFile(p, []byte(text), mode); err != nil {
			return err
		}
	}
	return nil
}
