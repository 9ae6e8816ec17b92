package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/thick/internal/wire"
)

// call is a checked request.
type call struct {
	Request
	verb          string
	readinessFile string // of its configuration
}

// check returns the call that a client's request asks for. It asks nobody but the request
// itself.
func (s *Server) check(r *wire.Request) (*call, error) {
	args, invalid := wire.Rules{IfName: wire.DefaultIfName, Kubernetes: s.options.Kubernetes}.Parse(r.Env)
	if invalid != nil {
		return nil, invalid
	}
	c := &call{verb: args.Command}
	if c.verb == wire.Version {
		return c, nil
	}
	conf, invalid := wire.ParseConf(c.verb, r.Config)
	if invalid != nil {
		return nil, invalid
	}
	c.readinessFile = conf.ReadinessFile
	c.Request = Request{
		ContainerID: args.ContainerID, NetNS: args.NetNS, IfName: args.IfName,
		Args: args.Args, Pod: Pod(args.Pod), PluginDirs: within(s.pluginDirs, args.Path),
		Config: json.RawMessage(r.Config), Network: conf.Name, CNIVersion: conf.CNIVersion, Valid: conf.Valid,
	}
	if c.verb == wire.Add {
		c.Began = s.now()
	}
	if c.readinessFile != "" && !filepath.IsAbs(c.readinessFile) {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, "readinessIndicatorFile is not an absolute path", c.readinessFile)
	}
	return c, nil
}

// asksItself is the answer to a plugin of this daemon that asks the daemon, and would wait for
// itself: the shim is the plugin of a network. There is nothing that a DEL could detach.
func (c *call) asksItself() error {
	if c.verb == wire.Del {
		return nil
	}
	var plugin struct{ Type string }
	_ = json.Unmarshal(c.Config, &plugin) // for the text alone
	return types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("network %q asks the daemon that runs its plugins", c.Network),
		fmt.Sprintf("the plugin %q is the daemon's own shim; networks that the daemon attaches need other plugins", plugin.Type))
}

// within returns the paths that are one of the directories or below one. It goes by the
// names: what links in these directories lead to is their owner's decision.
func within(dirs, paths []string) []string {
	var found []string
	seen := map[string]bool{} // a client may send very many
	for _, path := range paths {
		path = filepath.Clean(path)
		inside := func(dir string) bool {
			return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
		}
		if !seen[path] && slices.ContainsFunc(dirs, inside) {
			seen[path] = true
			found = append(found, path)
		}
	}
	return found
}

// findUID completes the pod of a call in Kubernetes mode. DEL goes on without: the pod may
// be gone, and its interface must go too.
func (s *Server) findUID(ctx context.Context, c *call) error {
	if !s.options.Kubernetes || c.Pod.UID != "" || (c.verb != wire.Add && c.verb != wire.Check) {
		return nil
	}
	if s.options.PodUID == nil {
		return types.NewError(types.ErrInvalidEnvironmentVariables, "required env variables [CNI_ARGS] missing", "K8S_POD_UID")
	}
	uid, err := s.options.PodUID(ctx, c.Pod)
	if said := (*types.Error)(nil); err != nil && !errors.As(err, &said) {
		return tryLater("find the UID of pod %s/%s: %v", c.Pod.Namespace, c.Pod.Name, err)
	} else if err != nil {
		return err
	}
	if uid == "" {
		return tryLater("pod %s/%s has no UID yet", c.Pod.Namespace, c.Pod.Name)
	}
	c.Pod.UID = uid
	return nil
}
