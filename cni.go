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

	"github.com/embedcni/cni/internal/runner"
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
	// Check reports whether a container is attached as Setup left it.
	Check(ctx context.Context, id string, path string, opts ...NamespaceOpts) error
	// Load replaces the network configuration.
	Load(opts ...Opt) error
	// Status reports whether containers can be attached.
	Status() error
	// GetConfig returns a copy of the configuration.
	GetConfig() *ConfigResult
}

var _ CNI = (*Runtime)(nil)

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
	// Form and Path are those of WithConfiguration: "conf" for the configuration of a single
	// plugin, of which a list was made, or "conflist". Path is empty for bytes.
	Form string `json:",omitempty"`
	Path string `json:",omitempty"`
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
	// Kind is "executable", "built in", or "registered" by WithPlugin. It is empty if there
	// is no such plugin, or if its file is insecure.
	Kind string `json:",omitempty"`
	Path string `json:",omitempty"` // of an executable
	// IPAMKind is the kind of the IPAM plugin that an in-process plugin would delegate
	// to. An executable searches the plugin directories itself.
	IPAMKind string `json:",omitempty"`
}

// Runtime attaches containers to its loaded networks. Use New to create one. It is
// safe for concurrent use.
type Runtime struct {
	current atomic.Pointer[snapshot]
	failed  atomic.Pointer[error] // of the last Load; nil if it succeeded
	// outdated is why the networks in use are not those of the files, since a Reload.
	outdated atomic.Pointer[error]
	loading  sync.Mutex // one Load at a time; never held while a plugin runs
	wanted   *config    // by the last New or Load; guarded by loading
}

// New returns a Runtime with the settings and networks of the options. It searches
// for no plugin, and accepts directories that do not exist. Contradicting options
// are ErrInvalidArgument.
func New(opts ...Opt) (*Runtime, error) {
	want, err := newWanted(defaultSettings(), opts)
	if err != nil {
		return nil, err
	}
	s, err := newSnapshot(want, nil)
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
	want, err := newWanted(previous.settings, opts)
	var s *snapshot
	if err == nil {
		r.wanted = want
		s, err = newSnapshot(want, previous)
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

// store puts a configuration in force.
func (r *Runtime) store(s *snapshot) {
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
	if c.choice, err = chosen(c.choice, c.choosing); err != nil {
		return nil, err
	}
	if err := c.checkPluginRoot(); err != nil {
		return nil, err
	}
	return c, nil
}

// ready returns ErrCNINotInitialized, with the reason if that is known, if too few
// networks are loaded.
func (r *Runtime) ready(s *snapshot) error {
	if len(s.networks) >= s.minNetworks && s.last == nil {
		return nil
	}
	if failed := r.failed.Load(); failed != nil {
		return fmt.Errorf("%w: %w", ErrCNINotInitialized, *failed)
	}
	return ErrCNINotInitialized
}

// Networks returns the loaded networks in order.
func (r *Runtime) Networks() []*Network { return slices.Clone(r.current.Load().networks) }

// GetConfig returns a copy of the configuration.
func (r *Runtime) GetConfig() *ConfigResult {
	s := r.current.Load()
	c := &ConfigResult{
		PluginDirs:       slices.Clone(s.pluginDirs),
		PluginConfDir:    s.pluginConfDir,
		PluginMaxConfNum: s.pluginMaxConfNum,
		Prefix:           s.prefix,
		HostNetNS:        s.hostNetNS,
		StateDir:         filepath.Dir(s.own),
		RecordDir:        s.Records.Dir(),
		Owner:            s.owner,
		Skipped:          slices.Clone(s.skipped),
	}
	for _, n := range s.networks {
		list := &NetworkConfList{
			Name:       n.config.Name,
			CNIVersion: n.config.CNIVersion,
			Source:     string(n.config.Bytes),
		}
		for _, p := range n.config.Plugins {
			list.Plugins = append(list.Plugins, networkConf(s.runnerOf(n), p))
		}
		conf := &ConfNetwork{Config: list, IFName: n.ifName, Form: n.form}
		if n.form != "" {
			conf.Path = n.path
		}
		c.Networks = append(c.Networks, conf)
	}
	return c
}

// networkConf copies a plugin's configuration and finds the plugin.
func networkConf(r *runner.Runtime, p *libcni.PluginConfig) *NetworkConf {
	network := *p.Network
	conf := &NetworkConf{Network: &network, Source: string(p.Bytes)}
	found, err := r.Find(network.Type)
	if err != nil {
		return conf // a call returns the reason
	}
	conf.Kind, conf.Path = string(found.Kind), found.Path
	if ipam := network.IPAM.Type; ipam != "" && found.Kind != runner.Executable {
		if found, err := r.Find(ipam); err == nil {
			conf.IPAMKind = string(found.Kind)
		}
	}
	return conf
}

// GetCNIResultFromResults converts the plugins' results, one for each loaded network,
// in order.
//
// Deprecated: Setup returns the same.
func (r *Runtime) GetCNIResultFromResults(results []*types100.Result) (*Result, error) {
	s := r.current.Load()
	sources := make([]source, len(results))
	for i, result := range results {
		sources[i] = source{ifName: ifName(s.prefix, 0), result: result}
		if len(results) == len(s.networks) {
			sources[i].network, sources[i].ifName = s.networks[i].config.Name, s.networks[i].ifName
		}
	}
	return newResult(sources, ifName(s.prefix, 0))
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
