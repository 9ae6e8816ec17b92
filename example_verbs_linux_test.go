package cni_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"

	"github.com/embedcni/cni"
)

// pods is the network of the examples. All of its plugins are built in.
var pods = []byte(`{"cniVersion": "1.1.0", "name": "pods", "plugins": [
	{"type": "bridge", "bridge": "pods0", "isGateway": true, "ipMasq": true,
	 "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}]]}},
	{"type": "portmap", "capabilities": {"portMappings": true}}]}`)

// attached returns a Runtime that has attached these containers to the network, as in the
// examples of New and Setup. Each example begins with the first address.
func attached(ids ...string) *cni.Runtime {
	if err := os.RemoveAll("/var/lib/cni/networks/pods"); err != nil {
		log.Fatal(err)
	}
	rt, err := cni.New(cni.WithBuiltinPlugins(), cni.WithConfListBytes(pods))
	if err != nil {
		log.Fatal(err)
	}
	for _, id := range ids {
		if _, err := rt.Setup(context.Background(), id, "", cni.WithNewNetNS()); err != nil {
			log.Fatal(err)
		}
	}
	return rt
}

// detach removes the containers of an example.
func detach(rt *cni.Runtime) {
	if _, err := rt.GC(context.Background(), cni.GCOptions{KeepNone: true}); err != nil {
		log.Fatal(err)
	}
}

// Two networks, the second only after the first is attached.
func ExampleRuntime_SetupSerially() {
	rt, err := cni.New(cni.WithBuiltinPlugins(), cni.WithLoNetwork, cni.WithConfListBytes(pods))
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	result, err := rt.SetupSerially(ctx, "web-1", "", cni.WithNewNetNS())
	if err != nil {
		log.Fatal(err) // nothing is attached
	}
	for _, n := range result.Networks {
		fmt.Println(n.Name, n.IfName)
	}
	if err := rt.Remove(ctx, "web-1", ""); err != nil {
		log.Fatal(err)
	}
	// Output:
	// cni-loopback lo
	// pods eth1
}

// Remove needs no options, no path and no loaded network: it follows the record.
func ExampleRuntime_Remove() {
	attached("web-1")

	restarted, err := cni.New(cni.WithBuiltinPlugins())
	if err != nil {
		log.Fatal(err)
	}
	err = restarted.Remove(context.Background(), "web-1", "")
	if left := (*cni.LeftoverError)(nil); errors.As(err, &left) {
		log.Fatal("still there: ", left.Left) // and on record, for another Remove
	}
	fmt.Println(err)
	// Output: <nil>
}

// Check asks the plugins of one container, and stops at the first that finds something wrong.
func ExampleRuntime_Check() {
	rt := attached("web-1")
	defer detach(rt)
	ctx := context.Background()
	result, err := rt.Lookup("web-1") // or the result of Setup
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(rt.Check(ctx, "web-1", result.NetNS))
	fmt.Println(errors.Is(rt.Check(ctx, "web-2", "/run/netns/web-2"), cni.ErrNotAttached))
	// Output:
	// <nil>
	// true
}

// The start of a program: containers that live are kept, and others removed.
func ExampleRuntime_Recover() {
	attached("web-1", "web-2") // by the program before its restart

	rt, err := cni.New(cni.WithBuiltinPlugins(), cni.WithConfListBytes(pods))
	if err != nil {
		log.Fatal(err)
	}
	defer detach(rt)
	report, err := rt.Recover(context.Background())
	if err := errors.Join(err, report.Err()); err != nil {
		log.Fatal(err)
	}
	fmt.Println(report)
	// Unordered output:
	// web-1: adopted
	// web-2: adopted
}

// A scheduler says which containers it wants. The others of this program are removed.
func ExampleRuntime_GC() {
	rt := attached("web-1", "job-7")
	defer detach(rt)
	wanted := cni.GCOptions{Keep: []string{"web-1"}, DryRun: true}
	report, err := rt.GC(context.Background(), wanted)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("would be removed:", report.Removed)
	wanted.DryRun = false
	report, err = rt.GC(context.Background(), wanted)
	fmt.Println("removed:", report.Removed, errors.Join(err, report.Err()))
	// Output:
	// would be removed: [job-7]
	// removed: [job-7] <nil>
}

