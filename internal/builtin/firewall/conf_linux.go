package firewall

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/embedcni/cni/internal/firewalld"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/netns"
)

// conf is the configuration, FirewallNetConf in the reference plugin's
// firewall.go.
type conf struct {
	Backend                string `json:"backend"`
	IPTablesAdminChainName string `json:"iptablesAdminChainName"`
	FirewalldZone          string `json:"firewalldZone"`
	IngressPolicy          string `json:"ingressPolicy"`
}

// named returns the backend that the configuration names, empty if it names none.
// A word that is neither of the two means nothing to the reference plugin:
// Nomad's own configurations say "ip6tables".
func (c conf) named() string {
	switch c.Backend {
	case "iptables":
		return netfilter.DetectedIPTables
	case "firewalld":
		return netfilter.DetectedFirewalld
	}
	return ""
}

// Detect returns what an ADD in the namespace host goes by if the configuration
// names no backend, and nothing if it does.
func (Plugin) Detect(ctx context.Context, host *netns.Handle, config json.RawMessage) (string, error) {
	var c conf
	if json.Unmarshal(config, &c) != nil || c.named() != "" {
		return "", nil // what is wrong with it is for ADD to say
	}
	return c.detect(ctx, host)
}

// detect finds out who decides about the packets of this host: a firewalld that
// runs, or iptables where the host has it. To accept a packet in one packet
// filter does not keep another one from dropping it.
func (c conf) detect(ctx context.Context, host *netns.Handle) (string, error) {
	running, err := firewalld.From(ctx).Running(ctx, host)
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

// zone is that of firewalld in which the addresses are accepted.
func (c conf) zone() string {
	if c.FirewalldZone == "" {
		return firewalld.DefaultZone
	}
	return c.FirewalldZone
}
