package netconf

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/store/conflist"
)

// Bridge makes a bridge on the host, unless it exists, and connects the container to it.
type Bridge struct {
	// Name is the bridge's, at most 15 characters. A name of its own for each network keeps
	// their containers apart.
	Name string `cni:"bridge"`
	// Gateway gives the bridge the gateway's address of each range. DefaultGateway makes it
	// the containers' default route, too; it excludes default routes of [HostLocal], of
	// which the reference plugin would add a second.
	Gateway        bool `cni:"isGateway"`
	DefaultGateway bool `cni:"isDefaultGateway"`
	// ForceAddress replaces another address of the bridge.
	ForceAddress bool `cni:"forceAddress"`
	// Hairpin lets a container reach itself through a port of the host.
	Hairpin bool `cni:"hairpinMode"`
	// Masquerade hides the containers' addresses from other networks.
	Masquerade bool `cni:"ipMasq"`
	// MTU is that of the container's interface; 0 leaves it to the kernel.
	MTU int `cni:"mtu"`
	// IPAM assigns addresses; nil assigns none.
	IPAM IPAM
	// Extra are further fields.
	Extra map[string]any
}

func (b Bridge) render(n Network) (any, error) {
	var o object
	o.set("type", conflist.Bridge)
	o.fields(b)
	errs := []error{validateLinkName(b.Name)}
	if h, ok := b.IPAM.(HostLocal); ok && b.DefaultGateway && slices.ContainsFunc(h.allRoutes(), Route.isDefault) {
		errs = append(errs, errors.New("field DefaultGateway and default routes of HostLocal exclude each other"))
	}
	errs = append(errs, PTP{b.Masquerade, b.MTU, b.IPAM, b.Extra}.connect(conflist.Bridge, n, &o))
	return o, wrap(conflist.Bridge, errs...)
}

// PTP connects the container to the host by a pair of interfaces, without a bridge.
type PTP struct {
	// Masquerade hides the container's addresses from other networks.
	Masquerade bool `cni:"ipMasq"`
	// MTU is that of the container's interface; 0 leaves it to the kernel.
	MTU int `cni:"mtu"`
	// IPAM assigns addresses, without which there is no interface.
	IPAM IPAM
	// Extra are further fields.
	Extra map[string]any
}

func (p PTP) render(n Network) (any, error) {
	var o object
	o.set("type", conflist.PTP)
	o.fields(p)
	errs := []error{p.connect(conflist.PTP, n, &o)}
	if p.IPAM == nil {
		errs = append(errs, errors.New("field IPAM is missing"))
	}
	return o, wrap(conflist.PTP, errs...)
}

// connect adds what PTP and Bridge have in common, behind the fields of a plugin of that
// type, and validates it.
func (p PTP) connect(typ string, n Network, o *object) error {
	var errs []error
	types := []string{typ}
	least := 68 // RFC 791
	if p.IPAM != nil {
		ipam, err := p.IPAM.render(n)
		o.set("ipam", ipam)
		types = append(types, typeOf(p.IPAM)) // run with the same configuration
		errs = append(errs, err)
		if h, ok := p.IPAM.(HostLocal); ok && slices.ContainsFunc(h.Ranges, func(r Range) bool { return r.family().Is6() }) {
			least = 1280 // RFC 8200
		}
	}
	if p.MTU != 0 && (p.MTU < least || p.MTU > 65535) {
		errs = append(errs, fmt.Errorf("field MTU is %d: it must be between %d and 65535", p.MTU, least))
	}
	o.declare(p.Extra, types...)
	return joined.Errors(append(errs, o.extend(p.Extra))...)
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

// wrap names the plugin in an error.
func wrap(plugin string, errs ...error) error {
	if err := joined.Errors(errs...); err != nil {
		return fmt.Errorf("%s: %w", plugin, err)
	}
	return nil
}
