package task

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const goodConfig = `
schema_version = "1.4"
artifacts = ["/app/answer.txt"]
[agent]
timeout_sec = 60.0
[verifier]
timeout_sec = 20
environment_mode = "separate"
`

// files of a small task that loads; a nil value removes one.
func goodFiles() map[string]string {
	return map[string]string{
		"task.toml":              goodConfig,
		"instruction.md":         "read F2\n",
		"environment/Dockerfile": "FROM debian:12-slim\nWORKDIR /app\nCOPY files/ /app/\n",
		"environment/files/F2":   "7\n",
		"tests/test.sh":          "echo 1 > /logs/verifier/reward.txt\n",
		"tests/expected.txt":     "7\n",
		"solution/solve.sh":      "cp F2 answer.txt\n",
	}
}

func write(t testing.TB, dir string, files map[string]string) string {
	t.Helper()
	for name, text := range files {
		p := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(p), 0o755))
		require.NoError(t, os.WriteFile(p, []byte(text), 0o644))
	}
	return dir
}

func TestLoadReadsEverything(t *testing.T) {
	files := goodFiles()
	files["task.toml"] = `
version = "1.0"
source = "somewhere"
artifacts = ["/app/answer.txt", {source = "/app/out/"}]
[task]
name = "org/read"
keywords = ["a"]
authors = [{name = "n", email = "e"}]
[metadata]
anything = {goes = [1, 2]}
[agent]
timeout_sec = 1.5
network_mode = "no-network"
allowed_hosts = []
[verifier]
timeout_sec = 20
environment_mode = "separate"
env = {LANG = "C"}
[environment]
os = "linux"
cpus = 0.5
memory_mb = 256
storage_mb = 64
gpus = 0
mcp_servers = []
allow_internet = false
env = {HOME = "/app"}
[solution]
env = {S = "1"}
`
	files["environment/Dockerfile"] += "ENV PATH=/app/.bin:$PATH A=\"x y\" B='$q'\nENV C ${A} z\n"
	dir := write(t, filepath.Join(t.TempDir(), "read-0001"), files)
	got, err := Load(dir)
	require.NoError(t, err)
	require.Equal(t, "read-0001", got.ID)
	require.Equal(t, "org/read", got.Name)
	require.NoError(t, got.Digest.Validate())
	require.Equal(t, "debian:12-slim", got.Image)
	require.Equal(t, "read F2\n", got.Instruction)
	require.Equal(t, 1500*time.Millisecond, got.AgentTimeout)
	require.Equal(t, 20*time.Second, got.VerifierTimeout)
	require.Equal(t, []string{"/app/answer.txt", "/app/out"}, got.Artifacts)
	require.Equal(t, "/app", got.Workdir)
	require.Equal(t, map[string]string{"PATH": "/app/.bin:" + BasePath, "A": "x y", "B": "$q", "C": "x y z", "HOME": "/app"}, got.Env)
	require.Equal(t, map[string]string{"LANG": "C"}, got.VerifierEnv)
	require.Equal(t, map[string]string{"S": "1"}, got.SolutionEnv)
	require.Equal(t, Limits{CPU: 0.5, Memory: 256 << 20, Disk: 64 << 20}, got.Limits)
	require.True(t, got.HasSolution)

	agent := got.AgentTemplate()
	require.Equal(t, []Layer{{filepath.Join(dir, "environment/files"), "/app"}}, agent.Layers)
	require.Equal(t, got.Env, agent.Env)
	require.NoError(t, agent.Digest.Validate())
	judge := got.VerifierTemplate()
	require.Equal(t, []Layer{{filepath.Join(dir, "tests"), "/tests"}}, judge.Layers)
	require.Equal(t, "/app", judge.Workdir)
	require.NotEqual(t, agent.Digest, judge.Digest)
}

func TestVerifierDockerfileIsFollowed(t *testing.T) {
	files := goodFiles()
	files["tests/Dockerfile"] = "FROM x\nWORKDIR /work\nENV K=v\nCOPY . /tests/\nCOPY data lib/\n"
	files["tests/data/d"] = "1"
	dir := write(t, t.TempDir(), files)
	got, err := Load(dir)
	require.NoError(t, err)
	judge := got.VerifierTemplate()
	require.Equal(t, []Layer{{filepath.Join(dir, "tests"), "/tests"}, {filepath.Join(dir, "tests/data"), "/work/lib"}}, judge.Layers)
	require.Equal(t, "/work", judge.Workdir)
	require.Equal(t, map[string]string{"K": "v"}, judge.Env)
}

