package e2e

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A cancelled run ends what runs in its sandboxes, by the renewals of those who
// hold them: rlctl run, which would end the processes, is stopped meanwhile.
func TestCancelReachesTheSandbox(t *testing.T) {
	programs, dir := setUp(t), t.TempDir()
	writeTrials(t, dir+"/hold", []trial{{name: "holds", work: "sleep 1000.77"}})
	spec := writeSpec(t, dir, obedientPolicy(t), strings.Replace(env("hold", "1.0", 4, 3, 1, "replace"), "timeout: 3s", "timeout: 50s", 1))
	r := begin(t, programs, dir, "run", spec, "--processes")
	r.until(t, "command in a sandbox", func() bool { return len(left("1000.77")) > 0 })
	r.signal(t, syscall.SIGSTOP)
	defer func() { _ = r.cmd.Process.Signal(syscall.SIGCONT) }()
	said, err := rlctl(t, programs, dir, "runs", "cancel", "trials-1")
	require.NoError(t, err, said)
	at := time.Now()
	r.until(t, "end of the commands", func() bool { return len(left("1000.77")) == 0 })
	t.Logf("gone after %s; the renewals of a holder are 2.5 s apart", time.Since(at).Round(100*time.Millisecond))
	require.Less(t, time.Since(at), 10*time.Second, "a TTL, which nothing may outlast")
	r.signal(t, syscall.SIGCONT)
	r.wait(t)
	clean(t, programs, dir)
}
