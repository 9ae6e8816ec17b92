// Package plugin defines CNI plugins that run inside the runtime's process instead of
// as executables.
//
// A plugin is a type with three methods, one for each verb of the CNI specification
// 1.1.0, section 4. A method gets a [Request] and returns a result or an error:
//
//	type mark struct{}
//
//	func (mark) Add(_ context.Context, r *plugin.Request) (*types100.Result, error) {
//		var conf struct{ Mark int }
//		if err := r.Decode(&conf); err != nil {
//			return nil, err
//		}
//		// … do something in r.Container …
//		return r.Chained()
//	}
//
//	func (mark) Del(context.Context, *plugin.Request) error   { return nil }
//	func (mark) Check(context.Context, *plugin.Request) error { return nil }
//
//	rt, err := cni.New(cni.WithPlugin("mark", mark{}))
//
// The runtime negotiates versions, converts results, and turns a panic into an error.
// It cannot kill a plugin: a plugin must return soon after its context ends, and undo
// its work when it fails.
//
// A plugin runs on a thread of the runtime, which may be in any network namespace. It
// must use [Request.Host] and [Request.Container] to reach the host and the
// container. Plugins of one attachment run one at a time.
package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/netns"
)

// Plugin is an in-process plugin. Its methods are called by several goroutines at once,
// for different attachments. It must not rely on state in memory, which is lost in a
// restart.
//
// An error that is or wraps a [*types.Error], or was made by [Errorf], keeps its code;
// any other has the code 999, as in the reference plugins.
type Plugin interface {
	// Add attaches, and returns the result of the previous plugin in the chain with
	// its own additions. A failed Add is followed by a Del.
	Add(ctx context.Context, r *Request) (*types100.Result, error)
	// Del undoes Add. It succeeds if everything is gone already, after a partial Add,
	// and without a namespace or a previous result. It removes as much as it can
	// before it returns an error.
	Del(ctx context.Context, r *Request) error
	// Check returns an error unless everything that Add made is present and correct.
	Check(ctx context.Context, r *Request) error
}

// Collector is a [Plugin] with GC (CNI specification 1.1.0, section 4): it removes
// everything that belongs to none of the valid attachments.
type Collector interface {
	GC(ctx context.Context, r *Request, valid []types.GCAttachment) error
}

// StatusChecker is a [Plugin] with STATUS: it returns an error with the code 50 or 51
// (section 5) if an Add could not succeed now.
type StatusChecker interface {
	Status(ctx context.Context, r *Request) error
}

// Versioner is a [Plugin] that supports only some of this module's versions of the
// specification.
type Versioner interface {
	Versions() []string
}

// Request is one call of a plugin. A plugin must not change it, nor use it
// after it has returned.
type Request struct {
	ContainerID string
	IfName      string
	Args        string   // CNI_ARGS, as "K=V;K=V"
	NetNS       string   // CNI_NETNS; empty in a Del without a namespace
	Path        []string // CNI_PATH: the plugin directories

	// Host is the namespace in which an executable would start. The calling thread
	// need not be in it: open a netlink socket in it, or use its Do. It is nil off
	// Linux.
	Host *netns.Handle
	// Container is the namespace at NetNS; nil if that is empty, or for Del if the
	// namespace is gone. It is nil off Linux, where NetNS has the platform's meaning.
	// Both handles are closed after the call.
	Container *netns.Handle

	// Name and Type are the network's name and the plugin's type, CNIVersion
	// the version of the configuration.
	Name, Type, CNIVersion string
	// Config is the request configuration (section 3): the plugin's own part of the
	// conflist, with name, cniVersion, runtimeConfig and prevResult.
	Config json.RawMessage
	// PrevResult is the result of the previous plugins (Add), or the final result of
	// the attachment's ADD (Del, Check); nil if there is none.
	PrevResult *types100.Result

	// Delegate runs another plugin with the same parameters (section 4, "Delegated
	// plugins"), in process or on disk: usually an IPAM plugin, with the same Config.
	// The result is nil for verbs other than ADD. An error has the other plugin's code
	// and message. Del must delegate the DEL of each delegated ADD; so must a failing
	// Add, unless it leaves that to the following Del. The calling plugin's deadline
	// applies.
	Delegate func(ctx context.Context, verb, typ string, config json.RawMessage) (*types100.Result, error)
}

// Decode decodes the configuration into v. The error has the code 6, "failed to
// decode content".
func (r *Request) Decode(v any) error {
	if err := json.Unmarshal(r.Config, v); err != nil {
		return Errorf(types.ErrDecodingFailure, "configuration of plugin %q: %w", r.Type, err)
	}
	return nil
}

// Chained returns a copy of the previous result, for a plugin that adds to it. Without
// a previous result the error has the code 7, "invalid network config".
func (r *Request) Chained() (*types100.Result, error) {
	if r.PrevResult == nil {
		return nil, Errorf(types.ErrInvalidNetworkConfig,
			"plugin %q must follow another plugin: there is no result before it", r.Type)
	}
	result := &types100.Result{CNIVersion: r.PrevResult.CNIVersion, DNS: *r.PrevResult.DNS.Copy()}
	for _, one := range r.PrevResult.Interfaces {
		result.Interfaces = append(result.Interfaces, one.Copy())
	}
	for _, one := range r.PrevResult.IPs {
		ip := one.Copy() // which has the same bytes for its addresses
		if ip != nil {
			ip.Address, ip.Gateway = cloneNet(ip.Address), slices.Clone(ip.Gateway)
		}
		result.IPs = append(result.IPs, ip)
	}
	for _, one := range r.PrevResult.Routes {
		route := one.Copy()
		if route != nil {
			route.Dst, route.GW = cloneNet(route.Dst), slices.Clone(route.GW)
		}
		result.Routes = append(result.Routes, route)
	}
	return result, nil
}

func cloneNet(n net.IPNet) net.IPNet {
	return net.IPNet{IP: slices.Clone(n.IP), Mask: slices.Clone(n.Mask)}
}

// Errorf returns an error with a code of the specification (section 5). Codes from 100
// are the plugin's own. %w in format works as in [fmt.Errorf].
func Errorf(code uint, format string, args ...any) error {
	return &codedError{code: code, err: fmt.Errorf(format, args...)}
}

// codedError is an error that errors.As also finds as a *types.Error.
type codedError struct {
	code uint
	err  error
}

func (e *codedError) Error() string { return e.err.Error() }
func (e *codedError) Unwrap() error { return e.err }

func (e *codedError) As(target any) bool {
	if t, ok := target.(**types.Error); ok {
		*t = &types.Error{Code: e.code, Msg: e.err.Error()}
		return true
	}
	return false
}