// TestRefusals breaks one thing at a time; each is refused with its kind and by its name.
func TestRefusals(t *testing.T) {
	head := "artifacts = [\"/app/a\"]\n[verifier]\nenvironment_mode = \"separate\"\n"
	cases := []struct {
		name, file, text string // an empty text removes the file
		kind             error
		says             string
	}{
		{"no config", "task.toml", "", ErrInvalid, "no task.toml"},
		{"no instruction", "instruction.md", "", ErrInvalid, "no instruction.md"},
		{"blank instruction", "instruction.md", " \n", ErrInvalid, "instruction.md is empty"},
		{"binary instruction", "instruction.md", "\xff\xfe", ErrInvalid, "not UTF-8"},
		{"no tests", "tests/test.sh", "", ErrInvalid, "no tests/test.sh"},
		{"no Dockerfile", "environment/Dockerfile", "", ErrInvalid, "no environment/Dockerfile"},
		{"compose", "environment/docker-compose.yaml", "x", ErrUnsupported, "docker-compose"},
		{"dockerignore", "environment/.dockerignore", "x", ErrUnsupported, ".dockerignore"},
		{"steps directory", "steps/one/instruction.md", "x", ErrUnsupported, "multi-step"},
		{"large config", "task.toml", strings.Repeat("#", maxText+1), ErrInvalid, "larger than 1 MiB"},

		{"not toml", "task.toml", "a = ", ErrInvalid, "task.toml"},
		{"wrong type", "task.toml", "[agent]\ntimeout_sec = \"x\"", ErrInvalid, "timeout_sec"},
		{"unknown key", "task.toml", head + "[agent]\ntimeoutsec = 1", ErrInvalid, "unknown key agent.timeoutsec"},
		{"schema", "task.toml", "schema_version = \"2.0\"\n" + head, ErrUnsupported, "schema_version \"2.0\""},
		{"multi-step", "task.toml", head + "[[steps]]\nname = \"a\"", ErrUnsupported, "steps: multi-step"},
		{"strategy", "task.toml", "multi_step_reward_strategy = \"mean\"\n" + head, ErrUnsupported, "multi_step_reward_strategy"},
		{"agent user", "task.toml", head + "[agent]\nuser = \"agent\"", ErrUnsupported, "agent.user"},
		{"verifier user", "task.toml", head + "user = \"root\"", ErrUnsupported, "verifier.user"},
		{"verifier environment", "task.toml", head + "[verifier.environment]\ncpus = 1", ErrUnsupported, "verifier.environment"},
		{"collect hook", "task.toml", head + "[[verifier.collect]]\ncommand = \"x\"", ErrUnsupported, "verifier.collect"},
		{"image", "task.toml", head + "[environment]\ndocker_image = \"x\"", ErrUnsupported, "docker_image"},
		{"windows", "task.toml", head + "[environment]\nos = \"windows\"", ErrUnsupported, "windows"},
		{"other os", "task.toml", head + "[environment]\nos = \"plan9\"", ErrInvalid, "plan9"},
		{"gpus", "task.toml", head + "[environment]\ngpus = 1", ErrUnsupported, "environment.gpus"},
		{"gpu types", "task.toml", head + "[environment]\ngpu_types = [\"H100\"]", ErrUnsupported, "gpu_types"},
		{"tpu", "task.toml", head + "[environment]\ntpu = {type = \"x\"}", ErrUnsupported, "environment.tpu"},
		{"skills", "task.toml", head + "[environment]\nskills_dir = \"x\"", ErrUnsupported, "skills_dir"},
		{"healthcheck", "task.toml", head + "[environment]\nhealthcheck = {command = \"x\"}", ErrUnsupported, "healthcheck"},
		{"mcp", "task.toml", head + "[environment]\nmcp_servers = [{name = \"s\"}]", ErrUnsupported, "mcp_servers"},
		{"memory text", "task.toml", head + "[environment]\nmemory = \"2G\"", ErrUnsupported, "memory_mb"},
		{"storage text", "task.toml", head + "[environment]\nstorage = \"2G\"", ErrUnsupported, "storage_mb"},
		{"public network", "task.toml", head + "[environment]\nnetwork_mode = \"public\"", ErrUnsupported, "environment.network_mode: \"public\""},
		{"agent network", "task.toml", head + "[agent]\nnetwork_mode = \"allowlist\"", ErrUnsupported, "agent.network_mode"},
		{"verifier network", "task.toml", head + "network_mode = \"public\"", ErrUnsupported, "verifier.network_mode"},
		{"unknown network", "task.toml", head + "network_mode = \"some\"", ErrInvalid, "verifier.network_mode"},
		{"allowed hosts", "task.toml", head + "[environment]\nallowed_hosts = [\"a.b\"]", ErrUnsupported, "allowed_hosts"},
		{"internet", "task.toml", head + "[environment]\nallow_internet = true", ErrUnsupported, "allow_internet"},
		{"negative timeout", "task.toml", head + "timeout_sec = -1", ErrInvalid, "verifier.timeout_sec"},
		{"infinite timeout", "task.toml", head + "timeout_sec = inf", ErrInvalid, "verifier.timeout_sec"},
		{"negative memory", "task.toml", head + "[environment]\nmemory_mb = -5", ErrInvalid, "memory_mb"},
		{"host variable", "task.toml", head + "env = {KEY = \"${KEY}\"}", ErrUnsupported, "verifier.env.KEY"},
		{"bad variable", "task.toml", head + "[environment]\nenv = {\"A=B\" = \"x\"}", ErrInvalid, "not a variable"},
		{"relative workdir", "task.toml", head + "[environment]\nworkdir = \"app\"", ErrInvalid, "workdir"},
		{"shared verifier", "task.toml", "artifacts = [\"/app/a\"]\n[verifier]\nenvironment_mode = \"shared\"", ErrUnsupported, "environment_mode"},
		{"default verifier", "task.toml", "artifacts = [\"/app/a\"]\n", ErrUnsupported, "environment_mode"},
		{"unknown verifier", "task.toml", "artifacts = [\"/app/a\"]\n[verifier]\nenvironment_mode = \"x\"", ErrInvalid, "environment_mode"},

		{"no artifacts", "task.toml", "[verifier]\nenvironment_mode = \"separate\"", ErrInvalid, "artifacts is empty"},
		{"relative artifact", "task.toml", strings.Replace(head, "/app/a", "app/a", 1), ErrInvalid, "not an absolute path"},
		{"climbing artifact", "task.toml", strings.Replace(head, "/app/a", "/app/../logs/verifier", 1), ErrInvalid, "not an absolute path"},
		{"forged reward", "task.toml", strings.Replace(head, "/app/a", "/logs/verifier/reward.json", 1), ErrInvalid, "its own reward"},
		{"directory over the reward", "task.toml", strings.Replace(head, "/app/a", "/logs", 1), ErrInvalid, "its own reward"},
		{"the whole root", "task.toml", strings.Replace(head, "/app/a", "/", 1), ErrInvalid, "its own reward"},
		{"forged tests", "task.toml", strings.Replace(head, "/app/a", "/tests/test.sh", 1), ErrInvalid, "replace the tests"},
		{"artifact twice", "task.toml", strings.Replace(head, "\"/app/a\"", "\"/app/a\", \"/app/a/\"", 1), ErrInvalid, "listed twice"},
		{"artifact elsewhere", "task.toml", strings.Replace(head, "\"/app/a\"", "{source = \"/app/a\", destination = \"b\"}", 1), ErrUnsupported, "artifacts[0].destination"},
		{"artifact number", "task.toml", strings.Replace(head, "\"/app/a\"", "1", 1), ErrInvalid, "not a path"},

		{"run", "environment/Dockerfile", "FROM a\nRUN apt-get \\\n install x", ErrUnsupported, "line 2: RUN is not supported"},
		{"user", "environment/Dockerfile", "FROM a\nuser x", ErrUnsupported, "USER is not supported"},
		{"no from", "environment/Dockerfile", "# nothing\n", ErrInvalid, "no FROM"},
		{"late from", "environment/Dockerfile", "WORKDIR /a\nFROM a", ErrInvalid, "WORKDIR before FROM"},
		{"stages", "environment/Dockerfile", "FROM a AS b\nFROM c", ErrUnsupported, "second FROM"},
		{"platform", "environment/Dockerfile", "FROM --platform=x a", ErrUnsupported, "--platform=x"},
		{"copy from", "environment/Dockerfile", "FROM a\nCOPY --from=b x y", ErrUnsupported, "--from=b"},
		{"copy list", "environment/Dockerfile", "FROM a\nCOPY [\"x\", \"y\"]", ErrUnsupported, "list"},
		{"copy heredoc", "environment/Dockerfile", "FROM a\nCOPY <<E /x", ErrUnsupported, "here-document"},
		{"copy wildcard", "environment/Dockerfile", "FROM a\nCOPY f* /x", ErrUnsupported, "wildcards"},
		{"copy file", "environment/Dockerfile", "FROM a\nCOPY files/F2 /x", ErrUnsupported, "only directories"},
		{"copy missing", "environment/Dockerfile", "FROM a\nCOPY gone /x", ErrUnsupported, "no such directory"},
		{"copy outside", "environment/Dockerfile", "FROM a\nCOPY ../tests /x", ErrInvalid, "leaves the build context"},
		{"copy one word", "environment/Dockerfile", "FROM a\nCOPY files", ErrInvalid, "COPY wants"},
		{"unset variable", "environment/Dockerfile", "FROM a\nENV A=$B", ErrInvalid, "$B is not set"},
		{"default value", "environment/Dockerfile", "FROM a\nENV A=${B:-c}", ErrUnsupported, "only $NAME"},
		{"open quote", "environment/Dockerfile", "FROM a\nENV A=\"b", ErrInvalid, "not closed"},
		{"empty env", "environment/Dockerfile", "FROM a\nENV", ErrInvalid, "ENV sets nothing"},
		{"odd env", "environment/Dockerfile", "FROM a\nENV A=1 B", ErrInvalid, "want NAME=value"},

		{"verifier run", "tests/Dockerfile", "FROM a\nRUN x", ErrUnsupported, "tests/Dockerfile: line 2: RUN"},
		{"verifier without tests", "tests/Dockerfile", "FROM a\nWORKDIR /app", ErrInvalid, "nothing puts test.sh"},
		{"verifier with a reward", "tests/Dockerfile", "FROM a\nCOPY . /tests\nCOPY . /logs/verifier", ErrInvalid, "reward of its own"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			files := goodFiles()
			files[c.file] = c.text
			if c.text == "" {
				delete(files, c.file)
			}
			dir := write(t, t.TempDir(), files)
			_, err := Load(dir)
			require.ErrorIs(t, err, c.kind)
			require.ErrorContains(t, err, c.says)
			require.ErrorContains(t, err, dir)
			require.NotContains(t, err.Error(), "\n", "one sentence")
		})
	}
}

