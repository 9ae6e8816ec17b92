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

// A program is tested without a network: its plugin fails once.
func ExampleFake() {
	fake, err := cnitest.NewFake(cni.WithConfListBytes([]byte(`{"cniVersion": "1.0.0", "name": "pods", "plugins": [
		{"type": "bridge", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}]]}}]}`)))
	if err != nil {
		log.Fatal(err)
	}
	fake.Inject(cnitest.Fault{Verb: "ADD", Network: "pods", Err: types.NewError(types.ErrTryAgainLater, "busy", ""), Times: 1})

	fmt.Println(start(context.Background(), fake, "web-1"))
	for _, call := range fake.Calls() {
		fmt.Println(call.Method, call.ContainerID, call.Err)
	}
	// Output:
	// 10.1.0.2 <nil>
	// Setup web-1 add network "pods" of container web-1, interface eth0: plugin type="bridge" (built in) failed (add): busy (code 11); the plugin asks to be tried again later
	// Setup web-1 <nil>
}

// After a restart the program asks what became of its containers.
func ExampleFake_Restart() {
	ctx := context.Background()
	conf := cni.WithConfListBytes([]byte(`{"cniVersion": "1.0.0", "name": "pods", "plugins": [
		{"type": "ptp", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}]]}}]}`))
	fake, err := cnitest.NewFake(conf)
	if err != nil {
		log.Fatal(err)
	}
	for _, id := range []string{"alive", "broken", "gone", "unfinished"} {
		if _, err := fake.Setup(ctx, id, "/run/netns/"+id); err != nil {
			log.Fatal(err)
		}
	}
	fake.EndNetNS("/run/netns/gone")
	if err := errors.Join(fake.Break("broken"), fake.Interrupt("unfinished")); err != nil {
		log.Fatal(err)
	}

	restarted, err := fake.Restart(conf)
	if err != nil {
		log.Fatal(err)
	}
	report, err := restarted.Recover(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("adopted:", report.Adopted, "repaired:", len(report.Repaired["broken"]), "removed:", report.Removed)
	// Output:
	// adopted: [alive broken] repaired: 1 removed: [gone unfinished]
}

// A program takes its containers from a pool, as an interface such as cnitest.Pool. In a
// test that is a fake's, and the next container is ready at once.
func ExampleFake_NewPool() {
	ctx := context.Background()
	fake, err := cnitest.NewFake(cni.WithConfListBytes([]byte(`{"cniVersion": "1.0.0", "name": "pods", "plugins": [
		{"type": "ptp", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}]]}}]}`)))
	if err != nil {
		log.Fatal(err)
	}
	var pool cnitest.Pool
	if pool, err = fake.NewPool(cni.PoolOptions{Size: 1}); err != nil {
		log.Fatal(err)
	}
	_, result, err := pool.Setup(ctx, "web-1")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.IPv4().IP(), "ready:", pool.Ready())
	if err := pool.Close(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 10.1.0.2 ready: 1
}
