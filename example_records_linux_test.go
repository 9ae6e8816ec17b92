package cni_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/netip"
	"os/exec"
	"strconv"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/netns"
)

// Setup with a deadline. When it expires, the running plugin is killed and
// everything is undone before Setup returns.
func ExampleRuntime_Setup() {
	rt := attached() // a Runtime with a network, as in the example of New
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	result, err := rt.Setup(ctx, "web-1", "", cni.WithNewNetNS(), // or with the path of a namespace
		cni.WithCapabilityPortMap([]cni.PortMapping{{HostPort: 8080, ContainerPort: 80}}))
	switch {
	case errors.Is(err, cni.ErrAlreadyAttached):
		log.Fatal("still there from before; Remove it first")
	case errors.Is(err, cni.ErrInvalidArgument), errors.Is(err, cni.ErrInvalidNetNS), errors.Is(err, cni.ErrPortInUse):
		log.Fatal("no plugin ran: ", err)
	case err != nil:
		log.Fatal("everything is undone: ", err)
	}
	defer rt.Remove(context.Background(), "web-1", "")
	fmt.Println(result.Primary().Name, result.IPv4().Prefix, "via", result.IPv4().Gateway)
	// Output: eth0 10.88.0.2/24 via 10.88.0.1
}

// Attach to some of the loaded networks, with an interface name and arguments
// for one of them.
func ExampleWithNetwork() {
	storage := []byte(`{"cniVersion": "1.0.0", "name": "storage", "plugins": [
		{"type": "bridge", "bridge": "san", "capabilities": {"ips": true}, "ipam": {"type": "static"}}]}`)
	rt, err := cni.New(cni.WithBuiltinPlugins(), cni.WithLoNetwork, cni.WithConfListBytes(pods), cni.WithConfListBytes(storage))
	if err != nil {
		log.Fatal(err)
	}
	defer detach(rt)
	result, err := rt.Setup(context.Background(), "web-1", "", cni.WithNewNetNS(),
		cni.WithNetwork("pods"),
		cni.WithNetwork("storage",
			cni.WithInterfaceName("san0"),
			cni.WithCapabilityIPs("192.0.2.7/24"),
		),
	)
	if err != nil {
		log.Fatal(err)
	}
	for _, n := range result.Networks {
		fmt.Println(n.Name, n.IfName)
	}
	// Output:
	// pods eth1
	// storage san0
}

// A port that the library chooses has a label, by which its caller finds it.
func ExampleWithPorts() {
	rt, err := cni.New(cni.WithBuiltinPlugins(), cni.WithConfListBytes(pods), cni.WithPortRange(21000, 21999))
	if err != nil {
		log.Fatal(err)
	}
	defer detach(rt)
	result, err := rt.Setup(context.Background(), "web-1", "", cni.WithNewNetNS(), cni.WithPorts(
		cni.Port{Label: "http", ContainerPort: 80},
		cni.Port{Label: "dns", HostPort: 53, ContainerPort: 53, Protocols: []string{"tcp", "udp"}},
	))
	if errors.Is(err, cni.ErrPortInUse) {
		log.Fatal("another range of ports is needed: ", err)
	}
	if err != nil {
		log.Fatal(err)
	}
	http, _ := result.Port("http")
	fmt.Println(http.HostPort >= 21000 && http.HostPort <= 21999)
	// Output: true
}

// Attachments lists the containers of all programs on the host, with the values that
// the caller gave to Setup.
func ExampleRuntime_Attachments() {
	rt := attached()
	defer detach(rt)
	_, err := rt.Setup(context.Background(), "web-1", "", cni.WithNewNetNS(),
		cni.WithMetadata(map[string]string{"job": "web"}),
		cni.WithCapabilityPortMap([]cni.PortMapping{{HostPort: 8080, ContainerPort: 80}}),
	)
	if err != nil {
		log.Fatal(err)
	}
	attachments, err := rt.Attachments() // also after a restart
	if err != nil {
		log.Fatal(err)
	}
	for _, a := range attachments {
		fmt.Println(a.Metadata["job"], a.Network, a.IfName, a.State, a.Addresses[0].Prefix, a.Ports[0].HostPort)
	}
	// Output: web pods eth0 attached 10.88.0.2/24 8080
}

// The process of a container's task is known only after its network: it is put on record
// beside it, so that the program finds it after a restart.
func ExampleRuntime_SetMetadata() {
	rt := attached("web-1")
	defer detach(rt)
	result, err := rt.Lookup("web-1")
	if err != nil {
		log.Fatal(err)
	}
	task := exec.Command("true")
	if err := netns.Do(result.NetNS, task.Run); err != nil {
		log.Fatal(err)
	}
	pid := strconv.Itoa(task.Process.Pid)
	if err := rt.SetMetadata(context.Background(), "web-1", map[string]string{"pid": pid}); err != nil {
		log.Fatal(err)
	}
	attachments, err := rt.Attachments("web-1") // also after a restart
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(attachments[0].Metadata["pid"] == pid)
	// Output: true
}

// Which container a packet came from, for example to count traffic or to answer a request
// for metadata.
func ExampleRuntime_LookupAddr() {
	rt := attached("web-1")
	defer detach(rt)
	attachments, err := rt.LookupAddr(netip.MustParseAddr("10.88.0.2"))
	if err != nil {
		log.Fatal(err)
	}
	for _, a := range attachments {
		fmt.Println(a.ContainerID, a.Network, a.IfName)
	}
	_, err = rt.LookupAddr(netip.MustParseAddr("10.88.0.3"))
	fmt.Println("nobody has it:", errors.Is(err, cni.ErrNotAttached))
	// Output:
	// web-1 pods eth0
	// nobody has it: true
}

// The result of a Setup before a restart, and the addresses that the interface has now: SLAAC
// and DHCP assign some after the Setup, and change them.
func ExampleRuntime_Lookup() {
	rt := attached("web-1")
	defer detach(rt)
	result, err := rt.Lookup("web-1")
	if err != nil {
		log.Fatal(err)
	}
	var addrs []net.Addr
	err = netns.Do(result.NetNS, func() error {
		eth0, err := net.InterfaceByName(result.Networks[0].IfName)
		if err != nil {
			return err
		}
		addrs, err = eth0.Addrs()
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.IPv4().Prefix, addrs[0])
	// Output: 10.88.0.2/24 10.88.0.2/24
}
