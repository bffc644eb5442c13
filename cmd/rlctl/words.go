package main

import (
	"strings"

	"github.com/rlfleet/rlfleet/cmd/internal/roles"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// word is the part of an enumeration's name that people read.
func word(name, prefix string) string { return strings.ToLower(strings.TrimPrefix(name, prefix)) }

func nodeState(n *raftlog.Node) string       { return word(n.State.String(), "NODE_STATE_") }
func episodeState(e *raftlog.Episode) string { return word(e.State.String(), "EPISODE_STATE_") }

func versionState(v *raftlog.PolicyVersion) string { return word(v.State.String(), "VERSION_STATE_") }

// version names the build.
func version() string { return roles.Build() }
