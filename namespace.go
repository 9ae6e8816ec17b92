package cni

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/utils"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/netns"
)

// Namespace is a container in one call: its ID, the path of its network namespace,
// and the values set by NamespaceOpts.
type Namespace struct {
	id   record.ID
	path string
	scope
	selected []selection
	makes    bool                      // Setup makes it, see WithNewNetNS
	makesIn  *os.File                  // the user namespace that it belongs to; nil: the caller's
	own      bool                      // the call has a WithNetworkConfig
	list     *libcni.NetworkConfigList // inside WithNetworkConfig: its configuration
	dirs     []string                  // see WithPluginDirOrder
}

// scope holds values set by options: for all networks of the call, or inside
// WithNetwork for one of them.
type scope struct {
	args           map[string]string
	capabilityArgs map[string]any
	required       map[string]bool // the capabilities that a network must declare
	configArgs     map[string]any
	metadata       map[string]string
	ports          []Port
	prev           chain.Partial // see WithPrevResult
	ifName         string
	nested         bool
}

// selection is the effect of one WithNetwork or WithNetworkConfig. Several networks may
// have its name.
type selection struct {
	network string
	list    *libcni.NetworkConfigList // its own configuration; nil if the network is loaded
	of      *Network                  // the network of that name; nil for all of them
	index   int                       // its place among those of the call
	scope
}

// NamespaceOpts is an option of Setup, Remove and Check.
type NamespaceOpts func(s *Namespace) error

// give returns an option that cannot fail.
func give(change func(ns *Namespace)) NamespaceOpts {
	return func(ns *Namespace) error {
		change(ns)
		return nil
	}
}

func newScope() scope {
	return scope{
		args:           make(map[string]string),
		capabilityArgs: make(map[string]any),
		required:       make(map[string]bool),
		configArgs:     make(map[string]any),
		metadata:       make(map[string]string),
	}
}

// newNamespace applies the options. With an error, the namespace has those before the one
// that is wrong.
func newNamespace(id, path string, opts ...NamespaceOpts) (*Namespace, error) {
	ns := &Namespace{id: record.ID(id), path: path, scope: newScope()}
	for _, o := range opts {
		if err := o(ns); err != nil {
			return ns, err
		}
	}
	return ns, nil
}

// only returns the namespace with a selection of one network.
func (ns *Namespace) only(n *Network) *Namespace {
	one := *ns
	one.selected = []selection{{network: n.config.Name, of: n, scope: newScope()}}
	return &one
}

// WithNewNetNS has Setup make the container's network namespace, and Remove delete it.
// Setup's path is where it is pinned, as by netns.Create; an existing path is refused with
// ErrInvalidNetNS and fs.ErrExist. If path is empty, or the one that Setup has chosen for
// the container before, the namespace is pinned in the record directory. Result.NetNS has
// the path, from Lookup too; netns.Do starts a process there.
//
// The namespace is on record before it has a name, and a Setup that fails deletes it. A
// runtime that is killed in Setup or Remove leaves it to the next Recover, or to a Setup
// or Remove of the same container. Only the recorded namespace is ever deleted: whatever
// else is at the path by then stays. Processes in it stay in it, without interfaces.
//
// A Setup or Replace that is given the path keeps the namespace, and attaches it again.
// Should that fail, or be killed, the namespace stays on record, without attachments: for
// another attempt, or until Remove, a GC, or a Recover that finds no process in it.
//
// The caller needs CAP_SYS_ADMIN, also for the mount in path's directory. That is made if
// it is missing, and stays; see netns.Share for one that `ip netns` and other mount
// namespaces see. Other calls than Setup ignore the option.
func WithNewNetNS() NamespaceOpts {
	return func(ns *Namespace) error { return ns.make(nil) }
}

// WithNewNetNSIn is WithNewNetNS for a container in a user namespace: the network
// namespace belongs to owner, so that root in that user namespace may change it. owner is
// an open user namespace, such as /proc/PID/ns/user of the container's first process; it
// must stay open until Setup returns. See netns.NewIn.
//
// The error is ErrInvalidNetNS if owner is no user namespace, or if the caller lacks
// CAP_SYS_ADMIN in it.
func WithNewNetNSIn(owner *os.File) NamespaceOpts {
	return func(ns *Namespace) error {
		if owner == nil {
			return fmt.Errorf("a new network namespace in no user namespace: %w", ErrInvalidArgument)
		}
		return ns.make(owner)
	}
}

