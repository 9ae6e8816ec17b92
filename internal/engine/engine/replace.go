package engine

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/engine/container"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/internal/store/record"
)

// Replace removes the attachments of a container, and attaches it again. seen is its record
// when that was decided; nil if there was none.
func (eng *Engine) Replace(ctx context.Context, c *Call, seen *record.Record) (*SetupResult, error) {
	p := &replacement{seen: seen}
	return reaper{eng}.withoutHolders(ctx, func() (*SetupResult, error) {
		op, err := eng.begin(c, "ADD")
		if err != nil {
			return nil, err
		}
		defer op.end()
		p.s = &setup{op: op, ignored: c.Ignored}
		if err := p.s.makeRoom(ctx, p.clear); err != nil {
			return nil, err
		}
		return p.attach(ctx)
	})
}

// replacement is a Replace in progress.
type replacement struct {
	s      *setup
	seen   *record.Record // when it was decided; nil if there was none
	before addressesOf    // of the attachments that clear has removed
}

// errChanged: the decision was about another state of the container.
var errChanged = fmt.Errorf("it has changed since the verdict: %w", ErrBusy)

// clear removes all attachments of the container, and notes their addresses. It removes
// nothing if the container is not as it was seen, or if the Setup that follows could not
// succeed.
func (p *replacement) clear(ctx context.Context, wanted container.Place, all attachments) error {
	op := p.s.op
	if op.c.Recorded.Damaged {
		return fmt.Errorf("its record is damaged; call Remove if the container is gone: %w", record.ErrBad)
	}
	if attached := op.c.Recorded.Record != nil && !op.c.Recorded.Record.IsEmpty(); (attached || p.seen != nil) && !reflect.DeepEqual(op.c.Recorded.Record, p.seen) {
		return errChanged
	}
	if op.c.Recorded.Record == nil {
		if len(all) > 0 {
			return fmt.Errorf("interface %s of network %q is in libcni's cache and not on record, since another program attached it: %w; call Remove first",
				all[0].plan.IfName, all[0].plan.Network.Config.Name, ErrAlreadyAttached)
		}
		return nil
	}
	if err := p.refuse(all, &wanted); err != nil {
		return err
	}
	if kept, err := op.c.KeepNetNS(wanted); err != nil || kept && len(all) == 0 {
		return err
	}
	before := formerAddresses(all)
	op.log().Info("replacing the attachments of a container")
	if err := op.tearDown(context.WithoutCancel(ctx), all); err != nil {
		return fmt.Errorf("remove its attachments: %w", err)
	}
	p.seen, p.before = nil, before
	return nil
}

// addressesOf are addresses by network and interface.
type addressesOf map[[2]string][]address

// formerAddresses returns the addresses on record of attachments: those of their ADDs,
// because no IPAM plugin can be asked for others.
func formerAddresses(all attachments) addressesOf {
	before := addressesOf{}
	for _, a := range all {
		n := a.entry()
		if result := chain.Decode(n.Result); result != nil {
			before[[2]string{n.Network, n.IfName}] = ContainerAddresses(result, n.IfName)
		}
	}
	return before
}

// refuse refuses to remove attachments of a container if they are another
// owner's, or if a wanted interface is there and not among them.
func (p *replacement) refuse(all attachments, wanted *container.Place) error {
	op := p.s.op
	for _, a := range all {
		if !a.own() {
			return fmt.Errorf("interface %s of network %q is of owner %q: %w",
				a.plan.IfName, a.plan.Network.Config.Name, op.c.Recorded.Record.OwnerOf(a.entry()), ErrAlreadyAttached)
		}
	}
	var going map[string]bool
	if op.c.Recorded.SameNetNS(wanted.Path) == nil {
		going = all.names()
	}
	return p.s.refuseTaken(wanted, going)
}

// attach attaches the container with the addresses that it had, where a network can
// be asked for them. If that fails, it attaches it with any.
func (p *replacement) attach(ctx context.Context) (*SetupResult, error) {
	var asked attachments
	for _, a := range p.s.op.attachments {
		if askFor(a, p.before[[2]string{a.plan.Network.Config.Name, a.plan.IfName}]) {
			asked = append(asked, a)
		}
	}
	result, err := p.s.tryAll(ctx)
	if err == nil || len(asked) == 0 || ctx.Err() != nil || !isUndone(err) {
		return result, err
	}
	p.s.op.log().Warn("attaching a container with other addresses than it had", "reason", err)
	for _, a := range asked {
		delete(a.plan.CapabilityArgs, keyIPs)
		delete(a.plan.ConfigArgs, keyIPs)
	}
	result, again := p.s.tryAll(ctx)
	if again != nil {
		return nil, again
	}
	return result, nil
}

// isUndone reports whether an ADD has failed, and nothing of it is left.
func isUndone(err error) bool {
	return errors.As(err, new(*Error)) && !errors.As(err, new(*rollbackError)) && !errors.As(err, new(*LeftoverError))
}

// askFor has the ADD ask for addresses, unless its caller asks for some. It reports
// whether the network can be asked.
func askFor(a *attachment, addresses []address) bool {
	byArgs := slices.ContainsFunc(a.plan.Args, func(arg [2]string) bool { return arg[0] == "IP" || arg[0] == "ip" })
	if byArgs || a.plan.CapabilityArgs[keyIPs] != nil || a.plan.ConfigArgs[keyIPs] != nil || len(addresses) == 0 {
		return false
	}
	var ips []string
	for _, of := range addresses {
		ips = append(ips, of.Prefix.String())
	}
	registered := a.op.eng.opts.Choice.IsRegistered
	switch askingOf(a.plan.Network.Config, func(typ string) bool { return !registered(typ) }) {
	case byCapability:
		a.plan.CapabilityArgs[keyIPs] = ips
	case byArgument:
		a.plan.ConfigArgs[keyIPs] = ips
	default:
		return false
	}
	return true
}

// asking is the way in which a network can be asked for addresses.
type asking int

const (
	byNothing asking = iota // no plugin of the network takes a request
	byCapability
	byArgument // in args.cni
)

// keyIPs is the name of the capability, and of the argument.
const keyIPs = "ips"

// askingOf returns the way in which a network can be asked for the addresses that a
// container had. A network that declares the capability can be asked by it. Without it
// host-local takes the argument. So does static, but then it forgets the configured
// gateways, and it assigns the same addresses anyway. is reports whether the plugin of a
// type reads its configuration like the built-in one.
func askingOf(list *libcni.NetworkConfigList, is func(typ string) bool) asking {
	by := byNothing
	for _, p := range list.Plugins {
		switch ipam := p.Network.IPAM.Type; {
		case ipam == "":
		case ipam == conflist.Static:
			return byNothing
		case ipam == conflist.HostLocal && is(ipam):
			by = byArgument
		case !conflist.Declares(list, keyIPs):
			return byNothing
		default:
			by = byCapability
		}
	}
	if by != byNothing && conflist.Declares(list, keyIPs) {
		return byCapability
	}
	return by
}
