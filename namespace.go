package cni

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/engine/engine"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/internal/store/record"
)

// Namespace is a container in one call: its ID, the path of its network namespace,
// and the values set by [NamespaceOpts].
type Namespace struct {
	id   record.ID
	path string
	scope
	selected []selection
	makes    bool                      // Setup makes it, see WithNewNetNS
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

// NamespaceOpts is an option of [Runtime.Setup], [Runtime.Remove] and Check.
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
	one.selected = []selection{{network: n.conf.Config.Name, of: n, scope: newScope()}}
	return &one
}

// WithNewNetNS has [Runtime.Setup] make the container's network namespace, and
// [Runtime.Remove] delete it. Setup's path is where it is pinned, as by netns.Create; an
// existing path is refused with [ErrInvalidNetNS] and fs.ErrExist. If path is empty, or the
// one that Setup has chosen for the container before, the namespace is pinned in the record
// directory. Result.NetNS has the path, from [Runtime.Lookup] too; netns.Do starts a
// process there.
//
// The namespace is on record before it has a name, and a Setup that fails deletes it. A
// runtime that is killed in Setup or Remove leaves it to the next [Runtime.Recover], or to a Setup
// or Remove of the same container. Only the recorded namespace is ever deleted: whatever
// else is at the path by then stays. Processes in it stay in it, without interfaces.
//
// A Setup that is given the path keeps the namespace, and attaches it again; so does
// package reconcile.
// Should that fail, or be killed, the namespace stays on record, without attachments: for
// another attempt, or until Remove, a GC, or a Recover that finds no process in it.
//
// The caller needs CAP_SYS_ADMIN, also for the mount in path's directory. That is made if
// it is missing, and stays. Other calls than Setup ignore the option.
func WithNewNetNS() NamespaceOpts {
	return func(ns *Namespace) error {
		if ns.nested {
			return fmt.Errorf("a new network namespace inside WithNetwork: %w", ErrInvalidArgument)
		}
		ns.makes = true
		return nil
	}
}

// WithNetwork selects the loaded network of that name. Without WithNetwork a call
// is for all loaded networks; with it, for the selected ones in the given order,
// which is also that of Result.Raw. opts apply to this network only and take
// precedence over the same options of the call: [WithInterfaceName], [WithArgs],
// [WithLabels], [WithConfigArgs], [WithMetadata], [WithPorts] and the capabilities.
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
		return ns.add(selection{network: name}, opts)
	}
}

// WithInterfaceName sets the name of the interface in the container. Among
// configurations of one name it selects the one loaded for that interface. It is
// valid only inside [WithNetwork] or [WithNetworkConfig].
func WithInterfaceName(name string) NamespaceOpts {
	return func(ns *Namespace) error {
		if !ns.nested {
			return fmt.Errorf("interface name %q outside WithNetwork: %w", name, ErrInvalidArgument)
		}
		ns.ifName = name
		return nil
	}
}

// WithLabels adds labels to CNI_ARGS, as [WithArgs] does, for plugins that know them. The
// caller's own values are for [WithMetadata].
func WithLabels(labels map[string]string) NamespaceOpts {
	return give(func(ns *Namespace) { maps.Copy(ns.args, labels) })
}

// WithArgs adds k=v to CNI_ARGS. Neither may contain ';', '=', a newline or a NUL
// byte: CNI_ARGS cannot quote them, and a value with a semicolon would set another
// argument, such as an address.
//
// The reference plugins, and the built-in ones, refuse an argument that they do not know,
// unless IgnoreUnknown is 1.
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

// WithMetadata has [Runtime.Setup] keep values of the caller's in the record of each attachment,
// for example the name of a pod: [Runtime.Attachments] returns them. No plugin sees
// them. All keys and values of one attachment may take 4096 bytes together, and a key
// must not be empty. Other calls than Setup ignore it. Values that are known only later
// are for [Runtime.SetMetadata].
func WithMetadata(values map[string]string) NamespaceOpts {
	return give(func(ns *Namespace) { maps.Copy(ns.metadata, values) })
}

