package portmap

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/plugin"
)

// conf is the configuration; PortMapConf in the reference plugin's main.go.
type conf struct {
	Backend              *string  `json:"backend"`
	SNAT                 *bool    `json:"snat"`
	ConditionsV4         []string `json:"conditionsV4"`
	ConditionsV6         []string `json:"conditionsV6"`
	MasqAll              bool     `json:"masqAll"`
	MarkMasqBit          *int     `json:"markMasqBit"`
	ExternalSetMarkChain *string  `json:"externalSetMarkChain"`
	RuntimeConfig        struct {
		PortMappings []mapping `json:"portMappings"`
	} `json:"runtimeConfig"`
}

// mapping is an entry of the capability portMappings.
type mapping struct {
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP"`
}

// request is the ports of a call.
type request struct {
	rules []netfilter.Rule // one for each port
	to    []netip.Prefix   // the container's addresses, one of a family at most
	snat  bool
	// only names the field that only the executable carries out, if there is one. Earlier
	// versions of this module had rules for it.
	only string
}

// none reports whether nothing is to be forwarded, or the container has no address for it.
func (c request) none() bool { return len(c.rules) == 0 || len(c.to) == 0 }

// load is parse for an ADD: it refuses what only the executable carries out.
func load(r *plugin.Request) (request, error) {
	c, err := parse(r, false)
	if err == nil && c.only != "" {
		err = contract.OnlyExecutable(conflist.Portmap, c.only)
	}
	return c, err
}

// parse reads and validates the request. An error has the code 7, "invalid network config".
// For a DEL it leaves out invalid ports: nothing was made for them, and if DEL failed because
// of them, the plugins in front in the chain would never be deleted.
func parse(r *plugin.Request, del bool) (request, error) {
	var conf conf
	if err := r.Decode(&conf); err != nil {
		return request{}, err
	}
	c, err := conf.call(del)
	if err != nil {
		return request{}, plugin.Errorf(types.ErrInvalidNetworkConfig, "plugin portmap: %w", err)
	}
	if r.PrevResult != nil {
		v4, v6 := contract.FirstAddresses(r.PrevResult, r.IfName)
		c.to = slices.DeleteFunc([]netip.Prefix{v4, v6}, func(p netip.Prefix) bool { return !p.IsValid() })
	}
	for i := range c.rules {
		c.rules[i].Owner = netfilter.Owner{Network: r.Name, ContainerID: r.ContainerID, IfName: r.IfName}
		c.rules[i].Addresses = c.to
	}
	return c, nil
}

// call validates the configuration, but for a DEL leaves out invalid ports.
func (conf conf) call(del bool) (request, error) {
	c := request{snat: conf.SNAT == nil || *conf.SNAT}
	if conf.MarkMasqBit != nil && conf.ExternalSetMarkChain != nil {
		return c, errors.New("externalSetMarkChain and markMasqBit exclude each other")
	}
	if bit := conf.MarkMasqBit; bit != nil && (*bit < 0 || *bit > 31) {
		return c, fmt.Errorf("markMasqBit is %d: it must be between 0 and 31", *bit)
	}
	var err error
	if c.only, err = conf.onlyExecutable(); err != nil {
		return c, err
	}
	conditional := strings.Join(slices.Concat(conf.ConditionsV4, conf.ConditionsV6), "") != ""
	for _, m := range conf.RuntimeConfig.PortMappings {
		p, err := m.hostPort()
		if err != nil && del {
			continue
		}
		if err != nil {
			return c, err
		}
		c.rules = append(c.rules, netfilter.Rule{Kind: netfilter.Publish, Port: p, SNAT: c.snat, MasqAll: conf.MasqAll, Conditional: conditional})
	}
	return c, nil
}

// The backends of the executable.
const (
	iptables = "iptables"
	nftables = "nftables"
)

// onlyExecutable returns a field that only the executable carries out: the backend
// iptables, settings for it, and conditions. It fails unless the settings belong to one
// backend, which is the named one if one is named.
func (conf conf) onlyExecutable() (field string, err error) {
	needs := map[string][]string{}
	need := func(backend, field string) { needs[backend] = append(needs[backend], field) }
	if conf.ExternalSetMarkChain != nil {
		need(iptables, "externalSetMarkChain")
	}
	need(backendOf(conf.ConditionsV4), "conditionsV4")
	need(backendOf(conf.ConditionsV6), "conditionsV6")
	all := slices.Concat(needs[iptables], needs[nftables])
	other := map[string]string{iptables: nftables, nftables: iptables}
	switch named := conf.Backend; {
	case named != nil && other[*named] == "":
		return "", fmt.Errorf(`backend is %q: it must be "iptables" or "nftables"`, *named)
	case named != nil && len(needs[other[*named]]) > 0:
		return "", fmt.Errorf("backend is %q, and %s for the other one", *named, strings.Join(needs[other[*named]], ", "))
	case named != nil && *named == iptables:
		return `"backend": "iptables"`, nil
	case len(needs[iptables]) > 0 && len(needs[nftables]) > 0:
		return "", fmt.Errorf("%s are for the backend iptables, and %s for nftables",
			strings.Join(needs[iptables], ", "), strings.Join(needs[nftables], ", "))
	case len(all) > 0:
		return strconv.Quote(all[0]), nil
	case named == nil && conf.MarkMasqBit != nil:
		return `"markMasqBit"`, nil // other rules of the administrator use it
	}
	return "", nil
}

// backendOf returns the backend of conditions, or "", by their first character: those of
// iptables begin with a hyphen or an exclamation mark, and none of nft's do.
func backendOf(all []string) string {
	switch {
	case len(all) == 0 || all[0] == "":
		return ""
	case all[0][0] == '-' || all[0][0] == '!':
		return iptables
	}
	return nftables
}

// hostPort validates a mapping.
func (m mapping) hostPort() (netfilter.HostPort, error) {
	var p netfilter.HostPort
	const most = 1<<16 - 1
	if m.ContainerPort <= 0 || m.ContainerPort > most {
		return p, fmt.Errorf("portMappings: invalid container port number: %d", m.ContainerPort)
	}
	if m.HostPort <= 0 || m.HostPort > most {
		return p, fmt.Errorf("portMappings: invalid host port number: %d", m.HostPort)
	}
	p.HostPort, p.ContainerPort, p.Protocol = uint16(m.HostPort), uint16(m.ContainerPort), strings.ToLower(m.Protocol)
	if !slices.Contains([]string{"tcp", "udp", "sctp"}, p.Protocol) {
		return p, fmt.Errorf("portMappings: the protocol of host port %d is %q: it must be tcp, udp or sctp", m.HostPort, m.Protocol)
	}
	if m.HostIP == "" {
		return p, nil
	}
	ip, err := netip.ParseAddr(m.HostIP)
	if err != nil || ip.Zone() != "" {
		return p, fmt.Errorf("portMappings: the hostIP of host port %d is no IP address: %q", m.HostPort, m.HostIP)
	}
	p.HostIP = ip.Unmap()
	return p, nil
}
