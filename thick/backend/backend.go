// Package backend carries out the calls of package server by a [cni.Runtime]: it attaches
// containers to the networks in the clients' requests, to loaded ones, and to those that
// the annotation of a pod names.
package backend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/engine/engine"
	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/thick/multinet"
	"github.com/embedcni/cni/thick/server"
)

// Runtime has the methods of a *cni.Runtime that a Backend needs. Its state directory must
// not be the one that the clients' own CNI library uses, which is /var/lib/cni by default:
// both would keep a cached result under one name.
type Runtime interface {
	cni.CNI
	StatusOf(ctx context.Context, configs ...[]byte) error
	Attachments(ids ...string) ([]cni.Attachment, error)
	GC(ctx context.Context, o cni.GCOptions) (*cni.Report, error)
}

var _ Runtime = (*cni.Runtime)(nil)

// Options configure a Backend. The zero value attaches to the networks in the
// requests, or without any in a request to the loaded ones.
type Options struct {
	// Networks returns the value of multinet.Annotation of the pod that an ADD is for,
	// empty if it has none. Its networks are attached after the default one.
	Networks func(context.Context, *server.Request) (string, error)
	// DefaultNetwork returns the value of multinet.DefaultAnnotation of that pod, empty if it
	// has none. Its network takes the place of the default one. One without a namespace is in
	// the multusNamespace of the request's configuration, or in kube-system.
	DefaultNetwork func(context.Context, *server.Request) (string, error)
	// Lookup returns a network that an annotation names. It decides whether the pod of the request may use
	// the network, for example if that is in another namespace.
	Lookup func(context.Context, *server.Request, multinet.Selection) (multinet.Definition, error)
	// Devices are for networks with a resource. Without Devices such a network is refused.
	Devices Devices
	// OnStatus is given the value of multinet.StatusAnnotation after each ADD. If it
	// returns an error, the ADD fails and is undone.
	OnStatus func(ctx context.Context, r *server.Request, value string) error
	// Logger receives what a GC could not remove, and what of a configuration or of an
	// annotation has no effect; nil is slog.Default().
	Logger *slog.Logger
}

// New returns a Backend over a Runtime. Its configurations are in the form of
// Multus':
//
//	{"cniVersion": "1.0.0", "name": "node", "type": "shim", "delegates": [{"type": "bridge", …}, …]}
//
// Delegates are networks, each a list of plugins or a single plugin. The first is the
// default network: it gets the interface of the request, the runtimeConfig and the
// prevResult, and its result is the one that is returned. The others, and after them those
// of the pod's annotation, get the interfaces net1, net2, …, unless the annotation says
// otherwise. A delegate without a name or a version has that of the request. In place of
// delegates a configuration may have plugins, the list of the default network, or neither:
// then the loaded networks are attached, and the first of them that is not the loopback
// network is the default one.
//
// A request for the interface lo that names no networks is for the loopback alone, as
// containerd asks for it before other interfaces: the loaded loopback network is attached, or
// else one of the plugin loopback, and none of the annotation.
//
// They are attached in order. If one fails, all are detached. What an ADD has attached is
// on record with it, so that DEL and CHECK need neither its configuration nor the
// annotation. CHECK leaves out networks of a version without it, unless none has it. The
// plugins are those of the Runtime; server.Request.PluginDirs has those of its plugin
// directories that an ADD searches first, and DEL and CHECK keep to that.
//
// If an element of the annotation has a default-route, the default routes are removed from
// the other networks' configurations, and the gateways that it names are set in its own. A
// network whose plugins make a default route otherwise, such as dhcp, fails the ADD.
func New(r Runtime, o Options) *Backend {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return &Backend{runtime: r, options: o}
}

// Backend attaches containers to networks by a Runtime. Use New to make one. It is safe
// for concurrent use.
type Backend struct {
	runtime Runtime
	options Options
	warned  sync.Map // keys of configurations without effect that were logged
}

var (
	_ server.Ledger  = (*Backend)(nil)
	_ server.Planner = (*Backend)(nil)
)

// Keys of the metadata by which attachments of a request are found. Attachments without
// them are not this package's.
const (
	keyNetwork = "server.network" // that of the Request
	keyIfName  = "server.interface"
	keyBegan   = "server.began"
	// keyDelegate is of interfaces that earlier versions attached beside those of Adds.
	// They are detached with the last Add of their container.
	keyDelegate = "server.delegate"
)

// Add attaches the networks of a request.
func (b *Backend) Add(ctx context.Context, r *server.Request) (types.Result, error) {
	all, planned := r.Plan.([]network)
	if !planned {
		var err error
		if all, err = b.wanted(ctx, r); err != nil {
			return nil, refused(err)
		}
	}
	if err := b.publish(r, all); err != nil {
		return nil, refused(joined.Errors(err, b.forget(filesOf(all))))
	}
	wanted := all
	all, result, err := b.attach(ctx, r, all)
	if errors.Is(err, cni.ErrAlreadyAttached) && r.IfName == lo {
		if result := b.loOfAnother(r); result != nil {
			return result, nil
		}
	}
	if err != nil {
		return nil, refused(joined.Errors(err, b.forget(filesOf(wanted))))
	}
	if err := b.accept(ctx, r, all, result); err != nil {
		return nil, refused(joined.Errors(err, b.undo(ctx, r, all)))
	}
	i := slices.IndexFunc(all, func(n network) bool { return n.isDefault })
	return result.Raw()[max(i, 0)], nil
}

