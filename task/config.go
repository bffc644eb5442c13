package task

import (
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
)

// config mirrors task.toml, schema 1.0 to 1.4. A field of type any is known but
// not honoured: its presence is refused by name.
type config struct {
	SchemaVersion string         `toml:"schema_version"`
	Version       string         `toml:"version"`
	Source        string         `toml:"source"`
	Artifacts     []any          `toml:"artifacts"`
	Strategy      any            `toml:"multi_step_reward_strategy"`
	Steps         any            `toml:"steps"`
	Task          taskTable      `toml:"task"`
	Metadata      map[string]any `toml:"metadata"`
	Agent         phaseTable     `toml:"agent"`
	Verifier      verifierTable  `toml:"verifier"`
	Environment   envTable       `toml:"environment"`
	Solution      struct {
		Env map[string]string `toml:"env"`
	} `toml:"solution"`
}

type taskTable struct {
	Name        string           `toml:"name"`
	Version     string           `toml:"version"`
	Description string           `toml:"description"`
	Authors     []map[string]any `toml:"authors"`
	Keywords    []string         `toml:"keywords"`
}

type phaseTable struct {
	Timeout      float64 `toml:"timeout_sec"`
	User         any     `toml:"user"`
	NetworkMode  string  `toml:"network_mode"`
	AllowedHosts any     `toml:"allowed_hosts"`
}

type verifierTable struct {
	phaseTable
	Env         map[string]string `toml:"env"`
	Mode        string            `toml:"environment_mode"`
	Environment any               `toml:"environment"`
	Collect     any               `toml:"collect"`
}

type envTable struct {
	BuildTimeout  float64           `toml:"build_timeout_sec"`
	DockerImage   any               `toml:"docker_image"`
	OS            string            `toml:"os"`
	CPUs          float64           `toml:"cpus"`
	MemoryMB      int64             `toml:"memory_mb"`
	StorageMB     int64             `toml:"storage_mb"`
	Memory        any               `toml:"memory"`
	Storage       any               `toml:"storage"`
	GPUs          int64             `toml:"gpus"`
	GPUTypes      any               `toml:"gpu_types"`
	TPU           any               `toml:"tpu"`
	AllowInternet bool              `toml:"allow_internet"`
	NetworkMode   string            `toml:"network_mode"`
	AllowedHosts  any               `toml:"allowed_hosts"`
	Env           map[string]string `toml:"env"`
	SkillsDir     any               `toml:"skills_dir"`
	Workdir       string            `toml:"workdir"`
	Healthcheck   any               `toml:"healthcheck"`
	MCPServers    any               `toml:"mcp_servers"`
}

func invalid(format string, args ...any) error {
	return &refusal{ErrInvalid, "task.toml: " + fmt.Sprintf(format, args...)}
}

func unsupported(format string, args ...any) error {
	return &refusal{ErrUnsupported, "task.toml: " + fmt.Sprintf(format, args...)}
}

// parseConfig reads task.toml and refuses unknown keys, impossible values and features this build does not have.
func parseConfig(text []byte) (*config, error) {
	var c config
	md, err := toml.Decode(string(text), &c)
	if err != nil {
		return nil, invalid("%v", err)
	}
	unknown := func() error {
		for _, k := range md.Undecoded() {
			if !freeForm[k[0]] && k[:min(2, len(k))].String() != "task.authors" {
				return invalid("unknown key %s", k)
			}
		}
		return nil
	}
	// Features come before unknown keys: what lies below a feature is not decoded.
	for _, check := range []func() error{c.checkSchema, c.checkFeatures, unknown, c.checkNetwork, c.checkNumbers, c.checkEnv, c.checkMode} {
		if err := check(); err != nil {
			return nil, err
		}
	}
	return &c, nil
}

// freeForm are the tables whose keys are not fixed by the schema, or are checked by artifactPaths.
var freeForm = map[string]bool{"metadata": true, "artifacts": true}

func (c *config) checkSchema() error {
	v := c.SchemaVersion
	if v == "" {
		v = c.Version
	}
	if v != "" && !slices.Contains([]string{"1.0", "1.1", "1.2", "1.3", "1.4"}, v) {
		return unsupported("schema_version %q: this build reads 1.0 to 1.4", v)
	}
	return nil
}

// checkFeatures refuses what is known and missing, each by its key.
func (c *config) checkFeatures() error {
	e, v := c.Environment, c.Verifier
	for _, f := range []struct {
		key string
		val any
		why string
	}{
		{"steps", c.Steps, "multi-step tasks are not supported"},
		{"multi_step_reward_strategy", c.Strategy, "multi-step tasks are not supported"},
		{"agent.user", c.Agent.User, "every sandbox runs under one user id of its own"},
		{"verifier.user", v.User, "every sandbox runs under one user id of its own"},
		{"verifier.environment", v.Environment, "describe the verifier's sandbox in tests/Dockerfile"},
		{"verifier.collect", v.Collect, "collect hooks are not supported; list files in artifacts"},
		{"environment.docker_image", e.DockerImage, "images are not supported; the sandbox shows the host's programs"},
		{"environment.gpu_types", e.GPUTypes, "GPUs in sandboxes are not supported"},
		{"environment.tpu", e.TPU, "TPUs in sandboxes are not supported"},
		{"environment.skills_dir", e.SkillsDir, "skills are not supported"},
		{"environment.healthcheck", e.Healthcheck, "health checks are not supported"},
		{"environment.mcp_servers", e.MCPServers, "MCP servers are not supported"},
		{"environment.memory", e.Memory, "this is the deprecated form; write memory_mb"},
		{"environment.storage", e.Storage, "this is the deprecated form; write storage_mb"},
	} {
		if present(f.val) {
			return unsupported("%s: %s", f.key, f.why)
		}
	}
	if e.GPUs != 0 {
		return unsupported("environment.gpus: GPUs in sandboxes are not supported")
	}
	switch e.OS {
	case "", "linux":
	case "windows":
		return unsupported("environment.os: windows is not supported; sandboxes run Linux")
	default:
		return invalid("environment.os is %q, want \"linux\"", e.OS)
	}
	return nil
}

