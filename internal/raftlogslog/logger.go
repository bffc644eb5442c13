// Package raftlogslog lets the raft libraries, which log through hclog, log through slog.
package raftlogslog

import (
	"fmt"
	"io"
	"log"
	"log/slog"

	hclog "github.com/hashicorp/go-hclog"
)

// New returns a logger that passes records of INFO and above to l; what is
// below is dropped, whatever l lets through.
func New(l *slog.Logger) hclog.Logger { return &logger{slog: l} }

type logger struct {
	slog *slog.Logger
	name string
	args []any
}

var _ hclog.Logger = (*logger)(nil)

func (l *logger) Log(at hclog.Level, msg string, args ...any) {
	if at < hclog.Info {
		return
	}
	for i, a := range args {
		if f, ok := a.(hclog.Format); ok && len(f) > 0 { // a lazy Sprintf
			if format, ok := f[0].(string); ok {
				args[i] = fmt.Sprintf(format, f[1:]...)
			}
		}
	}
	switch at {
	case hclog.Error:
		l.slog.Error(msg, args...)
	case hclog.Warn:
		l.slog.Warn(msg, args...)
	default:
		l.slog.Info(msg, args...)
	}
}

func (l *logger) Trace(msg string, args ...any) { l.Log(hclog.Trace, msg, args...) }
func (l *logger) Debug(msg string, args ...any) { l.Log(hclog.Debug, msg, args...) }
func (l *logger) Info(msg string, args ...any)  { l.Log(hclog.Info, msg, args...) }
func (l *logger) Warn(msg string, args ...any)  { l.Log(hclog.Warn, msg, args...) }
func (l *logger) Error(msg string, args ...any) { l.Log(hclog.Error, msg, args...) }

func (l *logger) IsTrace() bool { return false }
func (l *logger) IsDebug() bool { return false }
func (l *logger) IsInfo() bool  { return true }
func (l *logger) IsWarn() bool  { return true }
func (l *logger) IsError() bool { return true }

func (l *logger) ImpliedArgs() []any { return l.args }

func (l *logger) With(args ...any) hclog.Logger {
	return &logger{slog: l.slog.With(args...), name: l.name, args: append(append([]any(nil), l.args...), args...)}
}

func (l *logger) Name() string { return l.name }

func (l *logger) Named(name string) hclog.Logger {
	if l.name != "" {
		name = l.name + "." + name
	}
	return l.ResetNamed(name)
}

func (l *logger) ResetNamed(name string) hclog.Logger {
	return &logger{slog: l.slog, name: name, args: l.args}
}

// SetLevel does nothing: the level belongs to the slog handler.
func (l *logger) SetLevel(hclog.Level) {}

func (l *logger) GetLevel() hclog.Level { return hclog.Info }

func (l *logger) StandardLogger(o *hclog.StandardLoggerOptions) *log.Logger {
	return log.New(l.StandardWriter(o), "", 0)
}

func (l *logger) StandardWriter(*hclog.StandardLoggerOptions) io.Writer {
	return slog.NewLogLogger(l.slog.Handler(), slog.LevelInfo).Writer()
}
