package bandwidth

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/plugin"
)

// Plugin is the plugin "bandwidth".
type Plugin struct{}

// Versions returns the versions whose results have interfaces.
func (Plugin) Versions() []string { return version.VersionsStartingFrom("0.3.0").SupportedVersions() }

// limit is a rate, in bits a second, and a burst, in bits. The zero limit means
// no limit.
type limit struct{ rate, burst uint64 }

// config is a validated configuration.
type config struct{ ingress, egress limit }

func (c config) none() bool { return c == config{} }

// settings may be at the top level, or come from the caller as the capability
// "bandwidth" (CONVENTIONS.md of CNI). The former win.
type settings struct {
	IngressRate  *uint64 `json:"ingressRate"`
	IngressBurst *uint64 `json:"ingressBurst"`
	EgressRate   *uint64 `json:"egressRate"`
	EgressBurst  *uint64 `json:"egressBurst"`
}

// parse reads the configuration of a request.
func parse(r *plugin.Request) (config, error) {
	var n struct {
		settings
		RuntimeConfig struct {
			Bandwidth settings `json:"bandwidth"`
		} `json:"runtimeConfig"`
	}
	if err := r.Decode(&n); err != nil {
		return config{}, err
	}
	s := n.settings
	if s == (settings{}) {
		s = n.RuntimeConfig.Bandwidth
	}
	ingress, err := newLimit("ingress", s.IngressRate, s.IngressBurst)
	egress, err2 := newLimit("egress", s.EgressRate, s.EgressBurst)
	if err := joined.Errors(err, err2); err != nil {
		return config{}, plugin.Errorf(types.ErrInvalidNetworkConfig, "bandwidth: %w", err)
	}
	return config{ingress: ingress, egress: egress}, nil
}

func newLimit(direction string, rate, burst *uint64) (limit, error) {
	var l limit
	if rate != nil {
		l.rate = *rate
	}
	if burst != nil {
		l.burst = *burst
	}
	switch {
	case l.rate == 0 && l.burst != 0:
		return l, fmt.Errorf("%sBurst is set, but %[1]sRate is not", direction)
	case l.rate != 0 && l.burst == 0:
		return l, fmt.Errorf("%sRate is set, but %[1]sBurst is not", direction)
	case l.rate != 0 && l.rate < 8:
		return l, fmt.Errorf("%sRate is %d bits a second: the kernel counts bytes, so it must be 8 at least", direction, l.rate)
	case l.burst/8 >= math.MaxUint32:
		return l, fmt.Errorf("%sBurst is %d bits: it must be less than 4 GiB", direction, l.burst)
	}
	return l, nil
}

// Add sets the limits on the host's end of the container's veth pair. The ifb
// device for the egress is added to the result.
func (Plugin) Add(ctx context.Context, r *plugin.Request) (*types100.Result, error) {
	c, err := parse(r)
	if err != nil {
		return nil, err
	}
	result, err := r.Chained()
	if err != nil || c.none() {
		return result, err
	}
	err = shape(ctx, r, false, func(s *shaper) error {
		if c.ingress != (limit{}) {
			if err := s.limit(s.host, c.ingress); err != nil {
				return fmt.Errorf("limit the traffic to the container: %w", err)
			}
		}
		if c.egress == (limit{}) {
			return nil
		}
		ifb, err := s.makeIfb(names(r), "")
		if err == nil {
			err = s.lead(ifb, c.egress)
		}
		if err != nil {
			return fmt.Errorf("limit the traffic from the container: %w", err)
		}
		result.Interfaces = append(result.Interfaces, &types100.Interface{Name: ifb.Name, Mac: ifb.MAC.String()})
		return nil
	})
	if err != nil {
		return nil, err
	}
	return result, nil
}

// names returns the possible names of the ifb device: the reference plugin's,
// and another if that is taken, for example by another interface of the
// container.
func names(r *plugin.Request) []string {
	return []string{
		Device(r.Name, r.ContainerID), OwnDevice(r.Name, r.ContainerID, r.IfName),
	}
}

