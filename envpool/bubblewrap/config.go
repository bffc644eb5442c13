package bubblewrap

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/rlfleet/rlfleet/envpool"
)

// Config describes the tier on one machine.
type Config struct {
	// DataDir is the tier's own; what an earlier, crashed host left in it is
	// removed. One host at a time may have it.
	DataDir string
	// Guest is the rlguest program. Empty: beside the running program.
	Guest string
	// Bwrap is the bubblewrap program. Empty: looked up on PATH.
	Bwrap string
	// UIDBase is the first of the unprivileged user ids that sandboxes run
	// under when the host is root: one each, counted up.
	UIDBase int
	// NoCgroups leaves limits to what a process may set for itself.
	NoCgroups bool

	Log *slog.Logger // nil: none
}

// DefaultConfig uses the given directory and finds both programs itself.
func DefaultConfig(dataDir string) Config { return Config{DataDir: dataDir, UIDBase: 100000} }

// Validate reports every field that cannot be, in one error.
func (c Config) Validate() error {
	var errs []error
	if !filepath.IsAbs(c.DataDir) {
		errs = append(errs, fmt.Errorf("bubblewrap: DataDir %q is not absolute", c.DataDir))
	}
	if c.UIDBase <= 0 {
		errs = append(errs, fmt.Errorf("bubblewrap: UIDBase %d must be positive", c.UIDBase))
	}
	return errors.Join(errs...)
}

// CheckPrograms reports a program that is not there.
func (c Config) CheckPrograms() error {
	_, err := c.find()
	return err
}

// find fills in the programs.
func (c Config) find() (Config, error) {
	var err error
	if c.Bwrap == "" {
		if c.Bwrap, err = exec.LookPath("bwrap"); err != nil {
			return c, errNoBwrap
		}
	}
	if c.Guest == "" {
		c.Guest, err = findGuest()
	} else if _, err = os.Stat(c.Guest); err != nil {
		err = fmt.Errorf("%w; run make build, or name the one it made", err)
	}
	if err != nil {
		return c, fmt.Errorf("bubblewrap: rlguest: %w: %w", envpool.ErrEnvironment, err)
	}
	return c, nil
}

func findGuest() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	beside := filepath.Join(filepath.Dir(self), "rlguest")
	if _, err := os.Stat(beside); err != nil {
		return "", fmt.Errorf("it belongs beside %s; run: make build: %w", self, err)
	}
	return beside, nil
}