// present reports whether a key was given with anything but an empty list.
func present(v any) bool {
	if list, ok := v.([]any); ok {
		return len(list) > 0
	}
	if list, ok := v.([]map[string]any); ok {
		return len(list) > 0
	}
	return v != nil
}

// checkNetwork accepts only what a sandbox without network can honour. A task that says nothing gets none.
func (c *config) checkNetwork() error {
	for _, n := range []struct {
		key, mode string
		hosts     any
	}{
		{"agent", c.Agent.NetworkMode, c.Agent.AllowedHosts},
		{"verifier", c.Verifier.NetworkMode, c.Verifier.AllowedHosts},
		{"environment", c.Environment.NetworkMode, c.Environment.AllowedHosts},
	} {
		switch n.mode {
		case "", "no-network":
		case "public", "allowlist":
			return unsupported("%s.network_mode: %q is not supported; sandboxes have no network", n.key, n.mode)
		default:
			return invalid("%s.network_mode is %q, want \"no-network\"", n.key, n.mode)
		}
		if present(n.hosts) {
			return unsupported("%s.allowed_hosts: sandboxes have no network", n.key)
		}
	}
	if c.Environment.AllowInternet {
		return unsupported("environment.allow_internet: sandboxes have no network")
	}
	return nil
}

func (c *config) checkNumbers() error {
	for _, n := range []struct {
		key string
		val float64
	}{
		{"agent.timeout_sec", c.Agent.Timeout},
		{"verifier.timeout_sec", c.Verifier.Timeout},
		{"environment.build_timeout_sec", c.Environment.BuildTimeout},
		{"environment.cpus", c.Environment.CPUs},
		{"environment.memory_mb", float64(c.Environment.MemoryMB)},
		{"environment.storage_mb", float64(c.Environment.StorageMB)},
	} {
		// Beyond 2^40 the product with a second or a mebibyte leaves 64 bits.
		if n.val < 0 || math.IsNaN(n.val) || n.val > 1<<30 {
			return invalid("%s is %v, want a number from 0 to 2^30", n.key, n.val)
		}
	}
	return nil
}

func (c *config) checkEnv() error {
	for _, t := range []struct {
		key string
		env map[string]string
	}{{"environment.env", c.Environment.Env}, {"verifier.env", c.Verifier.Env}, {"solution.env", c.Solution.Env}} {
		for k, v := range t.env {
			if k == "" || strings.ContainsAny(k, "=\x00") || strings.Contains(v, "\x00") {
				return invalid("%s: %q is not a variable", t.key, k)
			}
			if strings.Contains(v, "${") {
				return unsupported("%s.%s: values are not taken from the host's environment", t.key, k)
			}
		}
	}
	return nil
}

func (c *config) checkMode() error {
	switch c.Verifier.Mode {
	case "separate":
		return nil
	case "", "shared":
		return unsupported("verifier.environment_mode: \"shared\" (the default) lets the agent reach its own judge; set \"separate\" and list the agent's work in artifacts")
	}
	return invalid("verifier.environment_mode is %q, want \"separate\"", c.Verifier.Mode)
}

// artifactPaths returns the declared artifacts, cleaned, in the order of the file.
func (c *config) artifactPaths() ([]string, error) {
	var out []string
	for i, a := range c.Artifacts {
		p, ok := a.(string)
		if m, isTable := a.(map[string]any); isTable {
			for k := range m {
				if k != "source" {
					return nil, unsupported("artifacts[%d].%s: an artifact appears at its own path, whole", i, k)
				}
			}
			p, ok = m["source"].(string)
		}
		if !ok {
			return nil, invalid("artifacts[%d] is not a path", i)
		}
		clean := path.Clean(p)
		switch {
		case !path.IsAbs(p) || slices.Contains(strings.Split(p, "/"), ".."):
			return nil, invalid("artifacts[%d]: %q is not an absolute path without \"..\"", i, p)
		case overlaps(clean, VerifierLogs):
			return nil, invalid("artifacts[%d]: %q would let the agent write its own reward in %s", i, p, VerifierLogs)
		case overlaps(clean, TestsDir):
			return nil, invalid("artifacts[%d]: %q would let the agent replace the tests in %s", i, p, TestsDir)
		case slices.Contains(out, clean):
			return nil, invalid("artifacts[%d]: %q is listed twice", i, p)
		}
		out = append(out, clean)
	}
	if len(out) == 0 {
		return nil, invalid("artifacts is empty: the separate verifier would see nothing of the agent's work")
	}
	return out, nil
}

// overlaps reports whether one path is the other or holds it.
func overlaps(a, b string) bool { return within(a, b) || within(b, a) }

// within reports whether p is dir or lies below it; both are clean.
func within(p, dir string) bool {
	return dir == "/" || p == dir || strings.HasPrefix(p, dir+"/")
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