// SetMetadata adds values of the caller's to the record of each attachment of the
// container that this owner has made: those that are known only after the Setup, such as
// the process ID of the container's task. They replace those of the same keys, and are
// otherwise as those of [WithMetadata]. They survive the process, and end with the record.
//
// Each call that changes something adds a line to the record, which the next Setup of the
// container makes short again: SetMetadata is not for values that change all the time.
//
// The error is [ErrNotAttached] if this owner has not attached the container. A damaged
// record is an error too. With [ErrInvalidArgument] nothing was changed. SetMetadata waits
// for other calls for the container. It is safe for concurrent use.
func (r *Runtime) SetMetadata(ctx context.Context, id string, values map[string]string) error {
	if err := r.current.Load().eng.SetMetadata(ctx, record.ID(id), values); err != nil {
		return fmt.Errorf("set metadata of container %q: %w", id, err)
	}
	return nil
}

// WithNetworkConfig attaches the container to a network that need not be loaded: config
// is its configuration, for this call, as a list of plugins or as that of a single
// plugin. Its interface is the prefix with the number of networks
// that the call selects before it, unless opts have [WithInterfaceName]. Otherwise it is
// [WithNetwork], and a call can have both, more than once. A call whose networks are all
// its own needs no loaded ones.
//
// The record keeps the configuration. [Runtime.Remove], [Runtime.Recover], GC, Health and
// Repair go by the record, in this and in later processes, whichever networks are loaded.
// Remove and Check select such an attachment by WithNetwork with the name in the
// configuration, or by this option, and without a selection they are for these attachments
// too. A container without a record is detached with config.
func WithNetworkConfig(config []byte, opts ...NamespaceOpts) NamespaceOpts {
	config = slices.Clone(config)
	return func(ns *Namespace) error {
		if ns.nested {
			return fmt.Errorf("a network's configuration inside WithNetwork: %w", ErrInvalidArgument)
		}
		ns.own = true
		list, err := conflist.ParseAny(config)
		if err == nil {
			err = conflist.RequireName(list)
		}
		if err != nil {
			return configError(err)
		}
		return ns.add(selection{network: list.Name, list: list}, opts)
	}
}

// WithPrevResult gives the first plugin of a network a previous result, for a program that
// is itself a plugin in a list: the plugins continue where those before it have stopped
// (CNI specification 1.1.0, section 3, "prevResult"). result is of any version, and is
// converted to that of the configuration. The network's Result includes it, as a chained
// plugin's does. The interfaces in it are others' and are never deleted.
//
// The record keeps it for the DEL and CHECK of a plugin that has not answered. Other calls
// than [Runtime.Setup] use it only for a container without a record. It is valid only inside
// [WithNetworkConfig].
func WithPrevResult(result []byte) NamespaceOpts {
	result = slices.Clone(result)
	return func(ns *Namespace) error {
		if ns.list == nil {
			return fmt.Errorf("a previous result outside WithNetworkConfig: %w", ErrInvalidArgument)
		}
		prev, err := chain.Previous(result, ns.list.CNIVersion)
		if err != nil {
			return fmt.Errorf("previous result: %w: %w", engine.WithSentinel(err), ErrInvalidArgument)
		}
		ns.prev = prev
		return nil
	}
}

// WithPluginDirOrder has a Setup search these of the Runtime's plugin directories first, in
// this order, and then the others: for a program that carries out the CNI calls of another
// one, in whose CNI_PATH they are. Directories that the Runtime does not have are ignored,
// and so is an order that is the Runtime's own. The record keeps any other: Check, [Runtime.Remove]
// and all others run the plugins that the Setup has run, and give them its order in
// CNI_PATH, for those to which they delegate.
//
// It has no effect on plugins in process, nor is it valid inside [WithNetwork].
func WithPluginDirOrder(dirs ...string) NamespaceOpts {
	dirs = slices.Clone(dirs)
	return func(ns *Namespace) error {
		if ns.nested {
			return fmt.Errorf("an order of plugin directories inside WithNetwork: %w", ErrInvalidArgument)
		}
		ns.dirs = dirs
		return nil
	}
}
