package cni_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/netns"
)

// The life of a container's attachments, from the configuration on disk to the
// last plugin's DEL.
func Example() {
	rt, err := cni.New(cni.WithPluginConfDir("/etc/cni/net.d"), cni.WithPluginDir([]string{"/opt/cni/bin"}))
	if err != nil {
		log.Fatal(err)
	}
	if err := rt.Load(cni.WithLoNetwork, cni.WithDefaultConf); err != nil {
		log.Fatal(err)
	}

	ctx, id, path := context.Background(), "web-1", "/run/netns/web-1"
	ns, err := netns.Create(path)
	if err != nil {
		log.Fatal(err)
	}
	defer ns.Close()

	result, err := rt.Setup(ctx, id, path)
	if err != nil {
		log.Fatal(err) // nothing is attached
	}
	fmt.Println(result.Primary().Name, result.IPv4().Prefix, result.IPv6().Prefix)

	// Detach before removing the namespace: plugins clean up in it.
	if err := rt.Remove(ctx, id, path); err != nil {
		log.Fatal(err)
	}
	if err := netns.Remove(path); err != nil {
		log.Fatal(err)
	}
}

// Load replaces the whole configuration, or fails and changes nothing.
func ExampleRuntime_Load() {
	rt, err := cni.New()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("before:", rt.Status())

	good := []byte(`{
		"cniVersion": "1.0.0", "name": "podnet",
		"plugins": [{"type": "bridge"}, {"type": "portmap"}]
	}`)
	if err := rt.Load(cni.WithLoNetwork, cni.WithConfListBytes(good)); err != nil {
		log.Fatal(err)
	}
	err = rt.Load(cni.WithConfListBytes([]byte(`{"cniVersion": "1.0.0", "name": "podnet", "plugins": []}`)))
	fmt.Println("refused:", cni.IsInvalidConfig(err))

	for _, n := range rt.GetConfig().Networks {
		fmt.Print(n.IFName, ": ", n.Config.Name)
		for _, p := range n.Config.Plugins {
			fmt.Print(" ", p.Network.Type)
		}
		fmt.Println()
	}
	// Output:
	// before: cni plugin not initialized
	// refused: true
	// lo: cni-loopback loopback
	// eth1: podnet bridge portmap
}

// A Result may be stored as JSON and read by a later process.
func ExampleResult_IPv4() {
	stored := []byte(`{"Networks": [{
		"Name": "podnet", "IfName": "eth0",
		"Interfaces": [
			{"Name": "cni0", "Network": "podnet"},
			{"Name": "eth0", "Network": "podnet", "Sandbox": "/run/netns/web-1", "Addresses": [
				{"Prefix": "10.88.0.2/24", "Gateway": "10.88.0.1"},
				{"Prefix": "fd00:88::2/64", "Gateway": "fd00:88::1"}
			]}
		]
	}]}`)
	var result cni.Result
	if err := json.Unmarshal(stored, &result); err != nil {
		log.Fatal(err)
	}
	v4, v6 := result.IPv4(), result.IPv6()
	fmt.Println(result.Primary().Name, v4.IP(), v4.Prefix, "via", v4.Gateway)
	fmt.Println(v6.IsValid(), v6.IP())
	// Output:
	// eth0 10.88.0.2 10.88.0.2/24 via 10.88.0.1
	// true fd00:88::2
}

// An observer counts and times plugin calls. Here the call is a STATUS without
// a plugin to ask.
func ExampleWithObserver() {
	rt, err := cni.New(
		cni.WithPluginDir([]string{"testdata/no-plugins"}),
		cni.WithConfListBytes([]byte(`{"cniVersion": "1.1.0", "name": "podnet", "plugins": [{"type": "ipvlan"}]}`)),
		cni.WithObserver(func(_ context.Context, e cni.Event) {
			// Record e.Duration in a histogram with these labels.
			fmt.Println(e.Operation, e.Network, e.Plugin, "ok:", e.Err == nil)
		}),
	)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("ready:", rt.Status() == nil)
	// Output:
	// STATUS podnet ipvlan ok: false
	// ready: false
}

