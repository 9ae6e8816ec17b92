package cni_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/exec"
	"syscall"

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

// A namespace that root in the container's user namespace may change.
func ExampleWithNewNetNSIn() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	rt, err := cni.New(cni.WithStateDir(dir), cni.WithLoNetwork)
	if err != nil {
		log.Fatal(err)
	}
	root := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}}
	init := exec.Command("sleep", "60") // the container's first process
	init.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: root, GidMappings: root}
	if err := init.Start(); err != nil {
		log.Fatal(err)
	}
	defer init.Wait()
	defer init.Process.Kill()
	owner, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", init.Process.Pid))
	if err != nil {
		log.Fatal(err)
	}
	defer owner.Close()

	ctx := context.Background()
	result, err := rt.Setup(ctx, "web-1", "", cni.WithNewNetNSIn(owner))
	if err != nil {
		log.Fatal(err)
	}
	into := exec.Command("nsenter", "--target", fmt.Sprint(init.Process.Pid), "--user", "--net="+result.NetNS)
	into.Args = append(into.Args, "ip", "link", "add", "inside", "type", "bridge")
	fmt.Println("root in the container adds an interface:", into.Run())
	if err := rt.Remove(ctx, "web-1", ""); err != nil {
		log.Fatal(err)
	}
	// Output:
	// root in the container adds an interface: <nil>
}
