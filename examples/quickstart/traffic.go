package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/netns"
)

// echoPort is the port of web's and the host's servers, over TCP and UDP.
const echoPort = 80

// probe is one proof: a client in a namespace gets an answer from an address.
type probe struct {
	what     string // "client → web"
	network  string
	from     *netns.Handle
	protocol string // tcp or udp
	to       netip.AddrPort
}

// proveTraffic starts servers in web and on the host, probes every way that the
// networks provide, and prints a line for each.
func proveTraffic(ctx context.Context, out io.Writer, rt *cni.Runtime, web, client *container) (err error) {
	host, err := netns.Current()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, host.Close()) }()

	for _, at := range []*netns.Handle{web.ns, host} {
		server, err := serveEcho(ctx, at, echoPort)
		if err != nil {
			return err
		}
		defer server.Close()
	}

	probes := planProbes(rt, web, client.ns, host)
	if len(probes) == 0 {
		return errors.New("no network gave the containers an address, so there is no traffic to prove")
	}
	failed := 0
	for _, p := range probes {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !p.prove(ctx, out) {
			failed++
		}
	}
	fmt.Fprintln(out)
	if failed > 0 {
		return fmt.Errorf("%d of %d ways have no traffic", failed, len(probes))
	}
	return nil
}

// prove runs the probe and prints its outcome.
func (p probe) prove(ctx context.Context, out io.Writer) bool {
	took, err := p.echo(ctx)
	mark, outcome := "✓", "  "+precise(took)
	if err != nil {
		mark, outcome = "✗", err.Error()
	}
	fmt.Fprintf(out, "%s  %-15s  %-12s  %-3s  %s  %-22s  %s\n", mark, p.what, p.network, p.protocol, familyOf(p.to.Addr()), p.to, outcome)
	return err == nil
}

// planProbes lists the ways of all networks: container to container, container
// to host, and the host's mapped port to the container if the network maps
// ports. Each goes to all of web's addresses over both protocols.
func planProbes(rt *cni.Runtime, web *container, client, host *netns.Handle) []probe {
	var probes []probe
	for _, n := range web.result.Networks {
		add := func(what string, from *netns.Handle, to func(cni.Address) netip.Addr, port uint16) {
			for _, protocol := range []string{"tcp", "udp"} {
				for _, a := range addresses(n) {
					if addr := to(a); addr.IsValid() {
						probes = append(probes, probe{what, n.Name, from, protocol, netip.AddrPortFrom(addr, port)})
					}
				}
			}
		}
		// The gateway is the host's own address on the network.
		gateway := func(a cni.Address) netip.Addr { return a.Gateway }

		add("client → web", client, cni.Address.IP, echoPort)
		add("client → host", client, gateway, echoPort)
		if mapsPorts(rt, n.Name) {
			add("host port → web", host, gateway, uint16(web.ports[0].HostPort))
		}
	}
	return probes
}

// addresses returns the container's reachable addresses on the network, in the
// plugins' order.
func addresses(n *cni.NetworkResult) []cni.Address {
	var found []cni.Address
	for _, i := range inside(n) {
		for _, a := range i.Addresses {
			if !a.IP().IsLoopback() {
				found = append(found, a)
			}
		}
	}
	return found
}

// mapsPorts reports whether a plugin of the network declares port mappings.
func mapsPorts(rt *cni.Runtime, network string) bool {
	for _, n := range rt.GetConfig().Networks {
		if n.Config.Name == network {
			return slices.ContainsFunc(n.Config.Plugins, func(p *cni.NetworkConf) bool {
				return p.Network.Capabilities["portMappings"]
			})
		}
	}
	return false
}
