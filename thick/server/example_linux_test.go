package server_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/thick/server"
)

// oneAddress is a Backend that gives every container the same address, and makes no
// interface.
type oneAddress struct{}

func (oneAddress) Add(_ context.Context, r *server.Request) (types.Result, error) {
	if r.Network != "podnet" {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, "no such network", r.Network)
	}
	return &types100.Result{
		CNIVersion: "1.1.0",
		IPs:        []*types100.IPConfig{{Address: net.IPNet{IP: net.IPv4(10, 1, 0, 7), Mask: net.CIDRMask(16, 32)}}},
	}, nil
}
func (oneAddress) Del(context.Context, *server.Request) error    { return nil }
func (oneAddress) Check(context.Context, *server.Request) error  { return nil }
func (oneAddress) GC(context.Context, *server.Request) error     { return nil }
func (oneAddress) Status(context.Context, *server.Request) error { return nil }

// A daemon serves a socket, here until a client has its answer.
func Example() {
	dir, err := os.MkdirTemp("", "daemon")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "multus.sock")

	s, err := server.New(oneAddress{}, server.Options{
		Observe: func(o server.Observation) { fmt.Println(o.Verb, o.ContainerID, o.Status) },
	})
	if err != nil {
		log.Fatal(err)
	}
	l, err := s.Listen(socket)
	if err != nil {
		log.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()

	// A shim sends its environment and its configuration.
	client := http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	answer, err := client.Post("http://daemon/cni", "application/json", bytes.NewBufferString(`{
		"env":    {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "web", "CNI_NETNS": "/run/netns/web"},
		"config": {"cniVersion": "1.1.0", "name": "podnet", "type": "shim"}
	}`))
	if err != nil {
		log.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		log.Fatal(err)
	}

	if err := s.Shutdown(context.Background()); err != nil {
		log.Fatal(err)
	}
	if err := <-served; err != http.ErrServerClosed {
		log.Fatal(err)
	}
	fmt.Println(string(body))
	// Output:
	// ADD web 200
	// {"Result":{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.7/16"}]}}
}
