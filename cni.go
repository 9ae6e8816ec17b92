package cni

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"go.opentelemetry.io/otel/trace"

	"github.com/embedcni/cni/internal/engine/engine"
	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/run/runner"
)

// CNI attaches containers to networks. It is go-cni's interface and gets no more
// methods, so that users' fakes stay complete.
type CNI interface {
	// Setup attaches a container to the networks, in parallel.
	Setup(ctx context.Context, id string, path string, opts ...NamespaceOpts) (*Result, error)
	// SetupSerially attaches a container to the networks one after the other.
	SetupSerially(ctx context.Context, id string, path string, opts ...NamespaceOpts) (*Result, error)
	// Remove detaches a container.
	Remove(ctx context.Context, id string, path string, opts ...NamespaceOpts) error
	// Check reports whether a container is attached as [Runtime.Setup] left it.
	Check(ctx context.Context, id string, path string, opts ...NamespaceOpts) error
	// Load replaces the network configuration.
	Load(opts ...Opt) error
	// Status reports whether containers can be attached.
	Status() error
	// GetConfig returns a copy of the configuration.
	GetConfig() *ConfigResult
}

var _ CNI = (*Runtime)(nil)

// Runtime attaches containers to its loaded networks. Use New to create one. It is
// safe for concurrent use.
type Runtime struct {
	current atomic.Pointer[loaded]
	failed  atomic.Pointer[error] // of the last Load; nil if it succeeded
	// outdated is why the networks in use are not those of the files, since a Reload.
	outdated atomic.Pointer[error]
	loading  sync.Mutex // one Load at a time; never held while a plugin runs
	wanted   *config    // by the last New or Load; guarded by loading
}

// New returns a Runtime with the settings and networks of the options. It searches
// for no plugin, and accepts directories that do not exist. Contradicting options
// are [ErrInvalidArgument].
func New(opts ...Opt) (*Runtime, error) {
	want, err := newWanted(defaultSettings(), opts)
	if err != nil {
		return nil, err
	}
	s, err := load(want, nil)
	if err != nil {
		return nil, err
	}
	s.logOddities()
	r := &Runtime{wanted: want}
	r.current.Store(s)
	return r, nil
}

// Load replaces all networks, including those given to New, with those of the
// options; settings stay unless an option changes them. If anything is wrong, Load
// changes nothing and returns an error that names the file and the mistake. Calls
// under way continue with the configuration they began with.
func (r *Runtime) Load(opts ...Opt) error {
	r.loading.Lock()
	defer r.loading.Unlock()
	previous := r.current.Load()
	want, err := newWanted(previous.opts, opts)
	var s *loaded
	if err == nil {
		r.wanted = want
		s, err = load(want, previous)
	}
	if err != nil {
		err = loadError(err)
		r.failed.Store(&err)
		return err
	}
	s.logOddities()
	r.store(s)
	return nil
}

// Setup attaches the container to the loaded networks, or to those selected with
// [WithNetwork], in parallel; a network that is selected twice is attached twice, in
// order. path is the container's network namespace, or with [WithNewNetNS] the path at
// which Setup makes one.
//
// Setup validates everything before it runs a plugin, and returns [ErrInvalidArgument]
// or [ErrInvalidNetNS]. If the container is attached already, it returns
// [ErrAlreadyAttached] and changes nothing. A dead attachment is removed first: one
// whose interfaces are gone, or whose path no longer leads to its namespace, in which
// there is no visible process. An attachment of another mount namespace is not dead while
// the host's end of its interface exists. A container may be attached again under other interface
// names, in the same namespace, from the same host namespace.
//
// If anything fails or ctx ends, Setup detaches everything before it returns. The
// error includes anything that could not be detached.
func (r *Runtime) Setup(ctx context.Context, id string, path string, opts ...NamespaceOpts) (*Result, error) {
	return r.setup(ctx, "cni.Setup", id, path, opts, false)
}

// SetupSerially is [Runtime.Setup] with one network after the other, as in the specification.
// It stops at the first that fails.
func (r *Runtime) SetupSerially(ctx context.Context, id string, path string, opts ...NamespaceOpts) (*Result, error) {
	return r.setup(ctx, "cni.SetupSerially", id, path, opts, true)
}

