// Package inprocess runs an in-process plugin the way an executable is run:
// from the CNI_* environment and a request configuration to a printed result.
package inprocess

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// Call is one call of a plugin as libcni makes it.
type Call struct {
	Verb  string        // CNI_COMMAND: ADD, DEL, CHECK, STATUS, GC
	Type  string        // the plugin's type
	Env   []string      // the CNI_* variables
	Stdin []byte        // the request configuration
	Host  *netns.Handle // the namespace that an executable would have started in

	// Container is the namespace at CNI_NETNS, if the caller has it open; the
	// caller closes it. Otherwise Run opens one for the plugin, and closes it
	// afterwards.
	Container *netns.Handle

	// Inline runs the plugin on the caller's goroutine, which saves two changes
	// of threads. It is for plugins that are known neither to end their goroutine
	// nor to leave it locked to a thread. A panic is still harmless.
	Inline bool

	// Delegate becomes [plugin.Request.Delegate].
	Delegate func(ctx context.Context, verb, typ string, config json.RawMessage) (*types100.Result, error)
}

// Run runs the plugin and returns the stdout of an equivalent executable. An
// error is or wraps the [*types.Error] that the executable would print; see
// [Said].
//
// Unless Inline, the plugin has a goroutine of its own, for which Run waits. So
// nobody else is harmed by a plugin that panics, ends its goroutine, or leaves
// it locked to a thread in another namespace. The first two become errors with
// the code 999, a panic with its stack in the details. The thread of the third
// ends with the goroutine.
func Run(ctx context.Context, p plugin.Plugin, c Call) (stdout []byte, err error) {
	if c.Inline {
		stdout, err = guarded(ctx, p, c)
		return stdout, coded(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = &types.Error{Code: types.ErrInternal, Msg: fmt.Sprintf("plugin %q ended its goroutine", c.Type)}
		stdout, err = guarded(ctx, p, c)
	}()
	<-done
	return stdout, coded(err)
}

// guarded is run, but turns a panic into an error.
func guarded(ctx context.Context, p plugin.Plugin, c Call) (stdout []byte, err error) {
	defer func() {
		if v := recover(); v != nil {
			stdout, err = nil, &types.Error{
				Code: types.ErrInternal, Msg: fmt.Sprintf("plugin %q panicked: %v", c.Type, v), Details: string(debug.Stack()),
			}
		}
	}()
	return run(ctx, p, c)
}

func run(ctx context.Context, p plugin.Plugin, c Call) (stdout []byte, err error) {
	r, err := Request(p, c)
	if err != nil {
		return nil, err
	}
	if r.Container != nil && r.Container != c.Container {
		defer func() { err = errors.Join(err, r.Container.Close()) }()
	}
	result, err := dispatch(ctx, p, c.Verb, r)
	if err != nil || c.Verb != "ADD" {
		return nil, err
	}
	if result == nil {
		return nil, plugin.Errorf(types.ErrInternal, "plugin %q returned no result", c.Type)
	}
	converted, err := result.GetAsVersion(r.CNIVersion)
	if err != nil {
		return nil, plugin.Errorf(types.ErrIncompatibleCNIVersion, "result as version %s: %w", r.CNIVersion, err)
	}
	return json.Marshal(converted)
}

func dispatch(ctx context.Context, p plugin.Plugin, verb string, r *plugin.Request) (*types100.Result, error) {
	switch verb {
	case "ADD":
		return p.Add(ctx, r)
	case "DEL":
		return nil, p.Del(ctx, r)
	case "CHECK":
		return nil, p.Check(ctx, r)
	case "STATUS":
		if s, ok := p.(plugin.StatusChecker); ok {
			return nil, s.Status(ctx, r)
		}
		return nil, nil
	case "GC":
		if g, ok := p.(plugin.Collector); ok {
			valid, err := validAttachments(r.Config)
			if err != nil {
				return nil, err
			}
			return nil, g.GC(ctx, r, valid)
		}
		return nil, nil
	default:
		return nil, plugin.Errorf(types.ErrInvalidEnvironmentVariables, "unknown CNI_COMMAND %q", verb)
	}
}

// coded ensures that an error is a *types.Error too.
func coded(err error) error {
	if e := (*types.Error)(nil); err == nil || errors.As(err, &e) {
		return err
	}
	return plugin.Errorf(types.ErrInternal, "%w", err)
}

// Said returns the error that an executable would print for an error of [Run]. Text
// that the plugin wraps around another error, such as a delegate's, is part of the
// message; an executable loses it.
func Said(err error) types.Error {
	var e *types.Error
	if !errors.As(err, &e) {
		return types.Error{Code: types.ErrInternal, Msg: err.Error()}
	}
	said, text := *e, err.Error()
	if around, ok := strings.CutSuffix(text, e.Error()); ok {
		said.Msg = around + e.Msg
		return said
	}
	said.Msg = text
	if strings.Contains(text, e.Details) {
		said.Details = ""
	}
	return said
}
