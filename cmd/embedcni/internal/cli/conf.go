package cli

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/embedcni/cni/cmd/embedcni/internal/conf"
	"github.com/embedcni/cni/netconf"
)

func newConfCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "conf",
		GroupID: groupConf,
		Short:   "Checks files of network configurations, and writes new ones.",
		Long: `Conf is for the files from which networks are loaded, those of --conf-dir for example: check
finds mistakes in them, new prints one. Neither changes a file.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	create := &cobra.Command{
		Use:   "new",
		Short: "Prints a new network configuration.",
		Long: `New prints the configuration of a network of the kind that you name, for a file whose name
ends in .conflist. Conf check accepts it, and so does every runtime of CNI.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	create.AddCommand(newConfBridgeCommand(a))
	cmd.AddCommand(newConfCheckCommand(a), create)
	return cmd
}

func newConfCheckCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "check [FILE|DIR...]",
		Short: "Finds mistakes in network configurations, and says how to mend them.",
		Long: `Check reads files of network configurations, or those of directories, without an argument
those of --conf-dir. It prints a line for each mistake, with its file, line and column, and
what to do about it. It finds

  - what is no JSON, fields that are there twice, values of the wrong kind;
  - what the library would not load, such as a file that every user may write;
  - what the built-in plugins would refuse;
  - fields that the reference plugins do not know, plugins that do not exist, plugins in
    a useless order, and networks of one name or with overlapping subnets.

It runs no plugin that is installed, and changes nothing. Whether containers can be
attached on this host now is for ready. The exit code is 3 if it has found anything.`,
		Example: `  embedcni conf check
  embedcni conf check 10-pods.conflist --json`,
		RunE: func(cmd *cobra.Command, paths []string) error { return a.confCheck(cmd.Context(), paths) },
	}
}

func (a *app) confCheck(ctx context.Context, paths []string) error {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	if len(paths) == 0 {
		paths = []string{a.flags.confDir}
	}
	checker := &conf.Checker{PluginDirs: filepath.SplitList(a.flags.pluginDirs)}
	files, all := 0, []conf.Finding{}
	for _, path := range paths {
		n, found, err := checker.Path(ctx, path)
		if err != nil {
			return err
		}
		files += n
		all = append(all, found...)
	}
	if err := a.print(all, func() string { return a.findings(all, files) }); err != nil {
		return err
	}
	if len(all) > 0 {
		return errBad
	}
	return nil
}

// findings has a line for each finding, as editors read those of compilers, and one for its
// mend.
func (a *app) findings(all []conf.Finding, files int) string {
	var b strings.Builder
	for _, f := range all {
		line := f.String()
		if a.colors(a.Out) {
			line = strings.TrimSuffix(line, f.Message) + paint(red, f.Message)
		}
		fmt.Fprintln(&b, line)
		if f.Mend != "" {
			fmt.Fprintln(&b, "  "+f.Mend)
		}
	}
	if len(all) == 0 {
		return fmt.Sprintf("%s checked: no mistake found\n", plural(files, "file"))
	}
	fmt.Fprintf(&b, "%s checked: %s found\n", plural(files, "file"), plural(len(all), "mistake"))
	return b.String()
}

// bridgeFlags are those of conf new bridge.
type bridgeFlags struct {
	name, bridge, subnet, subnet6, isolation, dataDir, version string
	ports, firewall, bandwidth, noMasquerade, hairpin          bool
	vlan, mtu                                                  int
}

