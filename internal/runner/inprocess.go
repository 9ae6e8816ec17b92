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
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/invoke"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// InProcess is the call of a plugin that runs in this process the way an executable is
// run: from the CNI_* environment and a request configuration to a printed result.
type InProcess struct {
	chain.Call
	Host *netns.Handle // the namespace that an executable would have started in

	// Container is the namespace at CNI_NETNS, if the caller has it open; the
	// caller closes it. Otherwise one is opened for the plugin.
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
func (c InProcess) Run(ctx context.Context, p plugin.Plugin) (stdout []byte, err error) {
	run := func() {
		err = &types.Error{Code: types.ErrInternal, Msg: fmt.Sprintf("plugin %q ended its goroutine", c.Plugin)}
		defer func() {
			if v := recover(); v != nil {
				err = &types.Error{
					Code: types.ErrInternal, Msg: fmt.Sprintf("plugin %q panicked: %v", c.Plugin, v), Details: string(debug.Stack()),
				}
			}
		}()
		stdout, err = c.run(ctx, p)
	}
	if c.Inline {
		run()
	} else {
		var running sync.WaitGroup
		running.Go(run)
		running.Wait()
	}
	if err != nil && !errors.As(err, new(*types.Error)) {
		err = plugin.Errorf(types.ErrInternal, "%w", err)
	}
	return stdout, err
}

func (c InProcess) run(ctx context.Context, p plugin.Plugin) (stdout []byte, err error) {
	err = c.with(p, func(r *plugin.Request) error {
		result, err := c.dispatch(ctx, p, r)
		if err != nil || c.Verb != "ADD" {
			return err
		}
		if result == nil {
			return plugin.Errorf(types.ErrInternal, "plugin %q returned no result", c.Plugin)
		}
		converted, err := result.GetAsVersion(r.CNIVersion)
		if err != nil {
			return plugin.Errorf(types.ErrIncompatibleCNIVersion, "result as version %s: %w", r.CNIVersion, err)
		}
		stdout, err = json.Marshal(converted)
		return err
	})
	if err != nil {
		return nil, err
	}
	return stdout, nil
}

func (c InProcess) dispatch(ctx context.Context, p plugin.Plugin, r *plugin.Request) (*types100.Result, error) {
	switch c.Verb {
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
	return nil, plugin.Errorf(types.ErrInvalidEnvironmentVariables, "unknown CNI_COMMAND %q", c.Verb)
}

// with calls do with the request that a plugin gets for the call. The request is valid
// until do returns.
func (c InProcess) with(p plugin.Plugin, do func(*plugin.Request) error) (err error) {
	parsed := c.Parsed
	if parsed == nil {
		if parsed, err = chain.Parse(c.Stdin); err != nil {
			return plugin.Errorf(types.ErrDecodingFailure, "configuration of plugin %q: %w", c.Plugin, err)
		}
	}
	r := &plugin.Request{
		ContainerID: invoke.Variable(c.Env, "CNI_CONTAINERID"), IfName: invoke.Variable(c.Env, "CNI_IFNAME"),
		Args: invoke.Variable(c.Env, "CNI_ARGS"), NetNS: invoke.Variable(c.Env, "CNI_NETNS"),
		Path: filepath.SplitList(invoke.Variable(c.Env, "CNI_PATH")),
		Host: c.Host, Delegate: c.Delegate,
		Name: parsed.Name, Type: c.Plugin, Config: c.Stdin,
		CNIVersion: cmp.Or(parsed.CNIVersion, "0.1.0"), // the version that did not ask for it
	}
	if err := complete(r, c.Verb); err != nil {
		return err
	}
	if err := negotiate(p, r.CNIVersion); err != nil {
		return err
	}
	if r.PrevResult, err = parsed.Prev(); err != nil {
		return plugin.Errorf(types.ErrDecodingFailure, "prevResult: %w", err)
	}
	switch {
	case r.NetNS == "":
	case c.Container != nil:
		r.Container = c.Container
	default:
		if r.Container, err = open(r.NetNS, c.Verb); err != nil {
			return err
		}
		if r.Container != nil {
			defer func() { err = errors.Join(err, r.Container.Close()) }()
		}
	}
	return do(r)
}

// complete refuses a call without the parameters that its verb requires
// (CNI specification 1.1.0, section 2).
func complete(r *plugin.Request, verb string) error {
	var missing []string
	require := func(name, value string, verbs ...string) {
		if value == "" && slices.Contains(verbs, verb) {
			missing = append(missing, "CNI_"+name)
		}
	}
	require("CONTAINERID", r.ContainerID, "ADD", "DEL", "CHECK")
	require("NETNS", r.NetNS, "ADD", "CHECK")
	require("IFNAME", r.IfName, "ADD", "DEL", "CHECK")
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

// Said returns the error that an executable would print for an error of [InProcess.Run].
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
