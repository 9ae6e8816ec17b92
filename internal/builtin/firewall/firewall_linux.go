// Package firewall allows the forwarding of a container's packets, whatever the
// policy for forwarding is, and separates bridges if configured.
package firewall

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/embedcni/cni/internal/kernel/firewalld"
	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// Plugin is the plugin "firewall". It runs after a plugin that gives the
// container its addresses.
type Plugin struct{}

// Versions returns the versions from 0.4.0 on, with which DEL gets a previous
// result.
func (Plugin) Versions() []string { return version.VersionsStartingFrom("0.4.0").SupportedVersions() }

// Add accepts packets from and to the addresses of the previous result, and
// returns that result.
func (Plugin) Add(ctx context.Context, r *plugin.Request) (*types100.Result, error) {
	w, err := parse(ctx, r)
	if err != nil {
		return nil, err
	}
	result, err := r.Chained()
	if err != nil {
		return nil, err
	}
	if w.backend == netfilter.DetectedFirewalld {
		err = w.enterZone(ctx)
	}
	if err == nil {
		err = w.given.Firewalls(r.Host).Add(ctx, w.rules()...)
	}
	if err != nil {
		return nil, err
	}
	return result, nil
}

// Del undoes Add, as far as the addresses are known. The separation of bridges
// stays, because other containers may be on the bridge. The rules in iptables are the
// network's: the runtime deletes them with its last container.
func (Plugin) Del(ctx context.Context, r *plugin.Request) error {
	w, err := parse(ctx, r)
	if err != nil || r.PrevResult == nil {
		return err
	}
	if w.backend == netfilter.DetectedFirewalld {
		return w.leaveZone(ctx)
	}
	return nil
}

// errNotAvailable is "plugin not available", CNI specification 1.1.0, section 5.
const errNotAvailable = 50

// Status refuses a configuration that every Add refuses. If the configuration
// names firewalld, Status fails unless one runs.
func (Plugin) Status(ctx context.Context, r *plugin.Request) error {
	w, err := parse(ctx, r)
	if err != nil || w.named() != netfilter.DetectedFirewalld {
		return err
	}
	running, err := w.given.Bus.Running(ctx, r.Host)
	if err != nil {
		return plugin.Errorf(errNotAvailable, "plugin firewall: %w", err)
	}
	if !running {
		return plugin.Errorf(errNotAvailable, `plugin firewall: "backend" is "firewalld", and no firewalld runs: start it`)
	}
	return nil
}

// anyBackend means that the detected backend is unknown: a reference plugin may
// have made the rules.
const anyBackend = ""

// work is a request, with its backend and the rules for it.
type work struct {
	conf
	request *plugin.Request
	given   *contract.Given
	backend string         // netfilter.Detected…, or anyBackend
	addrs   []netip.Prefix // the container's, as far as they are known
	bridge  string         // with an ingress policy
}

// parse reads and validates the request. An error of the configuration has the
// code 7, "invalid network config".
func parse(ctx context.Context, r *plugin.Request) (work, error) {
	w := work{request: r, given: contract.From(ctx)}
	err := r.Decode(&w.conf)
	if err != nil {
		return w, err
	}
	if r.PrevResult != nil {
		w.addrs = contract.PrefixesOf(r.PrevResult)
	}
	if w.bridge, err = w.conf.bridge(r.PrevResult); err != nil {
		return w, plugin.Errorf(types.ErrInvalidNetworkConfig, "plugin firewall: %w", err)
	}
	if w.backend = w.named(); w.backend != "" {
		return w, nil
	}
	if w.given.Filters.Executable || w.given.Filters.Detected != "" {
		w.backend = w.given.Filters.Detected
		return w, nil
	}
	if w.backend, err = w.detect(ctx, w.given.Bus, r.Host); err != nil {
		return w, plugin.Errorf(types.ErrInternal, "plugin firewall: %w", err)
	}
	return w, nil
}

