package handover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/footprint"
	"github.com/embedcni/cni/internal/invoke"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
)

// Host answers questions that depend on the state of the host.
type Host interface {
	// HasBuiltIn reports whether a plugin of a type is built in.
	HasBuiltIn(typ string) bool
	// FirewallBackend returns the backend that the executable of firewall would
	// choose now.
	FirewallBackend(ctx context.Context, config json.RawMessage) (string, error)
}

// Attachment returns nil if go-cni could remove the attachment. notes are the
// attachment's own.
func (g *GoCNI) Attachment(ctx context.Context, a *footprint.Attachment, notes netfilter.Notes) error {
	errs := []error{g.sameConfiguration(a), g.cached(a)}
	all := types(a.List)
	for _, p := range a.Ran { // with those that the chain's plugins delegate to
		if !slices.Contains(all, p.Type) {
			all = append(all, p.Type)
		}
	}
	for _, typ := range all {
		errs = append(errs, g.installed(a, typ))
	}
	r := rules{a, notes, g.Host}
	for _, p := range a.List.Plugins {
		errs = append(errs, r.undoneByExecutable(ctx, p))
	}
	return errors.Join(errs...)
}

// rules are the packet filter rules of an attachment.
type rules struct {
	*footprint.Attachment
	notes netfilter.Notes
	host  Host
}

// ruleConfig has the fields of a plugin's configuration that decide where its rules
// are, and which programs its executable needs to delete them.
type ruleConfig struct {
	IPMasq        json.RawMessage `json:"ipMasq"`
	IPMasqBackend *string         `json:"ipMasqBackend"`
	MACSpoofChk   json.RawMessage `json:"macspoofchk"`
	Backend       *string         `json:"backend"`
}

// undoneByExecutable returns nil if the executable of a plugin's type would delete
// the rules of the attachment. It would not if a built-in plugin has put them into
// this module's own table, if it would choose another backend or variant of
// iptables, or if a program that it needs is missing.
func (r rules) undoneByExecutable(ctx context.Context, p *libcni.PluginConfig) error {
	var c ruleConfig
	if err := json.Unmarshal(p.Bytes, &c); !footprint.Readable(err) {
		return err
	}
	var errs []error
	switch typ := p.Network.Type; known.Of(typ).Rules {
	case known.Masquerade:
		if footprint.Perhaps(c.IPMasq) && p.Network.IPAM.Type != "" {
			errs = append(errs, r.namedBackend(typ, c.IPMasqBackend))
		}
		if typ == known.Bridge && footprint.Perhaps(c.MACSpoofChk) {
			errs = append(errs, needs(typ, "nft"))
		}
	case known.HostPorts:
		if p.Network.Capabilities[portMappings] && r.ForwardsPorts() {
			errs = append(errs, r.namedBackend(typ, c.Backend))
		}
	case known.Forward:
		errs = append(errs, r.firewallBackend(ctx, p.Bytes, c.Backend))
	}
	return errors.Join(errs...)
}

// portMappings is the capability of CONVENTIONS.md.
const portMappings = "portMappings"

// maybeBuiltIn reports whether a built-in plugin attached the container, or may
// have. A record of an earlier version does not name the plugin.
func (r rules) maybeBuiltIn(typ string) bool {
	if _, named := r.Plugin(typ); !named {
		return r.host.HasBuiltIn(typ)
	}
	return r.IsBuiltIn(typ)
}

// own returns an error if the rules of a plugin may be this module's own. Versions that
// recorded no kind of plugin made them in the form of a named backend.
func (r rules) own(typ string, named bool) error {
	if _, kinds := r.Plugin(typ); named && !kinds {
		return nil
	}
	if !r.maybeBuiltIn(typ) && string(r.notes.Fact(typ+".restored")) != "true" {
		return nil
	}
	return fmt.Errorf("plugin %q has its rules in this module's form, and its executable does not find them; Remove the container", typ)
}

// namedBackend is undoneByExecutable for a plugin whose configuration may name the
// backend.
func (r rules) namedBackend(typ string, backend *string) error {
	err := r.own(typ, backend != nil)
	switch {
	case err != nil || backend == nil:
		return err // the executable made the rules, and finds them again
	case *backend == "nftables":
		return needs(typ, "nft")
	case *backend == "iptables":
		return needs(typ, r.iptables()...)
	}
	return nil
}

// iptables returns the iptables programs for the families of the attachment's
// addresses.
func (r rules) iptables() []string {
	var all []string
	for _, addr := range footprint.Addresses(r.Result) {
		program := "ip6tables"
		if addr.Is4() {
			program = "iptables"
		}
		if !slices.Contains(all, program) {
			all = append(all, program)
		}
	}
	return all
}

// firewallBackend is undoneByExecutable for firewall. If the configuration names no
// backend, its executable chooses one by the state of the host at the time of the
// call.
func (r rules) firewallBackend(ctx context.Context, config json.RawMessage, backend *string) error {
	named := backend != nil && (*backend == "iptables" || *backend == "firewalld")
	var uses string
	if named {
		uses = *backend
	} else {
		var err error
		if uses, err = r.host.FirewallBackend(ctx, config); err != nil {
			return fmt.Errorf("plugin %q: detect the backend that its executable would choose: %w", known.Firewall, err)
		}
	}
	if uses == fwrules.DetectedFirewalld {
		if p, _ := r.Plugin(known.Firewall); !named && r.maybeBuiltIn(known.Firewall) && p.Backend != uses {
			return fmt.Errorf(`plugin "firewall" is built in and was made for backend %q, and its executable would choose another one; Remove the container`, p.Backend)
		}
		return nil
	}
	return errors.Join(r.own(known.Firewall, named), needs(known.Firewall, "iptables", "ip6tables"))
}

// needs returns an error if a program is missing that the executable of a type needs
// to delete rules.
func needs(typ string, programs ...string) error {
	for _, program := range programs {
		if err := invoke.FindProgram(program); err != nil {
			return fmt.Errorf("plugin %q: its executable deletes rules by the program %s: %w; install it, or Remove the container", typ, program, err)
		}
	}
	return nil
}
