package task

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/rlfleet/rlfleet/policy"
)

// Load reads the task in dir, each file once. It returns ErrInvalid or
// ErrUnsupported with one sentence that names the file and the key, and
// ErrNotFound when dir is not there.
func Load(dir string) (*Task, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("task: load %s: %w", dir, err)
	}
	tr, err := readTree(abs)
	if err != nil {
		return nil, fmt.Errorf("task: load %s: %w", dir, ioProblem(err))
	}
	t, err := build(tr)
	if err != nil {
		return nil, fmt.Errorf("task: load %s: %w", dir, err)
	}
	return t, nil
}

func build(tr *tree) (*Task, error) {
	if err := checkLayout(tr); err != nil {
		return nil, err
	}
	c, err := parseConfig(tr.text["task.toml"])
	if err != nil {
		return nil, err
	}
	t := &Task{
		ID: filepath.Base(tr.root), Name: c.Task.Name, Dir: tr.root, Digest: tr.digest(""),
		Instruction:     string(tr.text["instruction.md"]),
		AgentTimeout:    seconds(c.Agent.Timeout),
		VerifierTimeout: seconds(c.Verifier.Timeout),
		SolutionEnv:     c.Solution.Env,
		Limits:          Limits{CPU: c.Environment.CPUs, Memory: c.Environment.MemoryMB << 20, Disk: c.Environment.StorageMB << 20},
		HasSolution:     tr.has(solveScript),
	}
	if t.Artifacts, err = c.artifactPaths(); err != nil {
		return nil, err
	}
	if err := t.buildAgent(tr, c); err != nil {
		return nil, err
	}
	if err := t.buildVerifier(tr, c); err != nil {
		return nil, err
	}
	return t, nil
}

// checkLayout refuses a directory that lacks a part, or has one that this build does not honour.
func checkLayout(tr *tree) error {
	for _, need := range []struct{ file, why string }{
		{"task.toml", "there is no task.toml: it is not a task directory"},
		{"instruction.md", "there is no instruction.md: the agent would be told nothing"},
		{"tests/test.sh", "there is no tests/test.sh: nothing would judge the work"},
	} {
		if !tr.has(need.file) {
			return &refusal{ErrInvalid, need.why}
		}
	}
	for _, name := range []string{"docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml"} {
		if tr.has("environment/" + name) {
			return &refusal{ErrUnsupported, "environment/" + name + ": docker-compose is not supported; a task has one sandbox"}
		}
	}
	for _, sub := range []string{"environment", "tests"} {
		if tr.has(sub + "/.dockerignore") {
			return &refusal{ErrUnsupported, sub + "/.dockerignore is not supported: remove the files it names"}
		}
	}
	if tr.hasDir("steps") {
		return &refusal{ErrUnsupported, "steps/: multi-step tasks are not supported"}
	}
	if !tr.has("environment/Dockerfile") {
		return &refusal{ErrInvalid, "there is no environment/Dockerfile: the agent's sandbox is not described"}
	}
	text := tr.text["instruction.md"]
	if strings.TrimSpace(string(text)) == "" || !utf8.Valid(text) {
		return &refusal{ErrInvalid, "instruction.md is empty or not UTF-8: the agent would be told nothing"}
	}
	return nil
}

func (t *Task) buildAgent(tr *tree, c *config) error {
	r, err := parseDockerfile("environment/Dockerfile", tr.text["environment/Dockerfile"])
	if err != nil {
		return err
	}
	if c.Environment.Workdir != "" {
		if !path.IsAbs(c.Environment.Workdir) {
			return invalid("environment.workdir %q is not an absolute path", c.Environment.Workdir)
		}
		r.workdir = path.Clean(c.Environment.Workdir)
	}
	maps.Copy(r.env, c.Environment.Env)
	t.Image, t.Env = r.image, r.env
	t.agent, err = r.template(tr, "environment")
	t.Workdir = t.agent.Workdir
	return err
}

// buildVerifier follows tests/Dockerfile where there is one; otherwise tests/ appears at /tests.
func (t *Task) buildVerifier(tr *tree, c *config) error {
	r := &recipe{env: map[string]string{}, layers: []copyLine{{source: ".", dest: TestsDir}}}
	if text, ok := tr.text["tests/Dockerfile"]; ok {
		var err error
		if r, err = parseDockerfile("tests/Dockerfile", text); err != nil {
			return err
		}
	}
	var err error
	if t.verifier, err = r.template(tr, "tests"); err != nil {
		return err
	}
	placed := false
	for _, l := range r.layers {
		if overlaps(l.dest, VerifierLogs) {
			return &refusal{ErrInvalid, fmt.Sprintf("tests/Dockerfile: COPY to %s could bring a reward of its own to %s", l.dest, VerifierLogs)}
		}
		placed = placed || l.dest == TestsDir && l.source == "."
	}
	if !placed {
		return &refusal{ErrInvalid, "tests/Dockerfile: nothing puts test.sh at " + TestScript + "; add COPY . " + TestsDir + "/"}
	}
	t.VerifierEnv = c.Verifier.Env
	return nil
}

// template turns a recipe into layers of the directory sub of the task, with a digest of what they hold.
func (r *recipe) template(tr *tree, sub string) (Template, error) {
	out := Template{Workdir: r.workdir, Env: r.env}
	if out.Workdir == "" {
		out.Workdir = DefaultDir
	}
	type hashed struct {
		Dest    string        `json:"dest"`
		Content policy.Digest `json:"content"`
	}
	var sums []hashed
	for _, l := range r.layers {
		rel := path.Join(sub, l.source)
		if !tr.hasDir(rel) {
			return out, &refusal{ErrUnsupported, fmt.Sprintf("%s/Dockerfile: COPY %s: there is no such directory in %s/; only directories are copied", sub, l.source, sub)}
		}
		out.Layers = append(out.Layers, Layer{Source: filepath.Join(tr.root, filepath.FromSlash(rel)), Dest: l.dest})
		sums = append(sums, hashed{l.dest, tr.digest(rel)})
	}
	canonical, err := json.Marshal(struct { // map keys are written in order
		Layers  []hashed          `json:"layers"`
		Workdir string            `json:"workdir"`
		Env     map[string]string `json:"env"`
	}{sums, out.Workdir, out.Env})
	if err != nil {
		return out, fmt.Errorf("task: digest template: %w", err)
	}
	out.Digest = policy.DigestOf(canonical)
	return out, nil
}