func (r *Runtime) setup(ctx context.Context, span, id, path string, opts []NamespaceOpts, serially bool) (_ *Result, err error) {
	l := r.current.Load()
	ctx, under := runner.CallSpan(ctx, span, id, path)
	defer func() { endCall(under, err) }()
	ns, err := newNamespace(id, path, opts...)
	if err := r.usable(l, ns); err != nil {
		return nil, err
	}
	if err != nil {
		return nil, joined.Errorf("set up container %q: %w", id, err)
	}
	return l.setup(ctx, ns, serially)
}

func (l *loaded) setup(ctx context.Context, ns *Namespace, serially bool) (*Result, error) {
	c, err := l.call(ns, "ADD")
	if err != nil {
		return nil, joined.Errorf("set up container %q: %w", ns.id, err)
	}
	made, err := l.eng.Setup(ctx, c, serially)
	if err != nil {
		return nil, err
	}
	return l.result(made)
}

// Remove detaches the container from all its networks, or from those selected with
// [WithNetwork]. It uses the container's record: no network needs to be loaded, and no
// option of [Runtime.Setup] repeated. It asks every plugin of every network, last network and
// last plugin first, and continues after errors. Then it removes leftovers of the
// reference plugins and verifies that nothing remains.
//
// It returns nil if nothing remains. The error of a failed DEL is only logged if the
// sweep covers that plugin (see also [WithObserver]); otherwise Remove returns a
// *[LeftoverError]. Then the record stays, and Remove, [Runtime.Recover] or GC tries again. If
// the record cannot be used, Remove returns a *[RecordError] and changes nothing.
//
// Remove may be called again. A container without a record may be go-cni's: it is detached
// by libcni's cache, and the plugins of the loaded networks are asked for DEL, whose failure
// is an error as above. path is used only for these, and may be empty or gone. ctx
// carries values only: Remove continues after its end, each plugin within
// Timeouts.Del.
func (r *Runtime) Remove(ctx context.Context, id string, path string, opts ...NamespaceOpts) (err error) {
	l := r.current.Load().withNetworks()
	ctx, span := runner.CallSpan(ctx, "cni.Remove", id, path)
	defer func() { endCall(span, err) }()
	ns, err := newNamespace(id, path, opts...)
	if err != nil {
		return joined.Errorf("remove container %q: %w", id, err)
	}
	return l.remove(ctx, ns)
}

func (l *loaded) remove(ctx context.Context, ns *Namespace) error {
	c, err := l.call(ns, "DEL")
	if err != nil {
		return joined.Errorf("remove container %q: %w", ns.id, err)
	}
	return l.eng.Remove(ctx, c)
}

// Check asks the plugins of the loaded networks, or of those selected with [WithNetwork] or
// [WithNetworkConfig], whether the attachment is as [Runtime.Setup] left it, with the
// configuration and the parameters of Setup. It stops at the first error, and returns
// [ErrNotAttached] if there was no Setup, whatever the path. An empty path is that of the
// Setup. For a configuration older than 0.4.0, which has no CHECK, it returns [ErrNoCheck];
// one with disableCheck is skipped.
func (r *Runtime) Check(ctx context.Context, id string, path string, opts ...NamespaceOpts) (err error) {
	l := r.current.Load()
	ctx, span := runner.CallSpan(ctx, "cni.Check", id, path)
	defer func() { endCall(span, err) }()
	ns, err := newNamespace(id, path, opts...)
	if err == nil {
		ns, err = l.withNetworks().withRecorded(ns)
	}
	if l.last != nil {
		l = l.last // its containers are attached
	} else if err := r.usable(l, ns); err != nil {
		return err
	}
	if err != nil {
		return joined.Errorf("check container %q: %w", id, err)
	}
	return l.check(ctx, ns)
}

func (l *loaded) check(ctx context.Context, ns *Namespace) error {
	c, err := l.call(ns, "CHECK")
	if err != nil {
		return joined.Errorf("check container %q: %w", ns.id, err)
	}
	return l.eng.Check(ctx, c)
}

// Status returns nil if containers can be attached. It returns
// [ErrCNINotInitialized] if fewer networks are loaded than [WithMinNetworkCount] asks
// for, with the error of the last Load if that failed; [ErrInvalidConfig] if one of them
// has no name; or else the error that a plugin of a network of version 1.1.0 or later
// returns for STATUS. It waits for no other call, concurrent calls share one
// answer, and nil is remembered for a second. Timeouts.Status bounds it.
func (r *Runtime) Status() error { return r.status(context.Background()) }

