package cnitest_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/cnitest"
)

// network has the methods of a *cni.Runtime that the program of this example calls.
type network interface {
	Setup(ctx context.Context, id, path string, opts ...cni.NamespaceOpts) (*cni.Result, error)
	Remove(ctx context.Context, id, path string, opts ...cni.NamespaceOpts) error
}

// start is the program: it tries once more while the plugin asks for that.
func start(ctx context.Context, n network, id string) (string, error) {
	result, err := n.Setup(ctx, id, "/run/netns/"+id)
	if e := (*cni.Error)(nil); errors.As(err, &e) && e.Code == types.ErrTryAgainLater {
		result, err = n.Setup(ctx, id, "/run/netns/"+id)
	}
	if err != nil {
		return "", err
	}
	return result.IPv4().IP().String(), nil
}

// A program is tested without a network: its first Setup fails.
func ExampleFake() {
	fake, err := cnitest.NewFake(cni.WithConfListBytes([]byte(`{"cniVersion": "1.0.0", "name": "pods", "plugins": [
		{"type": "bridge", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}]]}}]}`)))
	if err != nil {
		log.Fatal(err)
	}
	busy := &cni.Error{Op: "ADD", Network: "pods", Code: types.ErrTryAgainLater, Err: errors.New("busy")}
	fake.Inject(cnitest.Fault{Method: "Setup", Err: busy, Times: 1})

	fmt.Println(start(context.Background(), fake, "web-1"))
	for _, call := range fake.Calls() {
		fmt.Println(call.Method, call.ContainerID, call.Err != nil)
	}
	// Output:
	// 192.0.2.2 <nil>
	// Setup web-1 true
	// Setup web-1 false
}