func newConfBridgeCommand(a *app) *cobra.Command {
	var f bridgeFlags
	cmd := &cobra.Command{
		Use:   "bridge --name NAME --subnet SUBNET",
		Short: "Prints the configuration of a network with a bridge.",
		Long: `Bridge prints the configuration of a network whose containers are on a bridge of the host.
The host is their default gateway, and hides their addresses from other networks. The
library attaches containers to it with its built-in plugins; the reference plugins take
the same file.`,
		Example: `  embedcni conf new bridge --name pods --subnet 10.1.0.0/24 --ports --firewall > /etc/cni/net.d/10-pods.conflist
  embedcni conf new bridge --name pods --subnet 10.1.0.0/24 --subnet6 fd00:1::/64 --bandwidth`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return a.confBridge(f) },
	}
	set := cmd.Flags()
	set.StringVar(&f.name, "name", "", "the network's `name`")
	set.StringVar(&f.bridge, "bridge", "", "the bridge's `name`; by default that of the network with 0")
	set.StringVar(&f.subnet, "subnet", "", "the IPv4 `subnet`, such as 10.1.0.0/24")
	set.StringVar(&f.subnet6, "subnet6", "", "the IPv6 `subnet`, such as fd00:1::/64")
	set.BoolVar(&f.ports, "ports", false, "forward ports of the host to containers (portmap)")
	set.BoolVar(&f.firewall, "firewall", false, "accept the containers' packets in the host's firewall")
	set.StringVar(&f.isolation, "isolate", "", "keep containers of other bridges out (same-bridge), or all others (isolated); has --firewall")
	set.BoolVar(&f.bandwidth, "bandwidth", false, "let a runtime limit the bandwidth of each container")
	set.BoolVar(&f.noMasquerade, "no-masquerade", false, "show the containers' addresses to other networks")
	set.BoolVar(&f.hairpin, "hairpin", false, "let a container reach itself through a port of the host")
	set.IntVar(&f.vlan, "vlan", 0, "the `VLAN` of the containers on the bridge")
	set.IntVar(&f.mtu, "mtu", 0, "the `MTU` of the containers' interfaces; 0 leaves it to the kernel")
	set.StringVar(&f.dataDir, "data-dir", "", "the `directory` of the addresses in use, if it is not host-local's default")
	set.StringVar(&f.version, "cni-version", netconf.DefaultVersion, "the `version` of the CNI specification; from 1.1.0 on plugins are asked for STATUS and GC")
	return cmd
}

func (a *app) confBridge(f bridgeFlags) error {
	network, err := f.network()
	if err != nil {
		return err
	}
	data, err := network.Render()
	if err != nil {
		return usageError("%w", err)
	}
	_, err = a.Out.Write(data)
	return err
}

// network makes a configuration of the flags.
func (f bridgeFlags) network() (n netconf.Network, err error) {
	if f.name == "" {
		return n, usageError("--name is missing")
	}
	ipam := netconf.HostLocal{DataDir: f.dataDir}
	for _, s := range []struct {
		flag, text string
		bits       int
	}{{"--subnet", f.subnet, 32}, {"--subnet6", f.subnet6, 128}} {
		if s.text == "" {
			continue
		}
		subnet, err := netip.ParsePrefix(s.text)
		switch {
		case err != nil:
			return n, usageError("%s: %w", s.flag, err)
		case subnet.Addr().BitLen() != s.bits:
			return n, usageError("%s %s is of the other family", s.flag, s.text)
		}
		ipam.Ranges = append(ipam.Ranges, netconf.Range{Subnet: subnet})
	}
	if len(ipam.Ranges) == 0 {
		return n, usageError("--subnet and --subnet6 are missing: name one of them")
	}
	bridge := netconf.Bridge{
		Name: f.bridge, DefaultGateway: true, Masquerade: !f.noMasquerade, Hairpin: f.hairpin, MTU: f.mtu, IPAM: ipam,
	}
	if bridge.Name == "" {
		bridge.Name = f.name + "0"
	}
	if f.vlan != 0 {
		bridge.Extra = map[string]any{"vlan": f.vlan}
	}
	n = netconf.Network{Name: f.name, Version: f.version, Plugins: []netconf.Plugin{bridge}}
	if f.firewall || f.isolation != "" {
		n.Plugins = append(n.Plugins, netconf.Firewall{IngressPolicy: f.isolation})
	}
	if f.ports {
		n.Plugins = append(n.Plugins, netconf.PortMap{})
	}
	if f.bandwidth {
		n.Plugins = append(n.Plugins, netconf.Bandwidth{})
	}
	return n, nil
}