func (r *Runtime) status(ctx context.Context) error {
	l := r.current.Load()
	if err := engine.Join(r.ready(l), l.unnamed()); err != nil {
		return err
	}
	return l.eng.AskStatus(ctx)
}

// StatusOf returns nil if containers can be attached to networks of these configurations,
// which need not be loaded: they are valid, and no plugin of one of version 1.1.0 or later
// returns an error for STATUS. Unlike Status it asks each time. The error is
// [ErrInvalidConfig], or the first plugin's *Error. Without configurations it is Status with
// a context.
func (r *Runtime) StatusOf(ctx context.Context, configs ...[]byte) error {
	if len(configs) == 0 {
		return r.status(ctx)
	}
	own, err := parseOwn(configs)
	if err != nil {
		return fmt.Errorf("status: %w", err)
	}
	return r.current.Load().eng.AskStatusOf(ctx, own)
}

// Ready returns nil if a Setup of all loaded networks could succeed now, or an error with
// every reason why not, a line for each, which errors.Is and errors.As find. It attaches
// nothing, and writes nothing itself. The reasons are:
//
//   - [ErrCNINotInitialized], with the error of the last Load if that failed, and
//     [ErrInvalidConfig] for a network without a name;
//   - an *Error for each plugin that cannot be run, IPAM plugins included
//     ([ErrPluginNotFound], [ErrInsecureFile]), and for each that refuses STATUS, as for a
//     subnet without free addresses. Executables are asked on networks of version
//     1.1.0 and later, and built-in plugins on all, also about executables that are
//     released reference plugins, whose own STATUS says less. What another executable
//     does not say is not known;
//   - directories in which nothing can be written, or which have no space left;
//   - why the last [Runtime.Reload] could not load the files ([ErrLoad]), so that earlier networks are
//     still in use;
//   - capabilities that this process lacks, and features of the kernel and programs
//     that the plugins of the loaded networks need.
//
// Unlike Status, which answers as go-cni's, it does not stop at the first reason, and
// remembers no answer. Timeouts.Status bounds it.
func (r *Runtime) Ready(ctx context.Context) error {
	l := r.current.Load()
	tooFew := r.ready(l)
	reasons := []error{tooFew, l.unnamed()}
	if why := r.outdated.Load(); why != nil && tooFew == nil {
		reasons = append(reasons, *why)
	}
	if err := joined.List(append(reasons, l.eng.WhyNotReady(ctx)...)...); err != nil {
		return joined.Errorf("not ready: %w", err)
	}
	return nil
}

// GetConfig returns a copy of the configuration.
func (r *Runtime) GetConfig() *ConfigResult {
	s := r.current.Load()
	c := &ConfigResult{
		PluginDirs:       slices.Clone(s.opts.PluginDirs),
		PluginConfDir:    s.opts.pluginConfDir,
		PluginMaxConfNum: s.opts.pluginMaxConfNum,
		Prefix:           s.opts.prefix,
		HostNetNS:        s.opts.HostNetNS,
		StateDir:         filepath.Dir(s.eng.Own),
		RecordDir:        s.eng.Store.Records.Dir(),
		Owner:            s.opts.Owner,
		Skipped:          slices.Clone(s.skipped),
	}
	for _, n := range s.networks {
		list := &NetworkConfList{
			Name:       n.conf.Config.Name,
			CNIVersion: n.conf.Config.CNIVersion,
			Source:     string(n.conf.Config.Bytes),
		}
		for _, p := range n.conf.Config.Plugins {
			list.Plugins = append(list.Plugins, networkConf(s.eng.RunnerOf(n.conf), p))
		}
		c.Networks = append(c.Networks, &ConfNetwork{Config: list, IFName: n.conf.IfName})
	}
	return c
}

// ConfigResult is the configuration of a Runtime.
type ConfigResult struct {
	PluginDirs       []string
	PluginConfDir    string
	PluginMaxConfNum int
	Prefix           string
	Networks         []*ConfNetwork
	// HostNetNS, StateDir and Owner are those of the options of these names, and RecordDir
	// is where the records are. The directories are without symbolic links.
	HostNetNS, StateDir, RecordDir, Owner string `json:"-"` // go-cni's JSON has none of them
	// Skipped lists files of the configuration directory that the last Load could
	// not use.
	Skipped []SkippedFile `json:",omitempty"`
}

