package robustness

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// clockEnv names the file that says by how many seconds the wall clock of a
// process is wrong. Programs built with slewed look at it ten times a second.
const clockEnv = "RLFLEET_CHAOS_CLOCK"

// clockSource is added to the standard library's package time. The monotonic
// reading stays right, as it does on a machine whose clock is set.
const clockSource = `package time

import (
	"sync/atomic"
	"syscall"
)

var clockBy atomic.Int64 // seconds

// clockOffset is called on the scheduler's own stack, too: it must do nothing else.
func clockOffset() int64 { return clockBy.Load() }

func init() {
	if path, found := syscall.Getenv("` + clockEnv + `"); found {
		go func() {
			for ; ; Sleep(100 * Millisecond) {
				clockBy.Store(readClock(path))
			}
		}()
	}
}

func readClock(path string) int64 {
	f, err := open(path)
	if err != nil {
		return 0
	}
	defer closefd(f)
	var b [32]byte
	n, err := read(f, b[:])
	if err != nil {
		return 0
	}
	var by, sign int64 = 0, 1
	for _, c := range b[:n] {
		if c == '-' {
			sign = -1
		} else if c >= '0' && c <= '9' {
			by = 10*by + int64(c-'0')
		}
	}
	return sign * by
}
`

// slewed returns the build flag with which a program's wall clock can be set
// from outside. Go programs read the clock without the C library, so what
// usually fakes it does not reach them, and the machine's own clock is not ours.
func slewed(dir string) (string, error) {
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("clock: %w", err)
	}
	src := filepath.Join(strings.TrimSpace(string(out)), "src", "time")
	b, err := os.ReadFile(filepath.Join(src, "time.go"))
	if err != nil {
		return "", fmt.Errorf("clock: %w", err)
	}
	const call = "sec, nsec, mono := runtimeNow()\n\tif mono == 0 {"
	if strings.Count(string(b), call) != 1 {
		return "", fmt.Errorf("clock: %s does not read the clock as this test expects", filepath.Join(src, "time.go"))
	}
	changed := strings.Replace(string(b), call, "sec, nsec, mono := runtimeNow()\n\tsec += clockOffset()\n\tif mono == 0 {", 1)
	overlay := map[string]map[string]string{"Replace": {
		filepath.Join(src, "time.go"):      filepath.Join(dir, "time.go.txt"),
		filepath.Join(src, "zz_slewed.go"): filepath.Join(dir, "slewed.go.txt"),
	}}
	j, err := json.Marshal(overlay)
	if err != nil {
		return "", fmt.Errorf("clock: %w", err)
	}
	for name, text := range map[string]string{"time.go.txt": changed, "slewed.go.txt": clockSource, "overlay.json": string(j)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return "", fmt.Errorf("clock: %w", err)
		}
	}
	return "-overlay=" + filepath.Join(dir, "overlay.json"), nil
}
