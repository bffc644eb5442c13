package main

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/rlfleet/rlfleet/coordinator/auth"
	"github.com/rlfleet/rlfleet/coordinator/client"
)

// The environment that stands for flags which were not given.
const (
	envCoordinator = "RLFLEET_COORDINATOR"
	envTLS         = "RLFLEET_TLS"
	envToken       = "RLFLEET_TOKEN"
)

// reachFlags say where a cluster is and how its caller proves who it is.
type reachFlags struct {
	coordinator string
	tls         string
	ca          string
	token       string
	insecure    bool
}

func (f *reachFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.coordinator, "coordinator", "", "addresses of the coordinator's nodes, HOST:PORT[,HOST:PORT…] (or "+envCoordinator+")")
	c.Flags().StringVar(&f.tls, "tls", "", "directory with ca.pem, cert.pem and key.pem, as cluster certs makes it (or "+envTLS+")")
	c.Flags().StringVar(&f.ca, "ca", "", "the cluster's ca.pem, for use with a token")
	c.Flags().StringVar(&f.token, "token", "", "a token, as cluster token create prints it (or "+envToken+", which other users of this machine cannot see)")
	c.Flags().BoolVar(&f.insecure, "insecure", false, "reach a coordinator on this machine that has no certificates")
}

// named reports whether a cluster was named, by flag or environment.
func (f *reachFlags) named() bool { return or(f.coordinator, os.Getenv(envCoordinator)) != "" }

// dial returns the addresses, and what options make a connection the caller's. There
// are none with --insecure: client.DialOptions has what is needed.
func (f *reachFlags) dial() (addresses []string, options []grpc.DialOption, err error) {
	for a := range strings.SplitSeq(or(f.coordinator, os.Getenv(envCoordinator)), ",") {
		if a = strings.TrimSpace(a); a == "" {
			continue
		}
		if _, port, err := net.SplitHostPort(a); (err != nil || port == "") && !strings.HasPrefix(a, "unix:") {
			return nil, nil, usagef("--coordinator %s: an address is HOST:PORT or unix:PATH", a)
		}
		addresses = append(addresses, a)
	}
	if len(addresses) == 0 {
		return nil, nil, usagef("which coordinator: give --coordinator HOST:PORT[,HOST:PORT…] or %s", envCoordinator)
	}
	if f.insecure {
		return addresses, nil, f.checkInsecure(addresses)
	}
	options, err = f.prove()
	return addresses, options, err
}

// checkInsecure lets nothing through that others could read.
func (f *reachFlags) checkInsecure(addresses []string) error {
	if f.tls != "" || f.ca != "" || f.token != "" {
		return usagef("--insecure goes without --tls, --ca and --token: a coordinator that has no certificates asks for none")
	}
	for _, a := range addresses {
		if !auth.Loopback(a) {
			return usagef("--insecure is for this machine only, and %s is not a loopback address or a Unix socket: use --tls, or --ca with --token", a)
		}
	}
	return nil
}

func (f *reachFlags) prove() ([]grpc.DialOption, error) {
	dir, token := or(f.tls, os.Getenv(envTLS)), or(f.token, os.Getenv(envToken))
	files := auth.Files{CA: f.ca}
	if dir != "" {
		files = auth.FilesIn(dir)
		if _, err := os.Stat(files.Cert); errors.Is(err, fs.ErrNotExist) && token != "" {
			files.Cert, files.Key = "", "" // the directory of somebody who has a token
		}
		files.CA = or(f.ca, files.CA)
	}
	switch {
	case files.CA == "" && token == "":
		return nil, usagef("who are you: give --tls DIR with a certificate, or --ca FILE and --token; --insecure reaches a coordinator on this machine that has no certificates")
	case files.CA == "":
		return nil, usagef("a token is sent to nobody but the coordinator: say how it is recognized, with --ca FILE or --tls DIR")
	case files.Cert == "" && token == "":
		return nil, usagef("--ca says who the coordinator is and not who you are: give --token too, or --tls DIR")
	}
	creds, err := files.Load(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		return nil, err
	}
	return auth.DialOptions(creds, token)
}

// client returns a client of the cluster; connections are made when they are used.
func (f *reachFlags) client(ctx context.Context) (*client.Client, error) {
	addresses, options, err := f.dial()
	if err != nil {
		return nil, err
	}
	cfg := client.DefaultConfig("rlctl", addresses...)
	cfg.Dial = options
	return client.New(ctx, cfg)
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