// CleanUp is for an attachment that Remove cannot end, for example because its plugins are
// gone. A dry run says what there is.
func ExampleRuntime_CleanUp() {
	rt := attached("web-1")
	target := cni.CleanUpTarget{ContainerID: "web-1", Network: "pods", IfName: "eth0", DryRun: true}
	found, err := rt.CleanUp(context.Background(), target)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(found) > 1) // lines for a person
	target.DryRun = false
	if _, err := rt.CleanUp(context.Background(), target); err != nil {
		log.Fatal(err)
	}
	all, err := rt.Attachments()
	fmt.Println(len(all), err)
	// Output:
	// true
	// 0 <nil>
}

// Somebody has deleted the bridge. Repair makes it again, while the container runs.
func ExampleRuntime_Repair() {
	rt := attached("web-1")
	defer detach(rt)
	if err := exec.Command("ip", "link", "del", "pods0").Run(); err != nil {
		log.Fatal(err)
	}
	report, err := rt.Repair(context.Background(), "web-1", cni.RepairOptions{})
	if err := errors.Join(err, report.Err()); err != nil {
		log.Fatal(err)
	}
	fmt.Println(report.Repaired[0].Kind, report.Repaired[0].Object)
	// Output: bridge pods0
}

// A loss that many containers share is repaired for all of them at once. Health says which
// containers are broken.
func ExampleRuntime_RepairAll() {
	rt := attached("web-1", "web-2")
	defer detach(rt)
	if err := exec.Command("ip", "link", "del", "pods0").Run(); err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	verdicts, err := rt.Health(ctx, cni.HealthOptions{})
	if err != nil {
		log.Fatal(err)
	}
	var broken []string
	for _, v := range verdicts {
		if v.State == cni.StateBroken {
			broken = append(broken, v.ContainerID)
		}
	}
	reports, err := rt.RepairAll(ctx, broken, cni.RepairOptions{})
	for _, report := range reports {
		fmt.Println(report.ContainerID, errors.Join(err, report.Err()))
	}
	// Output:
	// web-1 <nil>
	// web-2 <nil>
}

// Ready is for a program's own health endpoint: it has every reason why a Setup would fail.
func ExampleRuntime_Ready() {
	rt := attached()
	fmt.Println(rt.Ready(context.Background()))

	err := rt.Load(cni.WithConfListBytes([]byte(`{"cniVersion": "1.1.0", "name": "pods", "plugins": [{"type": "cloud"}]}`)))
	if err != nil {
		log.Fatal(err)
	}
	err = rt.Ready(context.Background())
	fmt.Println(errors.Is(err, cni.ErrPluginNotFound))
	// Output:
	// <nil>
	// true
}

// A scheduler asks whether a node could attach to a network that is not loaded on it.
func ExampleRuntime_StatusOf() {
	rt, err := cni.New(cni.WithBuiltinPlugins())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(rt.StatusOf(context.Background(), pods))
	// Output: <nil>
}

// A removal fails while the plugin's server is down. It stays on record, and is tried again
// after a second, and then after twice the time.
func ExampleRuntime_RetryRemovals() {
	server := &registrar{down: true}
	rt, err := cni.New(cni.WithPlugin("registrar", server), cni.WithConfListBytes([]byte(
		`{"cniVersion": "1.1.0", "name": "names", "plugins": [{"type": "loopback"}, {"type": "registrar"}]}`)))
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	if _, err := rt.Setup(ctx, "web-1", "", cni.WithNewNetNS()); err != nil {
		log.Fatal(err)
	}
	fmt.Println("removed:", rt.Remove(ctx, "web-1", "") == nil)

	server.down = false
	report, err := rt.RetryRemovals(ctx) // too early: call it from time to time
	fmt.Println(report.Removed, len(report.Skipped), err)
	fmt.Println("removed:", rt.Remove(ctx, "web-1", "") == nil) // at any time
	// Output:
	// removed: false
	// [] 1 <nil>
	// removed: true
}
