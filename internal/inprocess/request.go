package inprocess

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/invoke"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// Request returns the request that a plugin gets for a call. If its Container is
// another handle than the call's, the caller closes it.
func Request(p plugin.Plugin, c Call) (*plugin.Request, error) {
	var conf struct {
		Name       string          `json:"name"`
		CNIVersion string          `json:"cniVersion"`
		PrevResult json.RawMessage `json:"prevResult"`
	}
	if err := json.Unmarshal(c.Stdin, &conf); err != nil {
		return nil, plugin.Errorf(types.ErrDecodingFailure, "configuration of plugin %q: %w", c.Type, err)
	}
	r := &plugin.Request{
		ContainerID: invoke.Variable(c.Env, "CNI_CONTAINERID"), IfName: invoke.Variable(c.Env, "CNI_IFNAME"),
		Args: invoke.Variable(c.Env, "CNI_ARGS"), NetNS: invoke.Variable(c.Env, "CNI_NETNS"),
		Path: filepath.SplitList(invoke.Variable(c.Env, "CNI_PATH")),
		Host: c.Host, Delegate: c.Delegate,
		Name: conf.Name, Type: c.Type, Config: c.Stdin,
		CNIVersion: cmp.Or(conf.CNIVersion, "0.1.0"), // the version that did not ask for it
	}
	if err := complete(r, c.Verb); err != nil {
		return nil, err
	}
	if err := negotiate(p, r.CNIVersion); err != nil {
		return nil, err
	}
	var err error
	if r.PrevResult, err = chain.DecodeGiven(r.CNIVersion, conf.PrevResult); err != nil {
		return nil, plugin.Errorf(types.ErrDecodingFailure, "prevResult: %w", err)
	}
	if r.NetNS != "" && c.Container != nil {
		r.Container = c.Container
		return r, nil
	}
	r.Container, err = open(r.NetNS, c.Verb)
	return r, err
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
	if path == "" {
		return nil, nil
	}
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

// validAttachments reads the attachments that GC must keep from the configuration.
func validAttachments(config []byte) ([]types.GCAttachment, error) {
	var conf struct {
		Valid []types.GCAttachment `json:"cni.dev/valid-attachments"`
	}
	if err := json.Unmarshal(config, &conf); err != nil {
		return nil, plugin.Errorf(types.ErrDecodingFailure, "cni.dev/valid-attachments: %w", err)
	}
	return conf.Valid, nil
}