// make notes that Setup makes the namespace.
func (ns *Namespace) make(owner *os.File) error {
	if ns.nested {
		return fmt.Errorf("a new network namespace inside WithNetwork: %w", ErrInvalidArgument)
	}
	ns.makes, ns.makesIn = true, owner
	return nil
}

// WithNetwork selects the loaded network of that name. Without WithNetwork a call
// is for all loaded networks; with it, for the selected ones in the given order,
// which is also that of Result.Raw. opts apply to this network only and take
// precedence over the same options of the call: WithInterfaceName, WithArgs,
// WithLabels, WithConfigArgs, WithMetadata, WithPorts and the capabilities.
//
// A network may be selected twice with different interface names. If several
// configurations have the name, all of them are selected, in the order in which they
// were loaded. WithInterfaceName then selects the one loaded for that interface, and
// it is an error unless there is exactly one.
func WithNetwork(name string, opts ...NamespaceOpts) NamespaceOpts {
	return func(ns *Namespace) error {
		if ns.nested {
			return fmt.Errorf("network %q inside another WithNetwork: %w", name, ErrInvalidArgument)
		}
		sel := selection{network: name}
		if err := ns.nest(&sel, opts); err != nil {
			return err
		}
		ns.selected = append(ns.selected, sel)
		return nil
	}
}

// WithInterfaceName sets the name of the interface in the container. Among
// configurations of one name it selects the one loaded for that interface. It is
// valid only inside WithNetwork or WithNetworkConfig.
func WithInterfaceName(name string) NamespaceOpts {
	return func(ns *Namespace) error {
		if !ns.nested {
			return fmt.Errorf("interface name %q outside WithNetwork: %w", name, ErrInvalidArgument)
		}
		ns.ifName = name
		return nil
	}
}

// WithLabels adds labels to CNI_ARGS, as WithArgs does.
func WithLabels(labels map[string]string) NamespaceOpts {
	return give(func(ns *Namespace) { maps.Copy(ns.args, labels) })
}

// WithArgs adds k=v to CNI_ARGS. Neither may contain ';', '=', a newline or a NUL
// byte: CNI_ARGS cannot quote them, and a value with a semicolon would set another
// argument, such as an address.
func WithArgs(k, v string) NamespaceOpts {
	return give(func(ns *Namespace) { ns.args[k] = v })
}

// WithConfigArgs sets a key of "args": {"cni": {…}} in the configuration passed to
// plugins, the successor of CNI_ARGS (CONVENTIONS.md): a plugin that knows the key
// must ignore its counterpart in CNI_ARGS. value is encoded as JSON.
func WithConfigArgs(key string, value any) NamespaceOpts {
	return give(func(ns *Namespace) { ns.configArgs[key] = value })
}

// sortedArgs validates the arguments and sorts them by key, so that equal calls
// pass equal requests.
func sortedArgs(args map[string]string) ([][2]string, error) {
	var sorted [][2]string
	for _, k := range slices.Sorted(maps.Keys(args)) {
		if k == "" {
			return nil, fmt.Errorf("argument with an empty name: %w", ErrInvalidArgument)
		}
		for _, s := range []string{k, args[k]} {
			if i := strings.IndexAny(s, ";=\n\r\x00"); i >= 0 {
				return nil, fmt.Errorf("argument %q=%q holds %q, which CNI_ARGS cannot carry: %w",
					k, args[k], s[i], ErrInvalidArgument)
			}
		}
		sorted = append(sorted, [2]string{k, args[k]})
	}
	return sorted, nil
}

// maxCacheName is the longest file name of the usual file systems. libcni caches a
// result in a file called <network>-<container>-<interface>.
const maxCacheName = 255

// validateID checks a container ID: a letter or digit, then letters, digits,
// '_', '.', '-' (CNI specification 1.1.0, section 2).
func validateID(id record.ID) error {
	if err := utils.ValidateContainerID(string(id)); err != nil {
		return fmt.Errorf("container ID %q: %w: %w", id, err, ErrInvalidArgument)
	}
	if len(id) > maxCacheName {
		return fmt.Errorf("container ID of %d bytes is too long: %w", len(id), ErrInvalidArgument)
	}
	return nil
}