// SkippedFile is a configuration file that could not be used, and why.
type SkippedFile struct {
	Path   string
	Reason string
}

// ConfNetwork is a network and the name of its interface in a container.
type ConfNetwork struct {
	Config *NetworkConfList
	IFName string
}

// NetworkConfList is a network's configuration, and its JSON source.
type NetworkConfList struct {
	Name       string
	CNIVersion string
	Plugins    []*NetworkConf
	Source     string
}

// NetworkConf is a plugin's configuration, its JSON source, and the plugin that would
// run for it now.
type NetworkConf struct {
	Network *types.NetConf
	Source  string
	// Kind is "executable", "built in", or "registered" by [WithPlugin]. It is empty if there
	// is no such plugin, or if it may not run.
	Kind string `json:",omitempty"`
	Path string `json:",omitempty"` // of an executable
	// IPAMKind is the kind of the IPAM plugin that an in-process plugin would delegate
	// to. An executable searches the plugin directories itself.
	IPAMKind string `json:",omitempty"`
	// Reason is why Kind, or the IPAMKind of an in-process plugin, is empty.
	Reason string `json:",omitempty"`
}

// networkConf copies a plugin's configuration and finds the plugin.
func networkConf(r *runner.Runtime, p *libcni.PluginConfig) *NetworkConf {
	network := *p.Network
	conf := &NetworkConf{Network: &network, Source: string(p.Bytes)}
	found, err := r.Find(network.Type)
	conf.Kind, conf.Path = string(found.Kind), found.Path
	if ipam := network.IPAM.Type; err == nil && ipam != "" && found.Kind != runner.Executable {
		found, err = r.Find(ipam)
		conf.IPAMKind = string(found.Kind)
	}
	if err != nil {
		conf.Reason = err.Error()
	}
	return conf
}

// Networks returns the loaded networks in order.
func (r *Runtime) Networks() []*Network { return slices.Clone(r.current.Load().networks) }

// GetCNIResultFromResults converts the plugins' results, one for each loaded network,
// in order.
//
// Deprecated: Setup returns the same.
func (r *Runtime) GetCNIResultFromResults(results []*types100.Result) (*Result, error) {
	s := r.current.Load()
	sources := make([]engine.Source, len(results))
	for i, result := range results {
		sources[i] = engine.Source{IfName: ifName(s.opts.prefix, 0), Result: result}
		if len(results) == len(s.networks) {
			sources[i].Network, sources[i].IfName = s.networks[i].conf.Config.Name, s.networks[i].conf.IfName
		}
	}
	return newResult(sources, ifName(s.opts.prefix, 0))
}

// store puts a configuration in force.
func (r *Runtime) store(s *loaded) {
	r.current.Store(s)
	r.failed.Store(nil)
	r.outdated.Store(nil)
}

// newWanted applies the settings among the options. Networks are loaded afterwards, so
// that the position of a setting does not matter.
func newWanted(base settings, opts []Opt) (*config, error) {
	c := &config{settings: base}
	for _, o := range opts {
		if err := o(c); err != nil {
			return nil, err
		}
	}
	var err error
	if c.Choice, err = chosen(c.Choice, c.choosing); err != nil {
		return nil, err
	}
	if err := c.checkPluginRoot(); err != nil {
		return nil, err
	}
	return c, nil
}

// ready returns ErrCNINotInitialized, with the reason if that is known, if too few
// networks are loaded.
func (r *Runtime) ready(s *loaded) error {
	if len(s.networks) >= s.opts.minNetworks && s.last == nil {
		return nil
	}
	if failed := r.failed.Load(); failed != nil {
		return fmt.Errorf("%w: %w", ErrCNINotInitialized, *failed)
	}
	return ErrCNINotInitialized
}

// endCall ends the span of a method. As with go-cni, the error of a network is the
// status of that network's span alone. Other errors are the status of this span.
func endCall(span trace.Span, err error) {
	if span == nil {
		return
	}
	left := (*LeftoverError)(nil)
	if errors.As(err, new(*Error)) && !(errors.As(err, &left) && len(left.Left) > 0) {
		err = nil
	}
	runner.EndSpan(span, err)
}
