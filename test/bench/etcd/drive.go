package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/rlfleet/rlfleet/coordinator/auth"
	"github.com/rlfleet/rlfleet/coordinator/client"
	"github.com/rlfleet/rlfleet/test/bench/load"
)

// loadConfig is what is driven, and how.
type loadConfig struct {
	load.Config
	system      string
	addresses   []string
	tls         string
	run         string
	profile     string
	connections int
	units       int
}

func defaultLoad() loadConfig {
	return loadConfig{Config: load.DefaultConfig(64), connections: 16, units: 1}
}

// slack is what preparing and ending a load may take: a system that does not answer must not hang the benchmark.
const slack = 30 * time.Second

// figures are those of the load, and what its own process used for it.
type figures struct {
	load.Figures
	CPU float64 `json:"cpu_seconds"` // of the load's process, preparation included
}

func (c loadConfig) drive(ctx context.Context) (out figures, err error) {
	if c.profile != "" {
		f, err := os.Create(c.profile)
		if err != nil {
			return out, err
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			return out, errors.Join(err, f.Close())
		}
		defer func() {
			pprof.StopCPUProfile()
			err = errors.Join(err, f.Close())
		}()
	}
	ctx, cancel := context.WithTimeout(ctx, c.Warm+c.For+slack)
	defer cancel()
	switch c.system {
	case "etcd":
		out.Figures, err = c.puts(ctx)
	case "rlfleet":
		out.Figures, err = c.grants(ctx)
	default:
		return out, fmt.Errorf("system %q is neither etcd nor rlfleet", c.system)
	}
	var u syscall.Rusage
	err = errors.Join(err, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	out.CPU = time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
	return out, err
}

// puts drives etcd: a put of 64 bytes, about the size of a request for an
// episode, to one of 100,000 keys. Its leader is asked, as the coordinator's is.
func (c loadConfig) puts(ctx context.Context) (load.Figures, error) {
	info := transport.TLSInfo{
		CertFile: filepath.Join(c.tls, "cert.pem"), KeyFile: filepath.Join(c.tls, "key.pem"),
		TrustedCAFile: filepath.Join(c.tls, "ca.pem"), MinVersion: tls.VersionTLS13,
	}
	secure, err := info.ClientConfig()
	if err != nil {
		return load.Figures{}, err
	}
	leader, err := leaderOfEtcd(ctx, c.addresses, secure)
	if err != nil {
		return load.Figures{}, err
	}
	var conns []*clientv3.Client
	defer func() {
		for _, x := range conns {
			_ = x.Close() // there is nothing to lose
		}
	}()
	for range c.connections {
		x, err := clientv3.New(clientv3.Config{Endpoints: []string{leader}, TLS: secure, DialTimeout: 10 * time.Second})
		if err != nil {
			return load.Figures{}, err
		}
		conns = append(conns, x)
	}
	value := strings.Repeat("v", 64)
	each := make([]int, c.Clients)
	return load.Drive(ctx, c.Config, func(ctx context.Context, n int) (int, error) {
		each[n]++
		_, err := conns[n%len(conns)].Put(ctx, fmt.Sprintf("bench/%06d", (each[n]*c.Clients+n)%100_000), value)
		return 1, err
	})
}

// leaderOfEtcd asks the nodes which of them leads.
func leaderOfEtcd(ctx context.Context, addresses []string, secure *tls.Config) (string, error) {
	x, err := clientv3.New(clientv3.Config{Endpoints: addresses, TLS: secure, DialTimeout: 10 * time.Second})
	if err != nil {
		return "", err
	}
	defer x.Close() //nolint:errcheck // there is nothing to lose
	for _, a := range addresses {
		if s, err := x.Status(ctx, a); err == nil && s.Leader == s.Header.MemberId {
			return a, nil
		}
	}
	return "", fmt.Errorf("none of %v leads", addresses)
}

// grants drives the coordinator: a request for episodes of a run that never lacks them.
func (c loadConfig) grants(ctx context.Context) (f load.Figures, err error) {
	creds, err := auth.FilesIn(c.tls).Load(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		return f, err
	}
	dial, err := auth.DialOptions(creds, "")
	if err != nil {
		return f, err
	}
	var clients []*client.Client
	defer func() {
		for _, x := range clients {
			err = errors.Join(err, x.Close())
		}
	}()
	for i := range c.connections {
		cfg := client.DefaultConfig(fmt.Sprint("c", i), c.addresses...)
		cfg.Dial = dial
		cfg.Lanes = c.Clients/c.connections + 4 // and some for what keeps the nodes registered
		x, err := client.New(ctx, cfg)
		if err != nil {
			return f, err
		}
		clients = append(clients, x)
	}
	fleet, err := load.NewFleet(ctx, c.run, clients)
	if err != nil {
		return f, err
	}
	f, err = load.Drive(ctx, c.Config, func(ctx context.Context, n int) (int, error) {
		return fleet.Grant(ctx, n%len(clients), c.units)
	})
	return f, errors.Join(err, fleet.Close(ctx))
}