// validateAttachmentName checks the interface name of an attachment, which an
// earlier version may have made, and that libcni can cache its result.
func validateAttachmentName(network, id, ifName string) error {
	if err := utils.ValidateInterfaceName(ifName); err != nil {
		return fmt.Errorf("interface name %q: %w: %w", ifName, err, ErrInvalidArgument)
	}
	if n := len(network) + len(id) + len(ifName) + 2; n > maxCacheName {
		return fmt.Errorf("network %q, container ID and interface name take %d bytes together, %d are allowed: %w",
			network, n, maxCacheName, ErrInvalidArgument)
	}
	return nil
}

// validateIfName checks the name of a new interface. The kernel replaces "%d" by a
// number (dev_alloc_name), and the interface would have another name than in the
// record and in the plugins' requests.
func validateIfName(name string) error {
	if err := utils.ValidateInterfaceName(name); err != nil {
		return fmt.Errorf("%w: %w", err, ErrInvalidArgument)
	}
	if strings.Contains(name, "%") {
		return fmt.Errorf("the kernel replaces %%d by a number and takes no other '%%': %w", ErrInvalidArgument)
	}
	return nil
}

// selected returns a selection for each network of a call: the networks that
// WithNetwork names, or all loaded networks.
func (s *snapshot) selected(ns *Namespace) (all []selection, err error) {
	if len(ns.selected) == 0 {
		for _, n := range s.networks {
			all = append(all, selection{network: n.config.Name, of: n})
		}
		return all, nil
	}
	var errs []error
	for i, sel := range s.bound(ns) {
		sel.index = i
		some, err := s.expand(sel)
		all, errs = append(all, some...), append(errs, err)
	}
	return all, join(errs...)
}

// expand returns a copy of the selection for each network that it selects.
func (s *snapshot) expand(sel selection) ([]selection, error) {
	if sel.of != nil {
		return []selection{sel}, nil
	}
	found, err := s.find(sel.network)
	if err != nil {
		return nil, err
	}
	if len(found) > 1 && sel.ifName != "" {
		if found, err = loadedFor(found, sel.ifName); err != nil {
			return nil, err
		}
	}
	var all []selection
	for _, n := range found {
		sel.of = n
		all = append(all, sel)
	}
	return all, nil
}

// narrow keeps only the attachments that the call selects.
func (op *operation) narrow(ns *Namespace) error {
	if len(ns.selected) == 0 {
		return nil
	}
	var kept attachments
	for _, sel := range op.e.bound(ns) {
		found := false
		for _, a := range op.attachments {
			if sel.means(a) {
				kept = append(kept, a)
				found = true
			}
		}
		if _, err := op.e.find(sel.network); !found && sel.list == nil && err != nil {
			return err
		}
	}
	op.attachments = kept
	return nil
}

// means reports whether a selection selects an attachment that is on record.
func (sel selection) means(a *attachment) bool {
	switch {
	case a.network.config.Name != sel.network:
		return false
	case sel.list != nil, sel.of != nil && sel.of.snapshot.shared(sel.of):
		return a.IfName == sel.of.ifName
	}
	return sel.ifName == "" || sel.ifName == a.IfName
}

// SweepNetNS is netns.Sweep, and keeps the namespaces of containers on record too, of
// any owner, whether or not a process is in them. It removes nothing, and returns an
// error, while a record is damaged or cannot be read. It is for the start of a program
// that makes namespaces without WithNewNetNS.
func (r *Runtime) SweepNetNS(dir string, o netns.SweepOptions) (*netns.SweepReport, error) {
	s := r.current.Load()
	found, err := s.store.Records.List()
	if err != nil {
		return nil, fmt.Errorf("sweep network namespaces in %q: %w", dir, err)
	}
	byID, byPath := map[netns.ID]record.ID{}, map[string]record.ID{}
	for _, f := range found {
		if f.Err != nil {
			return nil, fmt.Errorf("sweep network namespaces in %q: %w", dir, recordError(s.store.Records, f.Record.ContainerID, f.File, f.Err))
		}
		if id := f.Record.NetNS.ID(); id != (netns.ID{}) {
			byID[id] = f.Record.ContainerID
		}
		byPath[f.Record.NetNS.Path] = f.Record.ContainerID
	}
	keep := o.Keep
	o.Keep = func(e netns.Entry) error {
		id, ok := byID[e.ID]
		if !ok {
			id, ok = byPath[e.Path]
		}
		if ok {
			return fmt.Errorf("container %s is on record: %w", id, netns.ErrBusy)
		}
		if keep == nil {
			return nil
		}
		return keep(e)
	}
	return netns.Sweep(dir, o)
}
