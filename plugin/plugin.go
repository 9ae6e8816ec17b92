// Package plugin is what a CNI plugin is that runs inside the runtime's process
// rather than as an executable of its own.
//
// A plugin is a type with three methods, each of which is one verb of the CNI
// specification 1.1.0, section 4. It is given a [Request], and returns a result
// or an error:
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
// The runtime negotiates versions, converts results, and turns a panic into an
// error. What it cannot do is to kill: a plugin must return soon after its
// context ends, and undo what it did when it fails.
//
// A plugin runs on a thread of the runtime, which may be in any network
// namespace: it opens what it needs in [Request.Host] and [Request.Container].
// No plugin is running for the same attachment at the same time.
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

// Plugin is an in-process plugin. Its methods are called by many goroutines at
// once, for different attachments; it keeps nothing about an attachment that it
// cannot do without after a restart.
//
// An error that is, or wraps, a [*types.Error] keeps its code, as does one by
// [Errorf]; any other has the code 999, which is what the reference plugins
// give to errors of no kind.
type Plugin interface {
	// Add attaches, and returns what there is now: the result of the plugin
	// before it in the chain, with what it added. A failed Add is followed by a
	// Del.
	Add(ctx context.Context, r *Request) (*types100.Result, error)
	// Del undoes Add. It succeeds for what is already gone, for what was added
	// in part, and without a namespace or a previous result; it removes as much
	// as it can before it returns an error.
	Del(ctx context.Context, r *Request) error
	// Check returns an error unless what Add made is there and as it should be.
	Check(ctx context.Context, r *Request) error
}

// Collector is a [Plugin] that has GC (CNI specification 1.1.0, section 4):
// it removes what belongs to none of the attachments that are valid.
type Collector interface {
	GC(ctx context.Context, r *Request, valid []types.GCAttachment) error
}

// Stater is a [Plugin] that has STATUS: it returns an error when an Add could
// not succeed now, with the code 50 or 51 (section 5).
type Stater interface {
	Status(ctx context.Context, r *Request) error
}

// Versioner is a [Plugin] that does not support every version of the
// specification that this module does.
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

	// Host is the namespace in which an executable would have been started.
	// The calling thread need not be in it: open a netlink socket in it, or use
	// its Do. It is nil off Linux.
	Host *netns.Handle
	// Container is the namespace at NetNS; nil where that is empty, or for Del
	// if there is none any more. It is nil off Linux, where NetNS means what the
	// platform wants it to mean. Both are closed when the call is over.
	Container *netns.Handle

	// Name and Type are the network's name and the plugin's type, CNIVersion
	// the version of the configuration.
	Name, Type, CNIVersion string
	// Config is the request configuration (section 3): the plugin's own part of
	// the conflist, with name, cniVersion, runtimeConfig and prevResult.
	Config json.RawMessage
	// PrevResult is the result of the plugins before it (Add), or the last one
	// of the attachment's Add (Del, Check); nil if there is none.
	PrevResult *types100.Result

	// Delegate runs another plugin, in process or on disk as the runtime finds
	// it, with the same parameters (section 4, "Delegated plugins"): most often
	// an IPAM plugin, with the same Config. The result is nil for verbs other
	// than ADD. An error has the code that the other plugin gave, and its words.
	// Del must ask for the DEL of what Add had ADDed, and so must an Add that
	// fails, unless it leaves that to the Del that follows. All of it is within
	// the time that the plugin itself has.
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

// Chained returns a copy of the previous result, which a plugin that is not the
// first of its chain adds to. Without one, the error has the code 7, "invalid
// network config".
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

// Errorf is an error with one of the specification's codes (section 5). Codes
// from 100 are the plugin's own. Where format has %w, the cause is kept for
// errors.Is and errors.As.
func Errorf(code uint, format string, args ...any) error {
	return &codedError{code: code, err: fmt.Errorf(format, args...)}
}

// codedError is an error that is a *types.Error as well.
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
