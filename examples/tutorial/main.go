// Tutorial is the program of docs/tutorial.md when its last step is done.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/embedcni/cni"
)

const podnet = `{
  "cniVersion": "1.0.0", "name": "podnet", "plugins": [
    {"type": "bridge", "bridge": "tutorial0", "isDefaultGateway": true, "ipMasq": true,
     "ipam": {"type": "host-local", "ranges": [
       [{"subnet": "10.88.0.0/24"}],
       [{"subnet": "fd00:88::/64"}]
     ]}},
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]}`

const storage = `{
  "cniVersion": "1.0.0", "name": "storage", "plugins": [
    {"type": "bridge", "bridge": "tutorial1",
     "ipam": {"type": "host-local", "ranges": [
       [{"subnet": "10.99.0.0/24"}]
     ]}}
  ]}`

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	rt, err := cni.New(
		cni.WithBuiltinPlugins(),
		cni.WithConfListBytes([]byte(podnet)),
		cni.WithConfListBytes([]byte(storage)),
		cni.WithLoNetwork,
	)
	if err != nil {
		return err
	}

	report, err := rt.Recover(ctx)
	if err != nil {
		return err
	}
	fmt.Println("alive:", report.Adopted)

	command := strings.Join(os.Args[1:], " ")
	if command == "stop" {
		return rt.Remove(ctx, "web", "")
	}
	result, err := rt.Lookup("web")
	if errors.Is(err, cni.ErrNotAttached) {
		result, err = rt.Setup(ctx, "web", "", cni.WithNewNetNS(),
			cni.WithPorts(cni.Port{HostPort: 8080, ContainerPort: 80}))
	}
	if err != nil {
		return err // nothing is attached
	}
	switch command {
	case "break":
		return deleteRoute(result.NetNS)
	case "repair":
		return repair(ctx, rt)
	}
	for _, network := range result.Networks {
		for _, i := range network.Interfaces {
			for _, address := range i.Addresses {
				fmt.Println(network.Name, i.Name, address.Prefix)
			}
		}
	}

	if err := serve(result.NetNS); err != nil {
		return err
	}
	if err := get("http://10.88.0.1:8080"); err != nil {
		return err
	}
	return get("http://[fd00:88::1]:8080")
}