// The fields of an Error locate the failure, and the sentinels classify it.
func ExampleError() {
	rt, err := cni.New(
		cni.WithPluginDir([]string{"testdata/no-plugins"}),
		cni.WithConfListBytes([]byte(`{"cniVersion": "1.1.0", "name": "podnet", "plugins": [{"type": "ipvlan"}]}`)),
	)
	if err != nil {
		log.Fatal(err)
	}
	err = rt.Status()

	var e *cni.Error
	if errors.As(err, &e) {
		fmt.Println(e.Op, "of network", e.Network, "by plugin", e.Plugin)
	}
	fmt.Println("plugin missing:", errors.Is(err, cni.ErrPluginNotFound))
	fmt.Println(err)
	// Output:
	// STATUS of network podnet by plugin ipvlan
	// plugin missing: true
	// status network "podnet": plugin type="ipvlan" failed (status): failed to find plugin "ipvlan" in path [testdata/no-plugins]; install it there, or name its directory with WithPluginDir
}

// The address at which containers of a network reach the host, for example for a DNS
// server that must listen before the first container starts.
func ExampleRuntime_Gateways() {
	rt, err := cni.New(cni.WithConfListBytes([]byte(`{
		"cniVersion": "1.0.0", "name": "podnet",
		"plugins": [{"type": "bridge", "isGateway": true, "ipam": {"type": "host-local", "subnet": "10.88.0.0/16"}}]
	}`)), cni.WithBuiltinPlugins())
	if err != nil {
		log.Fatal(err)
	}
	gateways, err := rt.Gateways("podnet")
	if err != nil {
		log.Fatal(err)
	}
	for _, g := range gateways {
		fmt.Println(g.Prefix, "on the host:", g.OnHost)
	}
	// Output:
	// 10.88.0.1/16 on the host: true
}

// After a firewall reload or an ip link by mistake: which containers lack something, and
// what.
func ExampleRuntime_Health() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	rt, err := cni.New(cni.WithStateDir(dir), cni.WithPluginDir(nil), cni.WithLoNetwork)
	if err != nil {
		log.Fatal(err)
	}
	ctx, path := context.Background(), filepath.Join(dir, "ns")
	ns, err := netns.Create(path)
	if err != nil {
		log.Fatal(err)
	}
	defer ns.Close()
	if _, err := rt.Setup(ctx, "web-1", path); err != nil {
		log.Fatal(err)
	}

	all, err := rt.Health(ctx, cni.HealthOptions{})
	if err != nil {
		log.Fatal(err)
	}
	for _, h := range all {
		fmt.Println(h.ContainerID, "is", h.State)
		for _, d := range h.Differences { // none here
			fmt.Println(d.Plugin, d.Kind, d.Object, "repairable:", d.Repairable)
		}
	}

	if err := rt.Remove(ctx, "web-1", path); err != nil {
		log.Fatal(err)
	}
	all, err = rt.Health(ctx, cni.HealthOptions{Containers: []string{"web-1"}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(all[0])
	if err := netns.Remove(path); err != nil {
		log.Fatal(err)
	}
	// Output:
	// web-1 is healthy
	// web-1: not attached
}

// A Report prints as one line for each container, and is encoded with the texts of its
// errors.
func ExampleReport() {
	report := cni.Report{
		Adopted: []string{"web-1", "web-2"},
		Kept:    map[string]error{"web-2": errors.New("interface eth0 is gone")},
		Removed: []string{"job-7"},
	}
	fmt.Println(report)
	data, err := json.Marshal(report)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(data))
	// Output:
	// web-1: adopted
	// web-2: adopted, not known to be healthy: interface eth0 is gone
	// job-7: removed
	// {"Adopted":["web-1","web-2"],"Removed":["job-7"],"Reclaimed":null,"Left":null,"Kept":{"web-2":"interface eth0 is gone"},"Failed":null,"Skipped":null}
}

