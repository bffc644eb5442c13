package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rlfleet/rlfleet/test/bench/figure"
	"github.com/rlfleet/rlfleet/test/bench/load"
)

// connections are shared by the clients, of either system.
const connections = 16

// grants compares grants a second with puts a second to etcd, three real
// processes each: both clusters run all the time and are loaded in turns, and
// the ratio is the median of the rounds'.
func (b *bench) grants(ctx context.Context) ([]figure.Line, error) {
	ours, err := b.cluster(ctx)
	if err != nil {
		return nil, err
	}
	theirs, err := b.startEtcd(ctx)
	defer func() {
		for _, p := range theirs.nodes {
			p.stop()
		}
	}()
	if err != nil {
		return nil, err
	}
	var one, many, thousand, peaks []float64
	for round := range b.count(3, 1) {
		rate := map[string]float64{}
		for _, l := range []struct {
			name, system   string
			clients, units int
		}{
			{"puts64", "etcd", 64, 1},
			{"grants64", "rlfleet", 64, 1},
			{"episodes64", "rlfleet", 64, 16},
			{"puts1000", "etcd", 1000, 1},
			{"grants1000", "rlfleet", 1000, 1},
		} {
			addresses, nodes := ours.addresses(), ours.processes()
			if l.system == "etcd" {
				addresses, nodes = theirs.addresses, theirs.nodes
			}
			used := processorTime(nodes)
			f, err := b.load(ctx, l.system, addresses, "-run", fmt.Sprint(l.name, "-", round, "-", time.Now().UnixMilli()),
				"-connections", fmt.Sprint(connections), "-clients", fmt.Sprint(l.clients), "-units", fmt.Sprint(l.units))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", l.name, err)
			}
			rate[l.name] = f.Rate()
			used = processorTime(nodes) - used // the warm-up and the run's making are in it, so that it is a little too much
			b.note("%s: %.0f/s, p50 %.1f ms, p99 %.1f ms; %.0f µs of the nodes' processors an operation", l.name, f.Rate(), f.P50, f.P99, used.Seconds()*1e6/float64(f.Ops))
		}
		one = append(one, rate["grants64"]/rate["puts64"])
		many = append(many, rate["episodes64"]/rate["puts64"])
		thousand = append(thousand, rate["grants1000"]/rate["puts1000"])
		peaks = append(peaks, rate["grants64"])
	}
	b.peak = median(peaks)
	return []figure.Line{
		figure.New("grants_to_puts_64", median(one), "ratio", figure.AtLeast(1)),
		figure.New("grants_to_puts_1000", median(thousand), "ratio", figure.AtLeast(1)),
		figure.New("episodes16_to_puts_64", median(many), "ratio", figure.AtLeast(3)),
	}, nil
}

// etcd is a running cluster of it.
type etcd struct {
	nodes     []*process
	addresses []string
}

// startEtcd starts three nodes with the settings that etcd ships. What was started is returned in any case.
func (b *bench) startEtcd(ctx context.Context) (c etcd, err error) {
	dir := filepath.Join(b.work, "etcd")
	if err := os.RemoveAll(dir); err != nil {
		return c, err
	}
	var peers, cluster []string
	for i := range 3 {
		p, err := freeAddress()
		if err != nil {
			return c, err
		}
		peers = append(peers, p)
		cluster = append(cluster, fmt.Sprintf("e%d=https://%s", i+1, p))
	}
	for i, peer := range peers {
		name := fmt.Sprint("e", i+1)
		if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
			return c, err
		}
		at, err := freeAddress()
		if err != nil {
			return c, err
		}
		web, err := freeAddress()
		if err != nil {
			return c, err
		}
		p, err := start(filepath.Join(dir, name+".log"), b.etcd, "node", "-name", name, "-dir", filepath.Join(dir, name),
			"-client", at, "-http", web, "-peer", peer, "-cluster", strings.Join(cluster, ","), "-tls", b.tls("node"))
		if err != nil {
			return c, err
		}
		c.nodes, c.addresses = append(c.nodes, p), append(c.addresses, at)
	}
	err = until(ctx, startWithin, func(ctx context.Context) error { // a short load finds out
		_, err := b.load(ctx, "etcd", c.addresses, "-connections", "1", "-clients", "1", "-warm", "0s", "-for", "50ms")
		return err
	})
	if err != nil {
		err = errors.Join(err, lastWords(filepath.Join(dir, "e1.log")))
	}
	return c, err
}

// load drives a system from a process of its own, which drives both alike.
func (b *bench) load(ctx context.Context, system string, addresses []string, args ...string) (f load.Figures, err error) {
	if b.quick {
		args = append([]string{"-for", "500ms"}, args...)
	}
	args = append([]string{"load", "-system", system, "-addresses", strings.Join(addresses, ","), "-tls", b.tls("client")}, args...)
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, b.etcd, args...)
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return f, fmt.Errorf("load: %w: %s", err, bytes.TrimSpace(said.Bytes()))
	}
	if err := json.Unmarshal(out, &f); err != nil {
		return f, fmt.Errorf("load: %w", err)
	}
	if f.Ops == 0 {
		return f, errors.New("load: nothing was answered in time")
	}
	return f, nil
}

// median of what was measured; of an even number the higher of the two in the middle.
func median(x []float64) float64 { return slices.Sorted(slices.Values(x))[len(x)/2] }
