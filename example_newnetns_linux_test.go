package cni_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/netns"
)

// A namespace that Setup makes, and Remove deletes, whoever is killed in between.
func ExampleWithNewNetNS() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	rt, err := cni.New(cni.WithStateDir(dir), cni.WithBuiltinPlugins(), cni.WithConfListBytes([]byte(`{
		"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "ptp",
		"ipam": {"type": "host-local", "dataDir": "`+dir+`/ipam", "ranges": [[{"subnet": "10.9.0.0/24"}]]}}]}`)))
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	result, err := rt.Setup(ctx, "web-1", "", cni.WithNewNetNS())
	if err != nil {
		log.Fatal(err)
	}
	ns, err := netns.Open(result.NetNS) // for the container's processes
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("attached with", result.IPv4().Prefix)
	if err := ns.Close(); err != nil {
		log.Fatal(err)
	}
	if err := rt.Remove(ctx, "web-1", ""); err != nil {
		log.Fatal(err)
	}
	_, err = os.Stat(result.NetNS)
	fmt.Println("deleted:", os.IsNotExist(err))
	// Output:
	// attached with 10.9.0.2/24
	// deleted: true
}
