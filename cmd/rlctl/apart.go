package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/rlfleet/rlfleet/cmd/internal/roles"
	"github.com/rlfleet/rlfleet/coordinator/auth"
	"github.com/rlfleet/rlfleet/coordinator/client"
)

// drainWithin is how long a process may take to end in order.
const drainWithin = 30 * time.Second

// apart runs each role as a process of its own.
func (s *session) apart(ctx context.Context) error {
	program, err := s.program()
	if err != nil {
		return err
	}
	logs, err := os.OpenFile(filepath.Join(s.storage, "rlfleet.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	defer logs.Close()
	ctx, give := context.WithCancelCause(ctx)
	defer give(nil)
	giveUp := func(err error) { give(givenUp{err}) }
	// The workers end first, then what they work with, then the coordinator.
	reach, err := s.reach()
	if err != nil {
		return err
	}
	if !s.flags.to.named() {
		base, stop := context.WithCancel(context.WithoutCancel(ctx))
		coordinator := roles.NewChildren(program, s.log, logs, giveUp)
		coordinator.Start(base, roles.Child{Name: "coordinator", Args: []string{"coordinator", "--storage", s.storage}}, drainWithin)
		defer coordinator.Wait()
		defer stop()
		if err := s.awaitCoordinator(ctx); err != nil {
			return err
		}
	}
	return s.withCoordinator(ctx, func(ctx context.Context, _ *client.Client) (func() error, error) {
		workers, services := roles.NewChildren(program, s.log, logs, giveUp), roles.NewChildren(program, s.log, logs, giveUp)
		under, stopServices := context.WithCancel(context.WithoutCancel(ctx))
		for _, c := range s.children(reach, "host", "engine", "publisher") {
			services.Start(under, c, drainWithin)
		}
		for _, c := range s.children(reach, "verifier", "trainer", "rollout") {
			workers.Start(ctx, c, drainWithin)
		}
		return func() error {
			workers.Wait()
			stopServices()
			services.Wait()
			return nil
		}, nil
	})
}

// program finds rlfleetd.
func (s *session) program() (string, error) {
	if s.flags.daemon != "" {
		return s.flags.daemon, nil
	}
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find rlfleetd: %w", err)
	}
	path := filepath.Join(filepath.Dir(self), "rlfleetd")
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("there is no %s: build it with make build, or name it with --rlfleetd", path)
	}
	return path, nil
}

// reach is how the children reach the coordinator, as flags; none for that of the storage.
func (s *session) reach() ([]string, error) {
	to := s.flags.to
	if !to.named() {
		return nil, nil
	}
	addresses, _, err := to.dial()
	if err != nil {
		return nil, err
	}
	out := []string{"--coordinator", strings.Join(addresses, ",")}
	switch dir := or(to.tls, os.Getenv(envTLS)); {
	case to.insecure:
	case dir == "" || !isFile(auth.FilesIn(dir).Cert):
		return nil, usagef("--processes with a token is not possible: the token would show in the list of processes; give --tls DIR")
	default:
		out = append(out, "--tls", dir)
	}
	return out, nil
}

func isFile(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// children returns the processes of some roles.
func (s *session) children(reach []string, names ...string) []roles.Child {
	common := append([]string{"--experiment", s.file, "--run", s.run}, reach...)
	for _, x := range s.flags.sets {
		common = append(common, "--set", x)
	}
	if s.flags.acks != "" {
		common = append(common, "--acks", s.flags.acks)
	}
	if s.flags.guest != "" {
		common = append(common, "--guest", s.flags.guest)
	}
	var out []roles.Child
	for _, role := range names {
		if role != "rollout" {
			out = append(out, roles.Child{Name: role, Args: append([]string{role}, common...)})
			continue
		}
		n := s.plan.Experiment.Spec.Rollout.Workers
		for i := range n {
			args := append([]string{"rollout", "--index", fmt.Sprint(i), "--of", fmt.Sprint(n)}, common...)
			out = append(out, roles.Child{Name: fmt.Sprintf("rollout-%d", i), Args: args})
		}
	}
	return out
}

// awaitCoordinator waits until the coordinator answers on the storage's socket.
func (s *session) awaitCoordinator(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	c, disconnect, err := roles.Connect(ctx, s.storage, "rlctl")
	if err != nil {
		return err
	}
	defer disconnect()
	for {
		st, err := c.Status(ctx)
		if err == nil && st.State == "leader" {
			return nil
		}
		select {
		case <-ctx.Done():
			var failed givenUp
			if errors.As(context.Cause(ctx), &failed) {
				return failed.error
			}
			return errors.Join(fmt.Errorf("the coordinator did not start: see %s", filepath.Join(s.storage, "rlfleet.log")), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
