package main

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
)

type nodeConfig struct{ name, dir, client, http, peer, cluster, tls string }

// serve runs an etcd node with the settings that etcd ships, until ctx ends.
func serve(ctx context.Context, c nodeConfig) error {
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir = c.name, c.dir
	cfg.InitialCluster, cfg.InitialClusterToken = c.cluster, "bench"
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = at(c.client), at(c.client)
	cfg.ListenClientHttpUrls = at(c.http) // else gRPC goes through net/http, which is slower
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = at(c.peer), at(c.peer)
	cfg.LogLevel, cfg.LogOutputs = "warn", []string{"stderr"}
	info := transport.TLSInfo{
		CertFile: filepath.Join(c.tls, "cert.pem"), KeyFile: filepath.Join(c.tls, "key.pem"),
		TrustedCAFile: filepath.Join(c.tls, "ca.pem"), ClientCertAuth: true,
	}
	cfg.ClientTLSInfo, cfg.PeerTLSInfo = info, info
	cfg.TlsMinVersion = "TLS1.3" // as the coordinator's
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return fmt.Errorf("start node %s: %w", c.name, err)
	}
	defer e.Close()
	select {
	case <-ctx.Done():
		return nil
	case err := <-e.Err():
		return fmt.Errorf("node %s: %w", c.name, err)
	}
}

func at(address string) []url.URL { return []url.URL{{Scheme: "https", Host: address}} }