func TestLinksAreRefused(t *testing.T) {
	dir := write(t, t.TempDir(), goodFiles())
	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(dir, "environment/files/F3")))
	_, err := Load(dir)
	require.ErrorIs(t, err, ErrUnsupported)
	require.ErrorContains(t, err, "environment/files/F3 is a symbolic link")
}

func TestMissingDirectory(t *testing.T) {
	_, err := Load(filepath.Join(t.TempDir(), "gone"))
	require.ErrorIs(t, err, ErrNotFound)
}

// TestDigest checks that equal content gives equal digests wherever it lies,
// and that every byte, path and executable bit counts where it should.
func TestDigest(t *testing.T) {
	load := func(dir string) *Task {
		got, err := Load(dir)
		require.NoError(t, err)
		return got
	}
	base := load(write(t, filepath.Join(t.TempDir(), "one"), goodFiles()))
	again := load(write(t, filepath.Join(t.TempDir(), "two"), goodFiles()))
	require.Equal(t, base.Digest, again.Digest)
	require.Equal(t, base.AgentTemplate().Digest, again.AgentTemplate().Digest)
	require.Equal(t, base.VerifierTemplate().Digest, again.VerifierTemplate().Digest)

	for name := range goodFiles() {
		files := goodFiles()
		files[name] += "\n"
		got := load(write(t, t.TempDir(), files))
		require.NotEqual(t, base.Digest, got.Digest, name)
		require.Equal(t, strings.HasPrefix(name, "environment/files"), base.AgentTemplate().Digest != got.AgentTemplate().Digest, name)
		require.Equal(t, strings.HasPrefix(name, "tests/"), base.VerifierTemplate().Digest != got.VerifierTemplate().Digest, name)
	}
	dir := write(t, t.TempDir(), goodFiles())
	require.NoError(t, os.Chmod(filepath.Join(dir, "environment/files/F2"), 0o755))
	got := load(dir)
	require.NotEqual(t, base.Digest, got.Digest)
	require.NotEqual(t, base.AgentTemplate().Digest, got.AgentTemplate().Digest)

	require.NoError(t, os.Chmod(filepath.Join(dir, "environment/files/F2"), 0o644))
	require.Equal(t, base.Digest, load(dir).Digest)
	require.NoError(t, os.Rename(filepath.Join(dir, "environment/files/F2"), filepath.Join(dir, "environment/files/F3")))
	require.NotEqual(t, base.Digest, load(dir).Digest)
	require.NoError(t, os.Rename(filepath.Join(dir, "environment/files/F3"), filepath.Join(dir, "environment/files/F2")))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "environment/files/empty"), 0o755))
	require.NotEqual(t, base.Digest, load(dir).Digest)

	// Where a layer goes and what commands see are part of the template.
	for _, text := range []string{
		"FROM debian:12-slim\nWORKDIR /app\nCOPY files/ /elsewhere/\n",
		"FROM debian:12-slim\nWORKDIR /b\nCOPY files/ /app/\n",
		"FROM debian:12-slim\nWORKDIR /app\nCOPY files/ /app/\nENV A=b\n",
	} {
		files := goodFiles()
		files["environment/Dockerfile"] = text
		require.NotEqual(t, base.AgentTemplate().Digest, load(write(t, t.TempDir(), files)).AgentTemplate().Digest)
	}
}