// The start of a program that cannot go on while a dead container is not removed.
func ExampleReport_Err() {
	rt, err := cni.New(cni.WithDefaultConf)
	if err != nil {
		log.Fatal(err)
	}
	report, err := rt.Recover(context.Background())
	if err := errors.Join(err, report.Err()); err != nil {
		log.Fatal(err)
	}
	log.Print(report)
}

// Mappings are validated before any plugin runs, so a mistake leaves nothing
// half done.
func ExampleWithCapabilityPortMap() {
	rt, err := cni.New(cni.WithConfListBytes([]byte(`{
		"cniVersion": "1.0.0", "name": "podnet",
		"plugins": [{"type": "bridge"}, {"type": "portmap", "capabilities": {"portMappings": true}}]
	}`)))
	if err != nil {
		log.Fatal(err)
	}
	_, err = rt.Setup(context.Background(), "web-1", "/run/netns/web-1", cni.WithCapabilityPortMap([]cni.PortMapping{
		{HostPort: 8080, ContainerPort: 80},                  // tcp, on all addresses
		{HostPort: 8080, ContainerPort: 80, Protocol: "udp"}, // another port
		{HostPort: 8080, ContainerPort: 81, Protocol: "TCP", HostIP: "192.0.2.1"},
	}))
	fmt.Println(errors.Is(err, cni.ErrInvalidArgument))
	fmt.Println(err)
	// Output:
	// true
	// set up container "web-1": network "podnet": capability portMappings: host port 192.0.2.1:8080->81/tcp is mapped twice: invalid argument
}

// An IPv4 and an IPv6 list of the same name differ in their interfaces:
// WithNetwork("podnet") selects both. Adding WithInterfaceName("eth1") selects
// the second.
func ExampleWithNetwork_sameName() {
	list := func(subnet string) []byte {
		return fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "podnet", "plugins": [
			{"type": "bridge", "ipam": {"type": "host-local", "ranges": [[{"subnet": %q}]]}}]}`, subnet)
	}
	rt, err := cni.New(cni.WithConfListBytes(list("10.88.0.0/16")), cni.WithConfListBytes(list("fd00:88::/64")))
	if err != nil {
		log.Fatal(err)
	}
	for _, n := range rt.GetConfig().Networks {
		fmt.Println(n.Config.Name, n.IFName)
	}
	// Output:
	// podnet eth0
	// podnet eth1
}

// Ports as people write them.
func ExampleParsePorts() {
	for _, text := range []string{"8080:80", "127.0.0.1::53/tcp+udp", "[::1]:8000-8001:80-81", "8080:http"} {
		all, err := cni.ParsePorts(text)
		if err != nil {
			fmt.Println(err)
		}
		for _, p := range all {
			fmt.Printf("%s: host port %d, container port %d, %v\n", p, p.HostPort, p.ContainerPort, p.Protocols)
		}
	}
	// Output:
	// 8080:80: host port 8080, container port 80, [tcp]
	// 127.0.0.1::53/tcp+udp: host port 0, container port 53, [tcp udp]
	// [::1]:8000:80: host port 8000, container port 80, [tcp]
	// [::1]:8001:81: host port 8001, container port 81, [tcp]
	// port "8080:http": container port "http" is not 1 to 65535, or a range FIRST-LAST of them
}

// A configuration that comes with the call needs no Load. Without a container to attach,
// Plan shows what Setup would do.
func ExampleWithNetworkConfig() {
	r, err := cni.New()
	if err != nil {
		log.Fatal(err)
	}
	storage := []byte(`{"cniVersion": "1.0.0", "name": "storage", "plugins": [{"type": "macvlan"}]}`)
	plan, err := r.Plan("c1", "/run/netns/c1", cni.WithNetworkConfig(storage, cni.WithInterfaceName("net1")))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(plan.Attachments[0].Network, plan.Attachments[0].IfName)
	// Output: storage net1
}
