// Package inprocess runs an in-process plugin the way an executable is run:
// from the CNI_* environment and a request configuration to a printed result.
package inprocess

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

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

	// Delegate is what the plugin gets as [plugin.Request.Delegate].
	Delegate func(ctx context.Context, verb, typ string, config json.RawMessage) (*types100.Result, error)
}

// Run runs the plugin, and returns what an executable would have printed on
// stdout. An error is a [*types.Error] as an executable would have printed, or
// wraps one; a panic of the plugin is one too, with the stack in its details.
func Run(ctx context.Context, p plugin.Plugin, c Call) (stdout []byte, err error) {
	r, err := request(p, c)
	if err != nil {
		return nil, err
	}
	defer func() {
		if r.Container != nil {
			err = errors.Join(err, r.Container.Close())
		}
	}()
	result, err := call(ctx, p, c, r)
	if err != nil {
		return nil, coded(err)
	}
	if result == nil {
		return nil, nil
	}
	converted, err := result.GetAsVersion(r.CNIVersion)
	if err != nil {
		return nil, plugin.Errorf(types.ErrIncompatibleCNIVersion, "result as version %s: %w", r.CNIVersion, err)
	}
	return json.Marshal(converted)
}

// call dispatches the verb. A plugin's panic must not end the runtime.
func call(ctx context.Context, p plugin.Plugin, c Call, r *plugin.Request) (result *types100.Result, err error) {
	defer func() {
		if v := recover(); v != nil {
			result, err = nil, &types.Error{
				Code: types.ErrInternal, Msg: fmt.Sprintf("plugin %q panicked: %v", c.Type, v), Details: string(debug.Stack()),
			}
		}
	}()
	switch c.Verb {
	case "ADD":
		result, err = p.Add(ctx, r)
		if err == nil && result == nil {
			err = plugin.Errorf(types.ErrInternal, "plugin %q returned no result", c.Type)
		}
		return result, err
	case "DEL":
		return nil, p.Del(ctx, r)
	case "CHECK":
		return nil, p.Check(ctx, r)
	case "STATUS":
		if s, ok := p.(plugin.Stater); ok {
			return nil, s.Status(ctx, r)
		}
		return nil, nil
	case "GC":
		g, ok := p.(plugin.Collector)
		if !ok {
			return nil, nil
		}
		valid, err := validAttachments(r.Config)
		if err != nil {
			return nil, err
		}
		return nil, g.GC(ctx, r, valid)
	default:
		return nil, plugin.Errorf(types.ErrInvalidEnvironmentVariables, "unknown CNI_COMMAND %q", c.Verb)
	}
}

// request reads the environment and the configuration.
func request(p plugin.Plugin, c Call) (*plugin.Request, error) {
	var conf struct {
		types.PluginConf
	}
	if err := json.Unmarshal(c.Stdin, &conf); err != nil {
		return nil, plugin.Errorf(types.ErrDecodingFailure, "configuration of plugin %q: %w", c.Type, err)
	}
	r := &plugin.Request{
		ContainerID: lookup(c.Env, "CONTAINERID"), IfName: lookup(c.Env, "IFNAME"),
		Args: lookup(c.Env, "ARGS"), NetNS: lookup(c.Env, "NETNS"),
		Path: filepath.SplitList(lookup(c.Env, "PATH")),
		Host: c.Host, Delegate: c.Delegate,
		Name: conf.Name, Type: c.Type, CNIVersion: conf.CNIVersion, Config: c.Stdin,
	}
	if r.CNIVersion == "" {
		r.CNIVersion = "0.1.0" // CNI specification 0.1.0, where it was optional
	}
	if err := negotiate(p, r.CNIVersion); err != nil {
		return nil, err
	}
	if err := version.ParsePrevResult(&conf.PluginConf); err != nil {
		return nil, plugin.Errorf(types.ErrDecodingFailure, "prevResult: %w", err)
	}
	if conf.PrevResult != nil {
		prev, err := types100.NewResultFromResult(conf.PrevResult)
		if err != nil {
			return nil, plugin.Errorf(types.ErrDecodingFailure, "prevResult: %w", err)
		}
		r.PrevResult = prev
	}
	return r, open(r, c.Verb)
}

// open opens the container's namespace, which may be gone for a DEL.
func open(r *plugin.Request, verb string) error {
	if r.NetNS == "" {
		if verb == "ADD" || verb == "CHECK" {
			return plugin.Errorf(types.ErrInvalidEnvironmentVariables, "required env variables [CNI_NETNS] missing")
		}
		return nil
	}
	ns, err := netns.Open(r.NetNS)
	if verb == "DEL" && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, netns.ErrNotNetNS)) {
		return nil
	}
	if err != nil {
		return plugin.Errorf(types.ErrInvalidNetNS, "open netns: %w", err)
	}
	r.Container = ns
	return nil
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

// validAttachments reads what GC must keep, which libcni adds to the
// configuration under two keys.
func validAttachments(config []byte) ([]types.GCAttachment, error) {
	var conf struct {
		Valid []types.GCAttachment `json:"cni.dev/valid-attachments"`
	}
	if err := json.Unmarshal(config, &conf); err != nil {
		return nil, plugin.Errorf(types.ErrDecodingFailure, "cni.dev/valid-attachments: %w", err)
	}
	return conf.Valid, nil
}

// coded makes sure that an error is a *types.Error too.
func coded(err error) error {
	if e := (*types.Error)(nil); errors.As(err, &e) {
		return err
	}
	return plugin.Errorf(types.ErrInternal, "%w", err)
}

func lookup(env []string, name string) string {
	for _, kv := range slices.Backward(env) {
		if value, ok := strings.CutPrefix(kv, "CNI_"+name+"="); ok {
			return value
		}
	}
	return ""
}
