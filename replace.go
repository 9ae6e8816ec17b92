package cni

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/conflist"
	"github.com/embedcni/cni/internal/container"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/runner"
)

// Replace removes the attachments of a container, as Remove does, and attaches it in the
// network namespace at path, as Setup does without WithNewNetNS. It is for a container
// that Repair cannot mend, or whose task lives in another namespace than the recorded one:
// whatever is in that loses its network.
//
// The report is that of a Health whose options have named the container; another one is
// ErrInvalidArgument. If another call has changed the container since, Replace changes
// nothing, and returns ErrBusy. Nor is anything removed if the
// Setup could not succeed: its options are invalid, the path leads to no network
// namespace, too few networks are loaded, an interface of the name is in the namespace and
// not on the container's record, or another owner has attached the container, or another
// program (see Remove).
//
// A replacement asks for the addresses that the container had: by the capability "ips" if
// the network declares it, otherwise by args.cni if its IPAM plugin is host-local, unless
// the options ask for some. If the ADD fails with them, it is repeated without. After a
// Setup that failed the container is not attached.
func (r *Runtime) Replace(ctx context.Context, report *HealthReport, id, path string, opts ...NamespaceOpts) (result *Result, err error) {
	s := r.current.Load()
	ctx, span := runner.CallSpan(ctx, "cni.Replace", id, path)
	defer func() { endCall(span, err) }()
	if err := s.refuseInside(ctx); err != nil {
		return nil, fmt.Errorf("replace the attachments of container %q: %w", id, err)
	}
	result, err = r.replace(ctx, s, report, id, path, opts)
	if err != nil {
		return nil, fmt.Errorf("replace the attachments of container %q: %w", id, err)
	}
	return result, nil
}

func (r *Runtime) replace(ctx context.Context, s *snapshot, report *HealthReport, id, path string, opts []NamespaceOpts) (*Result, error) {
	ns, err := newNamespace(id, path, opts...)
	if err != nil {
		return nil, err
	}
	if err := r.usable(s, ns); err != nil {
		return nil, err
	}
	if report == nil {
		report = &HealthReport{}
	}
	seen, named := report.seen[id]
	if !named {
		return nil, fmt.Errorf("the report is of no Health whose options name the container: %w", ErrInvalidArgument)
	}
	ns.makes = false // its task lives in the one that it has
	p := &replacement{seen: seen}
	return s.withoutHolders(ctx, func() (*Result, error) {
		op, err := s.begin(ns, "ADD")
		if err != nil {
			return nil, err
		}
		defer op.end()
		p.operation = op
		if err := op.makeRoom(ctx, p.clear); err != nil {
			return nil, err
		}
		return op.attachWith(ctx, p.before)
	})
}

// replacement is a Replace in progress.
type replacement struct {
	*operation
	seen   *record.Record // when it was decided; nil if there was none
	before []formerly     // the addresses of the attachments that clear has removed
}

// formerly are the addresses of one of a container's attachments.
type formerly struct {
	network, ifName string
	addresses       []Address
}

// errChanged: the decision was about another state of the container.
var errChanged = fmt.Errorf("it has changed since the verdict: %w", ErrBusy)

// clear removes all attachments of the container, and notes their addresses. It removes
// nothing if the container is not as it was seen, or if the Setup that follows could not
// succeed.
func (p *replacement) clear(ctx context.Context, wanted container.Place, all attachments) error {
	op := p.operation
	if op.Damaged {
		return fmt.Errorf("its record is damaged; call Remove if the container is gone: %w", record.ErrBad)
	}
	if attached := op.Record != nil && !op.Record.IsEmpty(); (attached || p.seen != nil) && !reflect.DeepEqual(op.Record, p.seen) {
		return errChanged
	}
	if op.Record == nil {
		if len(all) > 0 {
			return fmt.Errorf("interface %s of network %q is in libcni's cache and not on record, since another program attached it: %w; call Remove first",
				all[0].IfName, all[0].network.config.Name, ErrAlreadyAttached)
		}
		return nil
	}
	if err := op.refuseReplacing(all, &wanted); err != nil {
		return err
	}
	if kept, err := op.KeepNetNS(wanted); err != nil || kept && len(all) == 0 {
		return err
	}
	before := formerAddresses(all)
	op.logger.Info("replacing the attachments of a container", "container", op.ID)
	if err := op.tearDown(context.WithoutCancel(ctx), all); err != nil {
		return fmt.Errorf("remove its attachments: %w", err)
	}
	p.seen, p.before = nil, before
	return nil
}

// formerAddresses returns the addresses on record of attachments: those of their ADDs,
// because no IPAM plugin can be asked for others.
func formerAddresses(all attachments) (before []formerly) {
	for _, a := range all {
		n := a.entry()
		if result := chain.Decode(n.Result); result != nil {
			of := newNetworkResult(source{network: n.Network, ifName: n.IfName, result: result})
			before = append(before, formerly{n.Network, n.IfName, containerAddresses(of)})
		}
	}
	return before
}

// refuseReplacing refuses to remove attachments of a container if they are another
// owner's, or if a wanted interface is there and not among them.
func (op *operation) refuseReplacing(all attachments, wanted *container.Place) error {
	for _, a := range all {
		if !a.own() {
			return fmt.Errorf("interface %s of network %q is of owner %q: %w",
				a.IfName, a.network.config.Name, op.Record.OwnerOf(a.entry()), ErrAlreadyAttached)
		}
	}
	var going map[string]bool
	if op.SameNetNS(wanted.Path) == nil {
		going = all.names()
	}
	return op.refuseTaken(wanted, going)
}

// attachWith attaches the container with the addresses that it had, where a network can
// be asked for them. If that fails, it attaches it with any.
func (op *operation) attachWith(ctx context.Context, before []formerly) (*Result, error) {
	var asked attachments
	for _, f := range before {
		a := op.attachments.named(f.ifName)
		if a != nil && a.network.config.Name == f.network && a.askFor(f.addresses) {
			asked = append(asked, a)
		}
	}
	result, err := op.tryAll(ctx, false)
	if err == nil || len(asked) == 0 || ctx.Err() != nil || !isUndone(err) {
		return result, err
	}
	op.logger.Warn("attaching a container with other addresses than it had", "container", op.ID, "reason", err)
	for _, a := range asked {
		delete(a.CapabilityArgs, keyIPs)
		delete(a.ConfigArgs, keyIPs)
	}
	result, again := op.tryAll(ctx, false)
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
func (a *attachment) askFor(addresses []Address) bool {
	byArgs := slices.ContainsFunc(a.Args, func(arg [2]string) bool { return arg[0] == "IP" || arg[0] == "ip" })
	if byArgs || a.CapabilityArgs[keyIPs] != nil || a.ConfigArgs[keyIPs] != nil || len(addresses) == 0 {
		return false
	}
	var ips []string
	for _, of := range addresses {
		ips = append(ips, of.Prefix.String())
	}
	registered := a.op.choice.IsRegistered
	switch askingOf(a.network.config, func(typ string) bool { return !registered(typ) }) {
	case byCapability:
		a.CapabilityArgs[keyIPs] = ips
	case byArgument:
		a.ConfigArgs[keyIPs] = ips
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
		case ipam == known.Static:
			return byNothing
		case ipam == known.HostLocal && is(ipam):
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
