// Command etcd is the part of the coordinator's benchmark that knows etcd: a
// node of an etcd cluster, and the load that drives etcd and rlfleet alike. It
// is a module of its own, so that rlfleet does not depend on what etcd needs.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "etcd:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("say what to do: node or load")
	}
	fs := flag.NewFlagSet(args[0], flag.ContinueOnError)
	switch args[0] {
	case "node":
		var c nodeConfig
		fs.StringVar(&c.name, "name", "", "of the node")
		fs.StringVar(&c.dir, "dir", "", "its data directory")
		fs.StringVar(&c.client, "client", "", "address for gRPC clients, host:port")
		fs.StringVar(&c.http, "http", "", "address for HTTP clients, host:port")
		fs.StringVar(&c.peer, "peer", "", "address for other nodes, host:port")
		fs.StringVar(&c.cluster, "cluster", "", "all nodes: name=https://peer,...")
		fs.StringVar(&c.tls, "tls", "", "directory with ca.pem, cert.pem and key.pem")
		if err := fs.Parse(args[1:]); err != nil {
			return err
		}
		return serve(ctx, c)
	case "load":
		c := defaultLoad()
		var addresses string
		fs.StringVar(&c.system, "system", "", "etcd or rlfleet")
		fs.StringVar(&addresses, "addresses", "", "of the nodes")
		fs.StringVar(&c.tls, "tls", "", "directory with ca.pem, cert.pem and key.pem")
		fs.StringVar(&c.run, "run", "", "rlfleet: name of the run that is made")
		fs.StringVar(&c.profile, "profile", "", "write a CPU profile of the load itself to this file")
		fs.IntVar(&c.connections, "connections", c.connections, "that the clients share")
		fs.IntVar(&c.units, "units", c.units, "rlfleet: episodes of one request")
		fs.IntVar(&c.Clients, "clients", c.Clients, "at a time")
		fs.DurationVar(&c.Warm, "warm", c.Warm, "before it counts")
		fs.DurationVar(&c.For, "for", c.For, "how long it counts")
		fs.Float64Var(&c.Rate, "rate", 0, "operations a second; 0 is as many as there can be")
		if err := fs.Parse(args[1:]); err != nil {
			return err
		}
		c.addresses = strings.Split(addresses, ",")
		f, err := c.drive(ctx)
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(f)
	}
	return fmt.Errorf("%q is neither node nor load", args[0])
}
