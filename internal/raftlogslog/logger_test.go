package raftlogslog

import (
	"bytes"
	"log/slog"
	"testing"

	hclog "github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
)

func TestLevelsAndArguments(t *testing.T) {
	var out bytes.Buffer
	h := slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
	l := New(slog.New(h)).Named("raft").With("node", "n1")
	l.Debug("not this")
	l.Info("elected", "term", 3, "servers", hclog.Fmt("%+v", []int{1}))
	l.Warn("slow")
	l.Error("broken", "error", "x")
	require.Equal(t, "level=INFO msg=elected node=n1 term=3 servers=[1]\n"+
		"level=WARN msg=slow node=n1\n"+
		"level=ERROR msg=broken node=n1 error=x\n", out.String())
	require.Equal(t, "raft.wal", l.Named("wal").Name())
	require.Equal(t, []any{"node", "n1"}, l.ImpliedArgs())
	require.False(t, l.IsDebug())
}

func TestHandlerLevelIsRespected(t *testing.T) {
	var out bytes.Buffer
	l := New(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelError})))
	l.Info("quiet")
	l.Warn("quiet")
	require.Empty(t, out.String())
}

func TestStandardWriter(t *testing.T) {
	var out bytes.Buffer
	l := New(slog.New(slog.NewTextHandler(&out, nil)))
	l.StandardLogger(nil).Print("from a library")
	require.Contains(t, out.String(), `msg="from a library"`)
}