// attach returns what it has attached of these networks: all, but for a loopback network that
// the container has already, because its runtime has asked for lo by itself.
func (b *Backend) attach(ctx context.Context, r *server.Request, all []network) ([]network, *cni.Result, error) {
	metadata := map[string]string{keyNetwork: r.Network, keyIfName: r.IfName}
	if r.Began != "" {
		metadata[keyBegan] = r.Began
	}
	setup := func(all []network) (*cni.Result, error) {
		return b.runtime.SetupSerially(ctx, r.ContainerID, r.NetNS, options(r, all, cni.WithMetadata(metadata))...)
	}
	result, err := setup(all)
	if errors.Is(err, cni.ErrAlreadyAttached) && r.IfName != lo { // nothing ran
		rest := slices.DeleteFunc(slices.Clone(all), func(n network) bool { return n.ifName == lo && n.config == nil })
		if len(rest) > 0 && len(rest) < len(all) {
			all = rest
			result, err = setup(all)
		}
	}
	return all, result, err
}

// accept returns an error if the networks must be detached again.
func (b *Backend) accept(ctx context.Context, r *server.Request, all []network, result *cni.Result) error {
	for i, n := range all {
		if err := n.routes.verify(result.Raw()[i]); err != nil {
			return fmt.Errorf("network %q: %w", n.name, err)
		}
	}
	if b.options.OnStatus == nil || r.IfName == lo {
		return nil
	}
	if err := b.options.OnStatus(ctx, r, b.statusOf(all, result)); err != nil {
		return fmt.Errorf("network status: %w", err)
	}
	return nil
}

// options are those of a Setup, or of the Remove of a container that is not on record.
func options(r *server.Request, all []network, more ...cni.NamespaceOpts) []cni.NamespaceOpts {
	opts := append(more, cni.WithLabels(labels(r)), cni.WithPluginDirOrder(r.PluginDirs...))
	for _, n := range all {
		opts = append(opts, n.option())
	}
	return opts
}

// undo detaches networks that were attached.
func (b *Backend) undo(ctx context.Context, r *server.Request, all []network) error {
	var opts []cni.NamespaceOpts
	for _, n := range all {
		opts = append(opts, cni.WithNetwork(n.network, cni.WithInterfaceName(n.ifName)))
	}
	if err := b.detach(ctx, r, opts); err != nil {
		return err
	}
	return b.forget(filesOf(all))
}

func (b *Backend) statusOf(all []network, result *cni.Result) string {
	var found []multinet.Status
	for i, n := range all {
		if n.ifName == lo {
			continue
		}
		info := b.deviceInfo(n)
		for _, one := range multinet.Statuses(n.name, result.Raw()[i], n.isDefault) {
			one.DeviceInfo = info
			found = append(found, one)
		}
	}
	return multinet.StatusValue(found)
}

// labels returns CNI_ARGS for the plugins of the networks. They are to ignore what they do
// not know, as the client cannot know which plugins run.
func labels(r *server.Request) map[string]string {
	args := map[string]string{"IgnoreUnknown": "true"}
	for key, value := range r.Args {
		if value != "" || key != "IgnoreUnknown" {
			args[key] = value
		}
	}
	for key, value := range map[string]string{
		"K8S_POD_NAMESPACE": r.Pod.Namespace, "K8S_POD_NAME": r.Pod.Name,
		"K8S_POD_INFRA_CONTAINER_ID": r.Pod.InfraContainerID, "K8S_POD_UID": r.Pod.UID,
	} {
		if value != "" {
			args[key] = value
		}
	}
	return args
}

// refused returns an error as the error object of the CNI specification, unless it is one.
func refused(err error) error {
	if err == nil {
		return nil
	}
	if said := (*types.Error)(nil); errors.As(err, &said) && !errors.As(err, new(*cni.Error)) {
		return err
	}
	return engine.AsCNIError(err)
}

// invalid is the error for a configuration that cannot be served.
func invalid(format string, args ...any) error {
	return types.NewError(types.ErrInvalidNetworkConfig, "invalid network configuration", fmt.Sprintf(format, args...))
}

// Del detaches the networks of a request, by the record.
func (b *Backend) Del(ctx context.Context, r *server.Request) error {
	mine, others, err := b.recorded(r)
	if err != nil {
		return refused(err)
	}
	if len(mine) > 0 && !slices.ContainsFunc(others, isAdds) {
		for _, a := range others {
			if a.Metadata[keyDelegate] != "" {
				mine = append(mine, a)
			}
		}
	}
	return refused(b.remove(ctx, r, mine, len(others) > 0))
}

