// First attaches a container to a network, prints its address, and detaches it. The README
// quotes this program. It needs Linux and root:
//
//	go run ./examples/first
package main

import (
	"context"
	"fmt"
	"log"

	"github.com/embedcni/cni"
)

const podnet = `{"cniVersion": "1.0.0", "name": "podnet", "plugins": [
  {"type": "bridge", "bridge": "podnet0", "isDefaultGateway": true, "ipMasq": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.123.0.0/24"}]]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}`

func main() {
	ctx := context.Background()
	rt, err := cni.New(cni.WithBuiltinPlugins(), cni.WithConfListBytes([]byte(podnet)))
	if err != nil {
		log.Fatal(err)
	}
	if _, err := rt.Recover(ctx); err != nil { // after a crash or a reboot
		log.Fatal(err)
	}
	result, err := rt.Setup(ctx, "web-1", "", cni.WithNewNetNS(),
		cni.WithPorts(cni.Port{HostPort: 8080, ContainerPort: 80}))
	if err != nil {
		log.Fatal(err) // nothing is attached
	}
	fmt.Println("web-1 has", result.IPv4().Prefix, "in", result.NetNS)
	if err := rt.Remove(ctx, "web-1", ""); err != nil {
		log.Fatal(err)
	}
}
