package envpool

import (
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// Config describes a host.
type Config struct {
	MaxAgents    int // sandboxes leased to agents at one time
	MaxVerifiers int // sandboxes leased to verifiers at one time

	WarmLow  int // free sandboxes made ahead of claims
	WarmHigh int // free sandboxes kept after their release

	MaxTemplates     int   // templates and snapshots kept; the least recently used go first
	MaxTemplateBytes int64 // of all of them

	Limits Limits // what a claim gets where it asks for none

	// RememberFences is how many ended resources keep their fence, so that a
	// call that was delayed past the release is still refused.
	RememberFences int

	StartTimeout time.Duration // to make a sandbox
	ScrubTimeout time.Duration // to reset one; afterwards it is destroyed
	BuildTimeout time.Duration // to make a template or a snapshot

	Log *slog.Logger // nil: none
}

// DefaultConfig suits a machine of two cores.
func DefaultConfig() Config {
	return Config{
		MaxAgents: 16, MaxVerifiers: 8,
		WarmLow: 4, WarmHigh: 24,
		MaxTemplates: 4096, MaxTemplateBytes: 8 << 30,
		Limits: Limits{
			CPU: 1, Memory: 256 << 20, Pids: 64, Disk: 256 << 20, Inodes: 10000, OpenFiles: 256,
			Output: 64 << 10, Wall: 30 * time.Second,
		},
		RememberFences: 1 << 16,
		StartTimeout:   20 * time.Second, ScrubTimeout: 10 * time.Second, BuildTimeout: 5 * time.Minute,
	}
}

// Validate reports every field that cannot be, in one error.
func (c Config) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("envpool: "+format, args...))
		}
	}
	check(c.MaxAgents >= 0 && c.MaxVerifiers >= 0, "MaxAgents %d and MaxVerifiers %d must not be negative", c.MaxAgents, c.MaxVerifiers)
	check(c.MaxAgents+c.MaxVerifiers > 0, "MaxAgents and MaxVerifiers are both 0")
	check(c.WarmLow >= 0 && c.WarmLow <= c.WarmHigh, "WarmLow %d must lie between 0 and WarmHigh %d", c.WarmLow, c.WarmHigh)
	check(c.MaxTemplates > 0, "MaxTemplates %d must be positive", c.MaxTemplates)
	check(c.MaxTemplateBytes > 0, "MaxTemplateBytes %d must be positive", c.MaxTemplateBytes)
	check(c.RememberFences > 0, "RememberFences %d must be positive", c.RememberFences)
	check(c.StartTimeout > 0 && c.ScrubTimeout > 0 && c.BuildTimeout > 0, "timeouts must be positive")
	if err := c.Limits.validate(); err != nil {
		errs = append(errs, err)
	}
	l := c.Limits
	check(l.CPU > 0 && l.Memory > 0 && l.Pids > 0 && l.Disk > 0 && l.Inodes > 0 && l.OpenFiles > 0 && l.Output > 0 && l.Wall > 0,
		"every default limit must be positive: %+v", l)
	return errors.Join(errs...)
}

// maxOutput bounds what may be kept of one stream; it travels in one message.
const maxOutput = 16 << 20

// validate refuses limits that make no sandbox.
func (l Limits) validate() error {
	switch {
	case l.CPU < 0 || l.Memory < 0 || l.Pids < 0 || l.Disk < 0 || l.Inodes < 0 || l.OpenFiles < 0 || l.Output < 0 || l.Wall < 0:
		return fmt.Errorf("envpool: a limit is negative: %+v: %w", l, ErrInvalid)
	case l.Output > maxOutput:
		return fmt.Errorf("envpool: output limit %d is over %d: %w", l.Output, maxOutput, ErrInvalid)
	case l.Memory > 0 && l.Memory < 8<<20:
		return fmt.Errorf("envpool: memory limit %d is under 8Mi, too little for a shell: %w", l.Memory, ErrInvalid)
	case l.OpenFiles > 0 && l.OpenFiles < 8:
		return fmt.Errorf("envpool: open files limit %d is under 8, too little for a shell: %w", l.OpenFiles, ErrInvalid)
	}
	return nil
}

// or fills what is zero from d.
func (l Limits) or(d Limits) Limits {
	if l.CPU == 0 {
		l.CPU = d.CPU
	}
	if l.Memory == 0 {
		l.Memory = d.Memory
	}
	if l.Pids == 0 {
		l.Pids = d.Pids
	}
	if l.Disk == 0 {
		l.Disk = d.Disk
	}
	if l.Inodes == 0 {
		l.Inodes = d.Inodes
	}
	if l.OpenFiles == 0 {
		l.OpenFiles = d.OpenFiles
	}
	if l.Output == 0 {
		l.Output = d.Output
	}
	if l.Wall == 0 {
		l.Wall = d.Wall
	}
	return l
}