// remove detaches attachments. A container that is not on record is detached from the
// networks in the request.
func (b *Backend) remove(ctx context.Context, r *server.Request, mine []cni.Attachment, others bool) error {
	if len(mine) > 0 {
		err := b.detach(ctx, r, named(mine))
		if errors.Is(err, cni.ErrNotFound) && !errors.As(err, new(*cni.Error)) {
			err = nil // another call has detached it since
		}
		if err != nil {
			return err
		}
		return b.forget(recordedFiles(mine))
	}
	if others {
		return nil
	}
	all, err := b.inRequest(r)
	if err != nil || len(all) == 0 {
		return err
	}
	err = b.detach(ctx, r, options(r, all))
	if errors.Is(err, cni.ErrInvalidArgument) && all[0].prevResult != nil {
		all[0].prevResult = nil // a result that nobody can use must not keep a DEL from succeeding
		err = b.detach(ctx, r, options(r, all))
	}
	return err
}

// detach is Remove. A path that leads to the host's namespace by now does not count: it may
// be /proc/PID/ns/net of a container that has ended, and a DEL is repeated until it succeeds.
func (b *Backend) detach(ctx context.Context, r *server.Request, opts []cni.NamespaceOpts) error {
	err := b.runtime.Remove(ctx, r.ContainerID, r.NetNS, opts...)
	if errors.Is(err, cni.ErrInvalidNetNS) && !errors.As(err, new(*cni.Error)) { // nothing ran
		err = b.runtime.Remove(ctx, r.ContainerID, "", opts...)
	}
	return err
}

// Check checks the networks of a request, by the record.
func (b *Backend) Check(ctx context.Context, r *server.Request) error {
	mine, _, err := b.recorded(r)
	if err == nil && len(mine) == 0 {
		err = fmt.Errorf("interface %s of network %q: %w", r.IfName, r.Network, cni.ErrNotAttached)
	}
	if err == nil {
		err = b.runtime.Check(ctx, r.ContainerID, r.NetNS, named(mine)...)
	}
	if errors.Is(err, cni.ErrNoCheck) && len(mine) > 1 {
		err = b.checkEach(ctx, r, mine, err)
	}
	return refused(err)
}

// checkEach checks the attachments whose networks have CHECK. If none has, it returns
// noCheck.
func (b *Backend) checkEach(ctx context.Context, r *server.Request, mine []cni.Attachment, noCheck error) error {
	for i := range mine {
		err := b.runtime.Check(ctx, r.ContainerID, r.NetNS, named(mine[i:i+1])...)
		switch {
		case err == nil:
			noCheck = nil
		case !errors.Is(err, cni.ErrNoCheck):
			return err
		}
	}
	return noCheck
}

// Status asks the networks in the configuration, or without any the loaded ones.
func (b *Backend) Status(ctx context.Context, r *server.Request) error {
	if err := b.checkKeys(r); err != nil {
		return refused(err)
	}
	all, err := b.inRequest(r)
	if err != nil {
		return refused(err)
	}
	var configs [][]byte
	for _, n := range all {
		if n.config != nil {
			configs = append(configs, n.config)
		}
	}
	return refused(b.runtime.StatusOf(ctx, configs...))
}

// isAdds reports whether an attachment was made by an Add.
func isAdds(a cni.Attachment) bool {
	return a.Metadata[keyNetwork] != "" && a.Metadata[keyDelegate] == ""
}

// recorded returns the attachments on record of the container of a request, those that an
// Add for the same interface has made apart.
func (b *Backend) recorded(r *server.Request) (mine, others []cni.Attachment, err error) {
	all, err := b.runtime.Attachments(r.ContainerID)
	if err != nil {
		return nil, nil, err
	}
	for _, a := range all {
		switch {
		case a.State == cni.Unknown:
		case isAdds(a) && a.Metadata[keyNetwork] == r.Network && a.Metadata[keyIfName] == r.IfName:
			mine = append(mine, a)
		default:
			others = append(others, a)
		}
	}
	return mine, others, nil
}

// named returns options that select attachments.
func named(all []cni.Attachment) (opts []cni.NamespaceOpts) {
	for _, a := range all {
		opts = append(opts, cni.WithNetwork(a.Network, cni.WithInterfaceName(a.IfName)))
	}
	return opts
}

// Attachments implements server.Ledger.
func (b *Backend) Attachments(_ context.Context, ids ...string) ([]server.Attachment, error) {
	all, err := b.runtime.Attachments(ids...)
	if err != nil {
		return nil, refused(err)
	}
	var found []server.Attachment
	for _, a := range all {
		if !isAdds(a) {
			continue
		}
		one := server.Attachment{
			ContainerID: a.ContainerID, IfName: a.Metadata[keyIfName], Network: a.Metadata[keyNetwork],
			NetNS: a.NetNS, Began: a.Metadata[keyBegan],
		}
		if !slices.Contains(found, one) {
			found = append(found, one)
		}
	}
	return found, nil
}
