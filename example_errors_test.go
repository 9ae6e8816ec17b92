package cni_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/cnitest"
)

// The three questions about an error: who failed, what is left, and what to do. docs/errors.md
// has a table of all errors.
func Example_errors() {
	ctx := context.Background()
	rt, err := cnitest.NewFake(cni.WithConfListBytes([]byte(podnet)))
	if err != nil {
		log.Fatal(err)
	}
	full := &cni.Error{Op: "ADD", Network: "podnet", Plugin: "bridge", ContainerID: "web-1", IfName: "eth0", Code: types.ErrTryAgainLater, Msg: "no addresses left"}
	stuck := &cni.LeftoverError{ContainerID: "web-1", Left: []string{"interface veth7"}, Err: full}
	for _, err := range []error{full, stuck} {
		rt.Inject(cnitest.Fault{Method: "Setup", Err: err, Times: 1})
		_, err = rt.Setup(ctx, "web-1", "/run/netns/web-1")
		explain(err)
	}
	for range 2 { // the second one finds the container attached
		_, err = rt.Setup(ctx, "web-1", "/run/netns/web-1")
	}
	explain(err)
	_, err = rt.Setup(ctx, "web-2", "/run/netns/web-2", cni.WithNetwork("podnets"))
	explain(err)
	// Output:
	// who: plugin bridge of network podnet, in ADD
	// do: try again later
	// who: plugin bridge of network podnet, in ADD
	// left: interface veth7
	// do: mend the cause, and call Remove again
	// do: call Remove first
	// do: as the text says: set up container "web-2": network "podnets" is not loaded (loaded: podnet): not found
}

const podnet = `{"cniVersion": "1.0.0", "name": "podnet", "plugins": [{"type": "bridge"}, {"type": "portmap", "capabilities": {"portMappings": true}}]}`

// explain prints who failed, what is left, and what to do.
func explain(err error) {
	var failed *cni.Error
	if errors.As(err, &failed) {
		fmt.Printf("who: plugin %s of network %s, in %s\n", failed.Plugin, failed.Network, failed.Op)
	}
	var left *cni.LeftoverError
	if errors.As(err, &left) {
		fmt.Printf("left: %s\n", strings.Join(left.Left, ", "))
	}
	switch {
	case left != nil:
		fmt.Println("do: mend the cause, and call Remove again")
	case failed != nil && failed.Code == types.ErrTryAgainLater:
		fmt.Println("do: try again later")
	case errors.Is(err, cni.ErrAlreadyAttached):
		fmt.Println("do: call Remove first")
	default:
		fmt.Println("do: as the text says: " + err.Error())
	}
}

// Several errors print in one line, and with %+v in one each.
func Example_severalErrors() {
	rt, err := cni.New(cni.WithConfListBytes([]byte(podnet)))
	if err != nil {
		log.Fatal(err)
	}
	mappings := []cni.PortMapping{{ContainerPort: 80}, {HostPort: 8080, ContainerPort: 80, Protocol: "icmp"}}
	_, err = rt.Plan("web-1", "/run/netns/web-1", cni.WithCapabilityPortMap(mappings))
	fmt.Printf("%v\n\n%+v\n", err, err)
	// Output:
	// set up container "web-1": network "podnet": capability portMappings: port mapping :0->80/tcp: host port 0 is not 1 to 65535; WithPorts chooses a port: invalid argument; port mapping :8080->80/icmp: protocol "icmp" is none of tcp, udp, sctp: invalid argument
	//
	// set up container "web-1": network "podnet": capability portMappings: port mapping :0->80/tcp: host port 0 is not 1 to 65535; WithPorts chooses a port: invalid argument
	// port mapping :8080->80/icmp: protocol "icmp" is none of tcp, udp, sctp: invalid argument
}
