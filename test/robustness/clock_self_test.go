package robustness

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const clockProgram = `package main

import (
	"fmt"
	"os"
	"time"
)

func main() {
	a := time.Now()
	if len(os.Args) > 1 {
		if err := os.WriteFile(os.Args[1], []byte("7200"), 0o644); err != nil {
			panic(err)
		}
	}
	<-time.After(300 * time.Millisecond)
	b := time.Now()
	fmt.Println("wall", b.Round(0).Sub(a.Round(0)) > time.Hour, "monotonic", b.Sub(a) > time.Hour)
}
`

// The clock that the chaos run sets moves the wall clock of a running process and nothing else.
func TestSlewedClock(t *testing.T) {
	if os.Getenv(longForm) == "" {
		t.Skipf("SKIPPED: it compiles the standard library anew; %s=1 runs it", longForm)
	}
	dir := t.TempDir()
	flag, err := slewed(dir)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(clockProgram), 0o644))
	require.NoError(t, command("go", "build", flag, "-o", filepath.Join(dir, "clock"), filepath.Join(dir, "main.go")))
	for args, want := range map[string]string{"": "wall false monotonic false", filepath.Join(dir, "by"): "wall true monotonic false"} {
		cmd := exec.Command(filepath.Join(dir, "clock"), strings.Fields(args)...)
		cmd.Env = append(os.Environ(), clockEnv+"="+filepath.Join(dir, "by"))
		out, err := cmd.Output()
		require.NoError(t, err)
		require.Equal(t, want, strings.TrimSpace(string(out)))
	}
}
