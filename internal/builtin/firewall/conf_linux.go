package firewall

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/firewalld"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/netns"
)

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
	switch c.Backend {
	case "iptables":
		return fwrules.DetectedIPTables
	case "firewalld":
		return fwrules.DetectedFirewalld
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
	return c.detect(ctx, caller.From(ctx).Bus, host)
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
		return fwrules.DetectedFirewalld, nil
	case c.Backend != "" || c.IPTablesAdminChainName != "":
		return fwrules.DetectedIPTables, nil
	}
	return netfilter.Detect(), nil
}

// zone returns the zone of firewalld in which the addresses are accepted.
func (c conf) zone() string { return cmp.Or(c.FirewalldZone, firewalld.DefaultZone) }
