package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/rlfleet/rlfleet/envpool/bubblewrap"
)

// finding is one line of the doctor.
type finding struct {
	Check string `json:"check"`
	OK    bool   `json:"ok"`
	Says  string `json:"says"`
}

func doctorCommand() *cobra.Command {
	var at storageFlag
	c := &cobra.Command{
		Use: "doctor", Short: "Say whether this machine can run rlfleet, and the one command that mends what it lacks.", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := at.check(); err != nil {
				return err
			}
			all := diagnose(at.dir())
			bad := false
			for _, f := range all {
				bad = bad || !f.OK
			}
			if at.output == "json" {
				if err := printJSON(cmd.OutOrStdout(), all); err != nil {
					return err
				}
			} else {
				for _, f := range all {
					mark := "ok  "
					if !f.OK {
						mark = "BAD "
					}
					fmt.Fprintf(cmd.OutOrStdout(), "%s %-12s %s\n", mark, f.Check, f.Says)
				}
			}
			if bad {
				return errSilent
			}
			return nil
		},
	}
	at.add(c)
	return c
}

func diagnose(storage string) []finding {
	out := []finding{{"machine", true, fmt.Sprintf("%d cores, %s/%s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH)}}
	if err := bubblewrap.Check(); err != nil {
		out = append(out, finding{"bubblewrap", false, err.Error()})
	} else {
		out = append(out, finding{"bubblewrap", true, "sandboxes can be made"})
		out = append(out, advisories(storage)...)
	}
	for _, name := range []string{"rlguest", "rlfleetd"} {
		out = append(out, beside(name))
	}
	return append(out, storageFinding(storage))
}

// advisories name the limits that sandboxes of this machine do not have, one a line.
func advisories(storage string) []finding {
	dir, err := filepath.Abs(filepath.Join(storage, "host"))
	if err != nil {
		return []finding{{"limits", false, err.Error()}}
	}
	said, err := bubblewrap.Advisory(bubblewrap.DefaultConfig(dir))
	if err != nil {
		return []finding{{"limits", false, err.Error()}}
	}
	var out []finding
	for _, a := range said {
		out = append(out, finding{"limits", true, a})
	}
	return out
}

// beside looks for a program where rlctl is.
func beside(name string) finding {
	self, err := os.Executable()
	if err != nil {
		return finding{name, false, err.Error()}
	}
	path := filepath.Join(filepath.Dir(self), name)
	if _, err := os.Stat(path); err != nil {
		return finding{name, false, "there is no " + path + "; run: make build"}
	}
	return finding{name, true, path}
}

func storageFinding(dir string) finding {
	at := dir
	for { // the nearest directory that is there
		if _, err := os.Stat(at); err == nil || at == "." || at == "/" {
			break
		}
		at = filepath.Dir(at)
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(at, &fs); err != nil {
		return finding{"storage", false, fmt.Sprintf("%s: %v", at, err)}
	}
	free := fs.Bavail * uint64(fs.Bsize)
	f := finding{"storage", true, fmt.Sprintf("%s has %d MiB free", at, free>>20)}
	if free < 256<<20 {
		f.OK, f.Says = false, f.Says+"; a run wants 256 MiB: free space or name another with --storage"
	}
	if probe, err := os.CreateTemp(at, ".rlctl-*"); err != nil {
		f.OK, f.Says = false, fmt.Sprintf("%s cannot be written: %v", at, err)
	} else {
		_ = probe.Close()
		_ = os.Remove(probe.Name())
	}
	return f
}