// rules returns the rules. Packets are accepted in iptables if that decides about them:
// it was detected, or the configuration names an administrator's chain or a backend, also
// one that the reference plugin does not know, as there.
func (w work) rules() (all []netfilter.Rule) {
	owner := netfilter.Owner{Network: w.request.Name, ContainerID: w.request.ContainerID, IfName: w.request.IfName}
	elsewhere := w.backend == netfilter.DetectedFirewalld ||
		w.backend == netfilter.DetectedNative && w.Backend == "" && w.IPTablesAdminChainName == ""
	for _, a := range w.addrs {
		if !elsewhere {
			all = append(all, netfilter.Rule{Owner: owner, Kind: netfilter.Accept, Addresses: []netip.Prefix{a}, AdminChain: w.IPTablesAdminChainName})
		}
	}
	if w.bridge != "" {
		all = append(all, netfilter.Rule{Owner: owner, Kind: netfilter.Ingress, Addresses: w.addrs, Policy: w.IngressPolicy, Bridge: w.bridge})
	}
	return all
}

// bridge returns the bridge that the ingress policy is for: the plugin bridge reports it
// first. It is empty without a policy or a result.
func (c conf) bridge(result *types100.Result) (string, error) {
	switch c.IngressPolicy {
	case "", "open":
		return "", nil
	case "same-bridge", "isolated":
	default:
		return "", fmt.Errorf(`ingressPolicy is %q: it must be "open", "same-bridge" or "isolated"`, c.IngressPolicy)
	}
	if result == nil {
		return "", nil
	}
	if len(result.Interfaces) == 0 || result.Interfaces[0] == nil || result.Interfaces[0].Name == "" {
		return "", fmt.Errorf(`ingressPolicy %q needs a bridge, which is the first interface of the result before: `+
			`let "firewall" follow "bridge"`, c.IngressPolicy)
	}
	return result.Interfaces[0].Name, nil
}

// conf is the configuration; FirewallNetConf in the reference plugin's
// firewall.go.
type conf struct {
	Backend                string `json:"backend"`
	IPTablesAdminChainName string `json:"iptablesAdminChainName"`
	FirewalldZone          string `json:"firewalldZone"`
	IngressPolicy          string `json:"ingressPolicy"`
}

// named returns the backend that the configuration names, or "" if it names
// none. The reference plugin treats any other word as none: Nomad's own
// configurations say "ip6tables".
func (c conf) named() string {
	if c.Backend == netfilter.DetectedIPTables || c.Backend == netfilter.DetectedFirewalld {
		return c.Backend
	}
	return ""
}

// Detect returns the backend of an ADD in the namespace host if the
// configuration names none, and "" if it names one.
func (Plugin) Detect(ctx context.Context, host *netns.Handle, config json.RawMessage) (string, error) {
	var c conf
	if json.Unmarshal(config, &c) != nil || c.named() != "" {
		return "", nil // ADD reports an invalid configuration
	}
	return c.detect(ctx, contract.From(ctx).Bus, host)
}

// detect finds out which packet filter decides on this host: a running
// firewalld, else iptables if it is installed, else nf_tables. A packet that one
// packet filter accepts can still be dropped by another.
func (c conf) detect(ctx context.Context, bus *firewalld.Bus, host *netns.Handle) (string, error) {
	running, err := bus.Running(ctx, host)
	switch {
	case err != nil:
		return "", fmt.Errorf(`whether a firewalld runs, which may drop the container's packets, cannot be found out: %w; `+
			`mend the D-Bus, or set "backend" to "firewalld" or "iptables"`, err)
	case running:
		return netfilter.DetectedFirewalld, nil
	case c.Backend != "" || c.IPTablesAdminChainName != "":
		return netfilter.DetectedIPTables, nil
	}
	return netfilter.Detect(), nil
}

// zone returns the zone of firewalld in which the addresses are accepted.
func (c conf) zone() string { return cmp.Or(c.FirewalldZone, firewalld.DefaultZone) }
