package runner

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/run/invoke"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// InProcess runs a plugin as if a program had registered it, without a Runner: test
// harnesses have their own.
func InProcess(ctx context.Context, p plugin.Plugin, call chain.Call, host *netns.Handle, delegate Delegate) (stdout []byte, err error) {
	return newExecution(&Runner{Host: host}, call, Provider{Kind: Registered, plugin: p}).inProcess(ctx, delegate)
}

// inProcess runs the plugin in this process the way an executable is run: from the CNI_*
// environment and a request configuration to a printed result. An error is or wraps the
// [*types.Error] that the executable would print; see [Said].
//
// A plugin has a goroutine of its own, for which inProcess waits, so that nobody else is
// harmed by one that panics, ends its goroutine, or leaves it locked to a thread in another
// namespace. The first two become errors with the code 999, a panic with its stack in the
// details. The thread of the third ends with the goroutine. Plugins that are built in are
// known to do neither of the latter, and run on the caller's goroutine, which saves two
// changes of threads.
func (e *execution) inProcess(ctx context.Context, delegate Delegate) (stdout []byte, err error) {
	run := func() {
		err = &types.Error{Code: types.ErrInternal, Msg: fmt.Sprintf("plugin %q ended its goroutine", e.call.Plugin)}
		defer func() {
			if v := recover(); v != nil {
				err = &types.Error{
					Code: types.ErrInternal, Msg: fmt.Sprintf("plugin %q panicked: %v", e.call.Plugin, v), Details: string(debug.Stack()),
				}
			}
		}()
		err = e.with(delegate, func(r *plugin.Request) (err error) {
			stdout, err = dispatch(ctx, e.p.plugin, e.call.Verb, r)
			return err
		})
	}
	if e.p.Kind == BuiltIn {
		run()
	} else {
		var running sync.WaitGroup
		running.Go(run)
		running.Wait()
	}
	if err == nil {
		return stdout, nil
	}
	if !errors.As(err, new(*types.Error)) {
		err = plugin.Errorf(types.ErrInternal, "%w", err)
	}
	return nil, err
}

// dispatch calls the method of a verb. It returns the printed result of an ADD.
func dispatch(ctx context.Context, p plugin.Plugin, verb string, r *plugin.Request) (stdout []byte, err error) {
	switch verb {
	case "ADD":
		result, err := p.Add(ctx, r)
		if err != nil {
			return nil, err
		}
		if result == nil {
			return nil, plugin.Errorf(types.ErrInternal, "plugin %q returned no result", r.Type)
		}
		converted, err := result.GetAsVersion(r.CNIVersion)
		if err != nil {
			return nil, plugin.Errorf(types.ErrIncompatibleCNIVersion, "result as version %s: %w", r.CNIVersion, err)
		}
		return json.Marshal(converted)
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
		g, ok := p.(plugin.Collector)
		if !ok {
			return nil, nil
		}
		var conf struct {
			Valid []types.GCAttachment `json:"cni.dev/valid-attachments"`
		}
		if err := json.Unmarshal(r.Config, &conf); err != nil {
			return nil, plugin.Errorf(types.ErrDecodingFailure, "cni.dev/valid-attachments: %w", err)
		}
		return nil, g.GC(ctx, r, conf.Valid)
	}
	return nil, plugin.Errorf(types.ErrInvalidEnvironmentVariables, "unknown CNI_COMMAND %q", verb)
}

// with calls do with the request that the plugin gets for the call. The request is valid
// until do returns. A registered plugin gets a handle and a result of its own, because it
// may do anything with them.
func (e *execution) with(delegate Delegate, do func(*plugin.Request) error) (err error) {
	parsed, own := e.call.Parsed, e.p.Kind == Registered
	if parsed == nil || own {
		if parsed, err = chain.Parse(e.call.Stdin); err != nil {
			return plugin.Errorf(types.ErrDecodingFailure, "configuration of plugin %q: %w", e.call.Plugin, err)
		}
	}
	value := func(name string) string { return invoke.Variable(e.call.Env, "CNI_"+name) }
	r := &plugin.Request{
		ContainerID: value("CONTAINERID"), IfName: value("IFNAME"), Args: value("ARGS"), NetNS: value("NETNS"),
		Path: filepath.SplitList(value("PATH")), Host: e.Runner.Host, Delegate: delegate,
		Name: parsed.Name, Type: e.call.Plugin, Config: e.call.Stdin,
		CNIVersion: cmp.Or(parsed.CNIVersion, "0.1.0"), // the version that did not ask for it
	}
	if err := complete(r, e.call.Verb); err != nil {
		return err
	}
	if err := negotiate(e.p.plugin, r.CNIVersion); err != nil {
		return err
	}
	if r.PrevResult, err = parsed.Prev(); err != nil {
		return plugin.Errorf(types.ErrDecodingFailure, "prevResult: %w", err)
	}
	switch {
	case r.NetNS == "":
	case e.Runner.Container != nil && !own:
		r.Container = e.Runner.Container
	default:
		if r.Container, err = open(r.NetNS, e.call.Verb); err != nil {
			return err
		}
		if r.Container != nil {
			defer func() { err = joined.Errors(err, r.Container.Close()) }()
		}
	}
	return do(r)
}

// complete refuses a call without the parameters that its verb requires
// (CNI specification 1.1.0, section 2).
func complete(r *plugin.Request, verb string) error {
	var missing []string
	for _, one := range []struct{ name, value, verbs string }{
		{"CNI_CONTAINERID", r.ContainerID, "ADD DEL CHECK"}, {"CNI_NETNS", r.NetNS, "ADD CHECK"}, {"CNI_IFNAME", r.IfName, "ADD DEL CHECK"},
	} {
		if one.value == "" && slices.Contains(strings.Fields(one.verbs), verb) {
			missing = append(missing, one.name)
		}
	}
	if len(missing) > 0 {
		return plugin.Errorf(types.ErrInvalidEnvironmentVariables,
			"%s of plugin %q without %s", verb, r.Type, strings.Join(missing, ", "))
	}
	if r.Name == "" {
		return plugin.Errorf(types.ErrInvalidNetworkConfig, "configuration of plugin %q has no network name", r.Type)
	}
	return nil
}

// open opens the container's namespace, which may be gone for a DEL. Off Linux
// it opens nothing: there the path is opaque.
func open(path, verb string) (*netns.Handle, error) {
	ns, err := netns.Open(path)
	switch {
	case err == nil:
		return ns, nil
	case errors.Is(err, netns.ErrNotSupported):
		return nil, nil
	case verb == "DEL" && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, netns.ErrNotNetNS)):
		return nil, nil
	default:
		return nil, plugin.Errorf(types.ErrInvalidNetNS, "%w", err)
	}
}

// negotiate refuses a version that the plugin does not support (section 3).
func negotiate(p plugin.Plugin, wanted string) error {
	supported := version.All.SupportedVersions()
	if v, ok := p.(plugin.Versioner); ok {
		supported = v.Versions()
	}
	if slices.Contains(supported, wanted) {
		return nil
	}
	return &types.Error{
		Code: types.ErrIncompatibleCNIVersion, Msg: "incompatible CNI versions",
		Details: fmt.Sprintf("config is %q, plugin supports %q", wanted, supported),
	}
}

// Said returns the error that an executable would print for an error of an in-process plugin.
// Text that the plugin wraps around another error, such as a delegate's, is part of the
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
