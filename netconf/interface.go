package netconf

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/embedcni/cni/internal/known"
)

// Bridge makes a bridge on the host, unless it exists, and connects the container to it.
type Bridge struct {
	// Name is the bridge's, at most 15 characters. A name of its own for each network keeps
	// their containers apart.
	Name string
	// Gateway gives the bridge the gateway's address of each range. DefaultGateway makes it
	// the containers' default route, too; it excludes default routes of HostLocal, of
	// which the reference plugin would add a second.
	Gateway, DefaultGateway bool
	// ForceAddress replaces another address of the bridge.
	ForceAddress bool
	// Masquerade hides the containers' addresses from other networks, with rules of
	// MasqueradeBackend: "iptables", "nftables", or empty for the plugin's default.
	Masquerade        bool
	MasqueradeBackend string
	// Hairpin lets a container reach itself through a port of the host.
	Hairpin bool
	// Promiscuous puts the bridge into that mode. It excludes Hairpin.
	Promiscuous bool
	// Isolate keeps the containers on the bridge from each other, and MACSpoofCheck from
	// sending with another hardware address.
	Isolate, MACSpoofCheck bool
	// MTU is that of the container's interface; 0 leaves it to the kernel.
	MTU int
	// VLAN is that of the container's port, from 1 to 4094; 0 is none.
	VLAN int
	// IPAM assigns addresses; nil assigns none.
	IPAM IPAM
	DNS  DNS
	// Extra are further fields.
	Extra map[string]any
}

func (b Bridge) render(n Network) (any, error) {
	var o object
	o.set("type", known.Bridge)
	o.set("bridge", b.Name)
	setIf(&o, "isGateway", b.Gateway)
	setIf(&o, "isDefaultGateway", b.DefaultGateway)
	setIf(&o, "forceAddress", b.ForceAddress)
	setIf(&o, "hairpinMode", b.Hairpin)
	setIf(&o, "promiscMode", b.Promiscuous)
	setIf(&o, "portIsolation", b.Isolate)
	setIf(&o, "macspoofchk", b.MACSpoofCheck)
	setIf(&o, "vlan", b.VLAN)
	errs := []error{validateLinkName(b.Name)}
	if b.Hairpin && b.Promiscuous {
		errs = append(errs, errors.New("fields Hairpin and Promiscuous exclude each other"))
	}
	if h, ok := b.IPAM.(HostLocal); ok && b.DefaultGateway && slices.ContainsFunc(h.allRoutes(), Route.isDefault) {
		errs = append(errs, errors.New("field DefaultGateway and default routes of HostLocal exclude each other"))
	}
	if b.VLAN < 0 || b.VLAN > 4094 {
		errs = append(errs, fmt.Errorf("field VLAN is %d: it must be between 1 and 4094", b.VLAN))
	}
	errs = append(errs, pair{known.Bridge, b.Masquerade, b.MasqueradeBackend, b.MTU, b.IPAM, b.DNS, b.Extra}.render(n, &o))
	return o, wrap(known.Bridge, errs...)
}

// PTP connects the container to the host by a pair of interfaces, without a bridge.
type PTP struct {
	// Masquerade hides the container's addresses from other networks, with rules of
	// MasqueradeBackend: "iptables", "nftables", or empty for the plugin's default.
	Masquerade        bool
	MasqueradeBackend string
	// MTU is that of the container's interface; 0 leaves it to the kernel.
	MTU int
	// IPAM assigns addresses, without which there is no interface.
	IPAM IPAM
	DNS  DNS
	// Extra are further fields.
	Extra map[string]any
}

func (p PTP) render(n Network) (any, error) {
	var o object
	o.set("type", known.PTP)
	errs := []error{pair{known.PTP, p.Masquerade, p.MasqueradeBackend, p.MTU, p.IPAM, p.DNS, p.Extra}.render(n, &o)}
	if p.IPAM == nil {
		errs = append(errs, errors.New("field IPAM is missing"))
	}
	return o, wrap(known.PTP, errs...)
}

// pair is the common part of Bridge and PTP.
type pair struct {
	typ        string
	masquerade bool
	backend    string
	mtu        int
	ipam       IPAM
	dns        DNS
	extra      map[string]any
}

func (p pair) render(n Network, o *object) error {
	setIf(o, "ipMasq", p.masquerade)
	setIf(o, "ipMasqBackend", p.backend)
	setIf(o, "mtu", p.mtu)
	errs := []error{validateBackend("MasqueradeBackend", p.backend)}
	if p.backend != "" && !p.masquerade {
		errs = append(errs, errors.New("field MasqueradeBackend is set, but Masquerade is not"))
	}
	types := []string{p.typ}
	least := 68 // RFC 791
	if p.ipam != nil {
		ipam, err := p.ipam.render(n)
		o.set("ipam", ipam)
		types = append(types, typeOf(p.ipam)) // run with the same configuration
		errs = append(errs, err)
		if h, ok := p.ipam.(HostLocal); ok && slices.ContainsFunc(h.all(), func(r Range) bool { return r.family().Is6() }) {
			least = 1280 // RFC 8200
		}
	}
	if p.mtu != 0 && (p.mtu < least || p.mtu > 65535) {
		errs = append(errs, fmt.Errorf("field MTU is %d: it must be between %d and 65535", p.mtu, least))
	}
	o.declare(p.extra, types...)
	return errors.Join(append(errs, p.dns.render(o), o.extend(p.extra))...)
}

// validateLinkName checks a name as the kernel does. It replaces % by a number.
func validateLinkName(name string) error {
	switch {
	case name == "":
		return errors.New("field Name is missing")
	case len(name) > 15:
		return fmt.Errorf("field Name is %q: an interface's name has at most 15 characters", name)
	case name == "." || name == ".." || strings.ContainsAny(name, "/:% \t\n\v\f\r\x00"):
		return fmt.Errorf("field Name is %q, which the kernel refuses or changes", name)
	}
	return nil
}

func validateBackend(field, backend string) error {
	if !slices.Contains([]string{"", "iptables", "nftables"}, backend) {
		return fmt.Errorf(`%s is %q: it must be "iptables" or "nftables"`, field, backend)
	}
	return nil
}

// wrap names the plugin in an error.
func wrap(plugin string, errs ...error) error {
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%s: %w", plugin, err)
	}
	return nil
}

func parseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err == nil && a.Zone() != "" {
		err = fmt.Errorf("%q has a zone", s)
	}
	return a, err
}
