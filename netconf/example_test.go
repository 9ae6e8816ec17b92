package netconf_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/netconf"
)

// A network for functions, as a function provider writes it when it starts, on a subnet
// that nothing on the host uses. Written again, it is the same, and the file is not
// touched.
func ExampleDir_Write() {
	network := netconf.Network{
		Name: "functions",
		Plugins: []netconf.Plugin{
			netconf.Bridge{
				Name: "functions0", Gateway: true, Masquerade: true,
				IPAM: netconf.HostLocal{Ranges: []netconf.Range{netconf.AnyIPv4(), netconf.AnyIPv6()}, DefaultRoutes: true},
			},
			netconf.Firewall{},
		},
	}
	dir := netconf.Dir{Path: "/etc/cni/net.d"}
	written, err := dir.Write(context.Background(), "10-functions.conflist", network)
	if err != nil {
		log.Fatal(err)
	}
	rt, err := cni.New(cni.WithConfListFile(written.Path))
	if err != nil {
		log.Fatal(err)
	}
	if _, err := rt.Setup(context.Background(), "hello-1", "/run/netns/hello-1"); err != nil {
		log.Fatal(err)
	}
}

// A scheduler's default network, without a file: both families, ports, limits, and a chain
// for the administrator's rules.
func ExampleNetwork_Render() {
	data, err := netconf.Network{
		Name:    "jobs",
		Version: "1.1.0",
		Plugins: []netconf.Plugin{
			netconf.Bridge{
				Name: "jobs0", Gateway: true, Masquerade: true, Hairpin: true, MTU: 1450,
				IPAM: netconf.HostLocal{
					Ranges: []netconf.Range{
						{Subnet: netip.MustParsePrefix("172.26.64.0/20")},
						{Subnet: netip.MustParsePrefix("fd00:a110:c8::/120")},
					},
					DefaultRoutes: true,
				},
			},
			netconf.Firewall{AdminChain: "JOBS-ADMIN"},
			netconf.PortMap{},
			netconf.Bandwidth{},
		},
	}.Render()
	if err != nil {
		log.Fatal(err)
	}
	rt, err := cni.New(cni.WithConfListBytes(data))
	if err != nil {
		log.Fatal(err)
	}
	n := rt.GetConfig().Networks[0]
	fmt.Println(n.Config.Name, n.IFName)
	for _, p := range n.Config.Plugins {
		fmt.Println(p.Network.Type)
	}
	// Output:
	// jobs eth0
	// bridge
	// firewall
	// portmap
	// bandwidth
}

// A runtime that follows its configuration directory, from before the first file is
// there, until the program ends.
func ExampleWatch() {
	rt, err := cni.New(cni.WithPluginConfDir("/etc/cni/net.d"))
	if err != nil {
		log.Fatal(err)
	}
	if err := rt.Load(cni.WithLoNetwork, cni.WithDefaultConf); err != nil {
		log.Print(err) // a network addon may write the file later
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- netconf.Watch(ctx, rt, netconf.WatchOptions{Report: func(e netconf.WatchEvent) {
			switch e.Kind {
			case netconf.Loaded:
				log.Printf("networks: added %v, removed %v, changed %v", e.Added, e.Removed, e.Changed)
			case netconf.Kept, netconf.Unloaded, netconf.Failed:
				log.Print(e)
			}
		}})
	}()

	// … rt.Setup, rt.Remove, …

	stop()
	if err := <-ended; err != nil {
		log.Fatal(err)
	}
}
