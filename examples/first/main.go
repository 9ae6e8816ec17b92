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
  {"type": "ptp", "ipam": {"type": "host-local", "routes": [{"dst": "0.0.0.0/0"}],
    "ranges": [[{"subnet": "10.123.0.0/24"}]]}}]}`

func main() {
	ctx := context.Background()
	rt, err := cni.New(cni.WithBuiltinPlugins(), cni.WithConfListBytes([]byte(podnet)))
	if err != nil {
		log.Fatal(err)
	}
	if _, err := rt.Recover(ctx); err != nil { // after a crash or a reboot
		log.Fatal(err)
	}
	result, err := rt.Setup(ctx, "web-1", "", cni.WithNewNetNS())
	if err != nil {
		log.Fatal(err) // nothing is attached
	}
	fmt.Println("web-1 has", result.IPv4().Prefix, "in", result.NetNS)
	if err := rt.Remove(ctx, "web-1", ""); err != nil {
		log.Fatal(err)
	}
}
