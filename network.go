package cni

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/engine/engine"
	"github.com/embedcni/cni/internal/store/conflist"
)

// Network is a loaded network configuration with the name of its interface in a
// container. It stays usable after another Load.
type Network struct {
	conf   *engine.Network
	path   string // of the file it came from; empty for bytes
	loaded *loaded
}

// Attach runs ADD of this network only. It validates, locks and rolls back as
// Runtime.Setup does, which callers should prefer.
func (n *Network) Attach(ctx context.Context, ns *Namespace) (*types100.Result, error) {
	result, err := n.loaded.setup(ctx, ns.only(n), true)
	if err != nil {
		return nil, err
	}
	return result.raw[0], nil
}

// Remove runs DEL of this network only; see Runtime.Remove.
func (n *Network) Remove(ctx context.Context, ns *Namespace) error {
	return n.loaded.remove(ctx, ns.only(n))
}

// Check runs CHECK of this network only; see Runtime.Check.
func (n *Network) Check(ctx context.Context, ns *Namespace) error {
	return n.loaded.check(ctx, ns.only(n))
}

// loaded is a complete configuration. It is immutable: Load makes another one, and
// calls under way keep theirs.
type loaded struct {
	eng      *engine.Engine
	opts     settings
	wanted   *config // the options that it was made by
	networks []*Network
	last     *loaded // the last one with networks, if a Reload found that theirs are gone
	skipped  []SkippedFile
	warned   sync.Map // see loud
}

// load reads the networks.
func load(want *config, previous *loaded) (*loaded, error) {
	b := &build{settings: &want.settings, previous: previous}
	for _, load := range want.loaders {
		if err := load.load(b); err != nil {
			return nil, err
		}
	}
	return b.loaded(want), nil
}

// loaded makes a configuration of the networks that were read.
func (b *build) loaded(want *config) *loaded {
	l := &loaded{opts: want.settings, wanted: want, networks: b.networks, skipped: b.skipped}
	var previous *engine.Engine
	if b.previous != nil {
		previous = b.previous.eng
	}
	var networks []*engine.Network
	for _, n := range l.networks {
		n.loaded = l
		networks = append(networks, n.conf)
	}
	l.eng = engine.NewEngine(want.Options, networks, previous)
	return l
}

// ifName is the name of the i-th interface: prefix and number.
func ifName(prefix string, i int) string { return fmt.Sprintf("%s%d", prefix, i) }

// loader adds networks to a configuration that is being built.
type loader struct {
	load func(b *build) error
	from origin
}

// origin is where a loader reads: a file, or the configuration directory; zero for bytes.
type origin struct {
	file string
	dir  bool
}

// build is a configuration under construction: settings are final, networks are being
// added. previous is the configuration that a Load would replace.
type build struct {
	settings *settings
	previous *loaded
	networks []*Network
	skipped  []SkippedFile
}

func (b *build) reader() conflist.Reader {
	return conflist.Reader{Insecure: b.settings.Insecure}
}

// add adds a network, unless err is why its configuration could not be read. Several
// configurations may have the same network name, such as the IPv4 and the IPv6 list of a
// network. The interface name, which is unique in a container, distinguishes their
// attachments.
func (b *build) add(n *Network, err error) error {
	if err != nil {
		return configError(err)
	}
	b.networks = append(b.networks, n)
	return nil
}

// next returns the interface name of the next network: prefix and the number of
// networks so far, as in go-cni.
func (b *build) next() string { return ifName(b.settings.prefix, len(b.networks)) }

func withLoader(load func(b *build) error) Opt { return withOrigin(origin{}, load) }

func withOrigin(from origin, load func(b *build) error) Opt {
	return set(func(c *config) { c.loaders = append(c.loaders, loader{load, from}) })
}

// loopbackConf has version 0.4.0, the lowest with CHECK, which old loopback plugins
// know. go-cni's has 0.3.1, so its CHECK always fails.
const loopbackConf = `{
"cniVersion": "0.4.0",
"name": "cni-loopback",
"plugins": [{
  "type": "loopback"
}]

}`

// WithLoNetwork loads the loopback network, whose interface is always lo. It is
// an Opt itself and is passed without a call.
//
// Its plugin is the built-in one, in process, even if there is an executable in the plugin
// directories, unless [WithPlugin] registers another plugin "loopback". A configuration of
// the caller's with that plugin is like any other.
//
// As with go-cni, it counts as a network: a list that [WithConfListBytes] or
// [WithConfListFile] loads after it gets eth1, and the Result has an eth0 without
// addresses. Behind the list in the order of the options, it leaves eth0 to the list.
func WithLoNetwork(c *config) error {
	return withLoader(func(b *build) error {
		list, err := conflist.Parse([]byte(loopbackConf))
		return b.add(&Network{conf: &engine.Network{Config: list, IfName: "lo", IsLo: true}}, err)
	})(c)
}

// WithConf loads a single plugin's configuration from bytes. Its interface is
// the prefix with 0.
func WithConf(bytes []byte) Opt { return WithConfIndex(bytes, 0) }

// WithConfIndex loads a single plugin's configuration from bytes. Its interface
// is the prefix with index.
func WithConfIndex(bytes []byte, index int) Opt {
	bytes = slices.Clone(bytes)
	return withLoader(func(b *build) error {
		list, err := conflist.ParseSingle(bytes)
		return b.add(&Network{conf: &engine.Network{Config: list, IfName: ifName(b.settings.prefix, index)}}, err)
	})
}

