package main

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/rlfleet/rlfleet/coordinator/auth"
	"github.com/rlfleet/rlfleet/test/bench/load"
)

func TestBadArguments(t *testing.T) {
	for _, args := range [][]string{nil, {"such"}, {"load", "-such"}, {"load", "-system", "such", "-addresses", "127.0.0.1:1"}} {
		if err := run(t.Context(), args); err == nil {
			t.Errorf("%v is accepted", args)
		}
	}
}

// A node takes puts over TLS from who has a certificate, and ends when it is told to.
func TestPuts(t *testing.T) {
	tls := t.TempDir()
	ca, err := auth.NewCA("test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := ca.IssueTo(tls, auth.Identity{Role: auth.Coordinator, Name: "node"}, []string{"127.0.0.1"}, time.Hour); err != nil {
		t.Fatal(err)
	}
	at := func() string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close() //nolint:errcheck // it was never used
		return l.Addr().String()
	}
	c := nodeConfig{name: "e1", dir: filepath.Join(t.TempDir(), "e1"), client: at(), http: at(), peer: at(), tls: tls}
	c.cluster = "e1=https://" + c.peer
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- serve(ctx, c) }()
	l := loadConfig{Config: load.Config{Clients: 4, For: 200 * time.Millisecond}, system: "etcd", addresses: []string{c.client}, tls: tls, connections: 2}
	var f figures
	for range 50 { // until it leads
		if f, err = l.drive(t.Context()); err == nil {
			break
		}
		select {
		case err := <-served:
			t.Fatal(err)
		case <-time.After(100 * time.Millisecond):
		}
	}
	if err != nil || f.Ops == 0 || f.Units != f.Ops {
		t.Fatalf("%+v, %v", f, err)
	}
	stop()
	if err := <-served; err != nil {
		t.Fatal(err)
	}
}