// Del deletes the ifb device in the previous result if it still has the reported
// hardware address: another interface of the container may have a device of that
// name. If the result lacks it, Del deletes the device to which the interface's own
// packets are redirected. Without a result it goes by the name, if there is a limit at
// all. The queues end with the veth pair.
func (Plugin) Del(ctx context.Context, r *plugin.Request) error {
	c, err := parse(r)
	if err != nil {
		return err
	}
	made := contract.OnHost(r, names(r)...)
	switch {
	case made != nil || c.egress == (limit{}):
	case r.PrevResult == nil:
		made = &types100.Interface{Name: names(r)[0]}
	default:
		made, err = redirected(ctx, r)
	}
	if err != nil || made == nil {
		return err
	}
	remove, err := contract.Removal(ctx, r.Host, made.Name, func(ifb links.Link) bool {
		return ifb.Kind == "ifb" && contract.SameMAC(made.Mac, ifb.MAC)
	})
	if remove == nil {
		return err
	}
	return contract.From(ctx).Batch.Later(ctx, remove)
}

// redirected returns the plugin's ifb device to which the host's end of the container's
// interface redirects its ingress, or nil. Another interface of the container may have a
// device of either name.
func redirected(ctx context.Context, r *plugin.Request) (found *types100.Interface, err error) {
	if r.Container == nil {
		return nil, nil
	}
	err = onHostEnd(ctx, r, func(conn *links.Conn, host links.Link) error {
		has, err := conn.Queues(host.Index)
		if err != nil {
			return err
		}
		for _, name := range names(r) {
			ifb, err := conn.Link(name)
			switch {
			case links.NotFound(err):
			case err != nil:
				return err
			case leads(has.Redirects, ifb.Index):
				found = &types100.Interface{Name: name, Mac: ifb.MAC.String()}
				return nil
			}
		}
		return nil
	})
	if errors.As(err, new(noPair)) || errors.As(err, new(*types.Error)) {
		return nil, nil // ADD has found no veth pair either, and limited nothing
	}
	return found, err
}

// Status refuses a configuration that every Add refuses.
func (Plugin) Status(_ context.Context, r *plugin.Request) error {
	_, err := parse(r)
	return err
}

// onHostEnd calls do with the host's end of the container's veth pair.
func onHostEnd(ctx context.Context, r *plugin.Request, do func(*links.Conn, links.Link) error) error {
	return contract.On(ctx, r.Host, func(conn *links.Conn) error {
		var host links.Link
		err := contract.On(ctx, r.Container, func(container *links.Conn) (err error) {
			host, err = findHostEnd(r, container, conn)
			return err
		})
		if err != nil {
			return err
		}
		return do(conn, host)
	})
}

// findHostEnd looks the host's end up. It must be an interface in the result, because
// the limits are for interfaces of earlier plugins. The error is a [noPair] if an
// interface is not there, or is another.
func findHostEnd(r *plugin.Request, container, onHost contract.Net) (host links.Link, err error) {
	if r.PrevResult == nil {
		return host, plugin.Errorf(types.ErrInvalidNetworkConfig, "there is no previous result")
	}
	own, err := container.Link(r.IfName)
	if links.NotFound(err) {
		return host, noPair{fmt.Errorf("in the container: %w", err), true}
	}
	if err != nil {
		return host, fmt.Errorf("in the container: %w", err)
	}
	if own.Kind != "veth" {
		return host, plugin.Errorf(types.ErrInvalidNetworkConfig,
			"interface %q in the container is no end of a veth pair, but %q: bandwidth can limit no other", r.IfName, own.Kind)
	}
	host, err = onHost.LinkByIndex(own.Peer.Index)
	switch {
	case links.NotFound(err):
		err = noPair{err, false}
	case err != nil:
	case host.Kind != "veth" || host.Peer.Index != own.Index:
		err = noPair{fmt.Errorf("interface %q has its index, but is another: the pair does not end on this host", host.Name), false}
	case contract.OnHost(r, host.Name) == nil:
		err = noPair{fmt.Errorf("interface %q is not in the previous result", host.Name), false}
	}
	if err != nil {
		return host, fmt.Errorf("the host's end of interface %q: %w", r.IfName, err)
	}
	return host, nil
}

// noPair means that the container's interface, or the host's end of it, is gone or was
// replaced.
type noPair struct {
	error
	inside bool // the container's
}

func (n noPair) Unwrap() error { return n.error }