// WithConfFile loads a file with a single plugin's configuration. Its interface
// is the prefix with 0.
func WithConfFile(fileName string) Opt {
	return withOrigin(origin{file: fileName}, func(b *build) error {
		list, err := b.reader().Single(fileName)
		return b.add(&Network{conf: &engine.Network{Config: list, IfName: ifName(b.settings.prefix, 0)}, path: fileName}, err)
	})
}

// WithConfListBytes loads a list of plugins from bytes. Its interface is the
// prefix with the number of networks loaded before it, see [WithLoNetwork].
func WithConfListBytes(bytes []byte) Opt {
	bytes = slices.Clone(bytes)
	return withLoader(func(b *build) error {
		list, err := conflist.Parse(bytes)
		if err == nil {
			err = conflist.RequirePlugins(list)
		}
		return b.add(&Network{conf: &engine.Network{Config: list, IfName: b.next()}}, err)
	})
}

// WithConfListFile loads a file with a list of plugins. Unless the list sets
// loadOnlyInlinedPlugins, it also loads the plugins' files in the directory beside it
// that has the network's name. Its interface is the prefix with the number of
// networks loaded before it.
func WithConfListFile(fileName string) Opt {
	return withOrigin(origin{file: fileName}, func(b *build) error {
		list, err := b.reader().List(fileName)
		return b.add(&Network{conf: &engine.Network{Config: list, IfName: b.next()}, path: fileName}, err)
	})
}

// WithDefaultConf loads the first configurations of the configuration directory in
// name order, as many as [WithPluginMaxConfNum] sets. Their interfaces are the prefix
// with 0, 1, …, independent of networks loaded before. It is an Opt itself and is
// passed without a call.
//
// A file that cannot be used is skipped, logged, and listed by [Runtime.GetConfig]. If that file
// is loaded now, Load fails and changes nothing, because skipping it would attach
// containers to other networks.
func WithDefaultConf(c *config) error {
	return withOrigin(origin{dir: true}, func(b *build) error { return b.directory(b.settings.pluginMaxConfNum) })(c)
}

// WithAllConf is [WithDefaultConf] for all configurations of the directory.
func WithAllConf(c *config) error {
	return withOrigin(origin{dir: true}, func(b *build) error { return b.directory(0) })(c)
}

func (b *build) directory(max int) error {
	want := conflist.Selection{Max: max, Must: b.loadedFrom}
	found, skipped, err := b.reader().Dir(b.settings.pluginConfDir, want)
	if err != nil {
		return configError(err)
	}
	for _, s := range skipped {
		b.skipped = append(b.skipped, SkippedFile{Path: s.Path, Reason: s.Err.Error()})
	}
	for i, f := range found {
		b.networks = append(b.networks, &Network{conf: &engine.Network{Config: f.List, IfName: ifName(b.settings.prefix, i)}, path: f.Path})
	}
	return nil
}

// loadedFrom reports whether a network that is loaded now came from path.
func (b *build) loadedFrom(path string) bool {
	if b.previous == nil {
		return false
	}
	return slices.ContainsFunc(b.previous.networks, func(n *Network) bool { return n.path == path })
}

// logOddities logs the configuration files that were passed over.
func (l *loaded) logOddities() {
	for _, f := range l.skipped {
		l.opts.Logger.Warn("configuration file passed over", "path", f.Path, "reason", f.Reason)
	}
}

// Several configurations may have the same network name. The name selects all of
// them. The interface name selects one of them, as it identifies an attachment in the
// record and in libcni's cache.

// find returns the loaded networks with a name, in the order in which they were
// loaded.
func (l *loaded) find(network string) ([]*Network, error) {
	found := withName(l.networks, network)
	if len(found) == 0 {
		var names []string
		for _, n := range l.networks {
			names = engine.Union(names, []string{n.conf.Config.Name})
		}
		return nil, fmt.Errorf("network %q is not loaded (loaded: %s): %w", network, strings.Join(names, ", "), ErrNotFound)
	}
	return found, nil
}

func withName(all []*Network, name string) []*Network {
	return slices.DeleteFunc(slices.Clone(all), func(n *Network) bool { return n.conf.Config.Name != name })
}

// loadedFor returns the one network that was loaded for the interface, out of
// networks with the same name.
func loadedFor(networks []*Network, ifName string) (found []*Network, err error) {
	var names []string
	for _, n := range networks {
		names = append(names, n.conf.IfName)
		if n.conf.IfName == ifName {
			found = append(found, n)
		}
	}
	if len(found) == 1 {
		return found, nil
	}
	return nil, fmt.Errorf("%d of the %d configurations named %q were loaded for interface %q (loaded for: %s), and one must be meant: %w",
		len(found), len(networks), networks[0].conf.Config.Name, ifName, strings.Join(names, ", "), ErrInvalidArgument)
}

func (n *Network) declares(capability string) bool {
	return conflist.Declares(n.conf.Config, capability)
}

// unnamed returns an error if a loaded network has no name. No container can then be
// attached to the loaded networks.
func (l *loaded) unnamed() error {
	for _, n := range l.networks {
		if err := conflist.RequireName(n.conf.Config); err != nil {
			return fmt.Errorf("network for interface %s: %w: %w", n.conf.IfName, err, ErrInvalidConfig)
		}
	}
	return nil
}

// same reports whether another network is configured alike.
func (n *Network) same(other *Network) bool {
	return n.conf.IfName == other.conf.IfName && n.conf.IsLo == other.conf.IsLo && conflist.Equal(n.conf.Config, other.conf.Config)
}
