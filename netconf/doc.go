// Package netconf builds network configurations: lists of plugins, as typed values
// instead of templates. It validates them as the plugins will, renders them as JSON, and
// keeps them in a configuration directory, where it finds free subnets for them.
//
//	network := netconf.Network{
//		Name: "apps",
//		Plugins: []netconf.Plugin{
//			netconf.Bridge{
//				Name: "apps0", Gateway: true, Masquerade: true,
//				IPAM: netconf.HostLocal{Ranges: []netconf.Range{netconf.AnyIPv4()}, DefaultRoutes: true},
//			},
//			netconf.Firewall{},
//			netconf.PortMap{},
//		},
//	}
//	written, err := netconf.Dir{Path: "/etc/cni/net.d"}.Write(ctx, "10-apps.conflist", network)
//
// The fields are those that runtimes' default networks have. Extra takes the other fields of
// the reference plugins, by their keys and as they are, and Raw a plugin without a type here.
package netconf
