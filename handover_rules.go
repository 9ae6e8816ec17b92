package cni

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/firewalld"
	"github.com/embedcni/cni/internal/footprint"
	"github.com/embedcni/cni/internal/invoke"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/netfilter"
)

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
func (a *attachment) undoneByExecutable(ctx context.Context, p *libcni.PluginConfig) error {
	var c ruleConfig
	if err := json.Unmarshal(p.Bytes, &c); !footprint.Readable(err) {
		return err
	}
	var errs []error
	switch typ := p.Network.Type; known.Of(typ).Rules {
	case known.Masquerade:
		if footprint.Perhaps(c.IPMasq) && p.Network.IPAM.Type != "" {
			errs = append(errs, a.namedBackend(ctx, typ, "ipMasqBackend", c.IPMasqBackend))
		}
		if typ == known.Bridge && footprint.Perhaps(c.MACSpoofChk) {
			errs = append(errs, needs(typ, "nft"))
		}
	case known.HostPorts:
		if p.Network.Capabilities[capPortMappings] && a.described().ForwardsPorts() {
			errs = append(errs, a.namedBackend(ctx, typ, "backend", c.Backend))
		}
	case known.Forward:
		errs = append(errs, a.firewallBackend(ctx, p.Bytes, c.Backend))
	}
	return join(errs...)
}

// maybeBuiltIn reports whether a built-in plugin attached the container, or may
// have. A record of an earlier version does not name the plugin.
func (a *attachment) maybeBuiltIn(typ string) bool {
	c, ok, known := a.kinds.get(typ)
	if !known {
		return a.op.choice.builtIn(typ) != nil
	}
	return ok && c.Kind == string(PluginBuiltIn)
}

// namedBackend is undoneByExecutable for a plugin whose configuration names the
// backend in a field.
func (a *attachment) namedBackend(ctx context.Context, typ, field string, backend *string) error {
	if backend == nil && a.maybeBuiltIn(typ) {
		return fmt.Errorf("plugin %q is built in, and its configuration names no %q: its executable does not find the rules; Remove the container",
			typ, field)
	}
	switch {
	case backend != nil && *backend == string(netfilter.NFTables):
		return needs(typ, "nft")
	case backend != nil && *backend == string(netfilter.IPTables):
		return join(needs(typ, a.iptables()...), a.sameVariant(ctx, typ))
	}
	return nil // the executable made the rules, and finds them again
}

// iptables returns the iptables programs for the families of the attachment's
// addresses.
func (a *attachment) iptables() []string {
	var all []string
	for _, addr := range footprint.Addresses(json.RawMessage(a.partial)) {
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
func (a *attachment) firewallBackend(ctx context.Context, config json.RawMessage, backend *string) error {
	named := backend != nil && (*backend == "iptables" || *backend == "firewalld")
	uses := netfilter.DetectedIPTables
	if named {
		uses = *backend
	} else if d, ok := a.op.choice.builtIn(known.Firewall).(detector); ok {
		var err error
		if uses, err = d.Detect(firewalld.With(ctx, a.op.bus), a.op.host.Handle, config); err != nil {
			return fmt.Errorf("plugin %q: detect the backend that its executable would choose: %w", known.Firewall, err)
		}
	}
	if c, _, _ := a.kinds.get(known.Firewall); !named && a.maybeBuiltIn(known.Firewall) && (c.Backend != uses || uses == netfilter.DetectedNative) {
		return fmt.Errorf(`plugin "firewall" is built in and was made for backend %q, and its executable would choose another one; Remove the container`, c.Backend)
	}
	if uses != netfilter.DetectedIPTables && uses != netfilter.DetectedNative {
		return nil
	}
	return join(needs(known.Firewall, "iptables", "ip6tables"), a.sameVariant(ctx, known.Firewall))
}

// sameVariant returns nil if the plain name iptables runs the variant (legacy or
// nft) that has the rules.
func (a *attachment) sameVariant(ctx context.Context, typ string) error {
	if err := netfilter.OtherVariant(ctx, a); err != nil {
		return fmt.Errorf("plugin %q: its executable would not find the rules: %w; Remove the container", typ, err)
	}
	return nil
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
