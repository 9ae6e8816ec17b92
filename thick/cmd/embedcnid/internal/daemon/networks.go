package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/netconf"
	"github.com/embedcni/cni/thick/cmd/embedcnid/internal/config"
	"github.com/embedcni/cni/thick/multinet"
	"github.com/embedcni/cni/thick/server"
)

// settings are the options of a Runtime without networks.
func settings(c *config.Config) []cni.Opt {
	opts := append(liveSettings(c), cni.WithOwner(c.Owner), cni.WithStateDir(c.StateDir), cni.WithPluginEnv(c.PluginEnv...))
	if c.RecordDir != "" {
		opts = append(opts, cni.WithRecordDir(c.RecordDir))
	}
	if c.HostNetNS != "" {
		opts = append(opts, cni.WithHostNetNS(c.HostNetNS))
	}
	if c.StrictPorts {
		opts = append(opts, cni.WithStrictPorts())
	}
	if len(c.InsecureFiles) > 0 {
		opts = append(opts, cni.WithInsecureFiles(c.InsecureFiles...))
	}
	return opts
}

// liveSettings are those that a Load can change.
func liveSettings(c *config.Config) []cni.Opt {
	opts := []cni.Opt{
		cni.WithPluginConfDir(c.ConfDir), cni.WithPluginDir(c.PluginDirs), cni.WithTimeouts(c.Timeouts), cni.WithRetry(c.Retry),
		cni.WithPluginRoot("/"), cni.WithBuiltinFallback(),
	}
	if c.PluginRoot != "" {
		opts = append(opts, cni.WithPluginRoot(c.PluginRoot))
	}
	switch {
	case slices.Contains(c.BuiltinPlugins, config.AllTypes):
		opts = append(opts, cni.WithBuiltinPlugins())
	case len(c.BuiltinPlugins) > 0:
		opts = append(opts, cni.WithBuiltinPlugins(c.BuiltinPlugins...))
	}
	return opts
}

// networks are the options that load the networks of every container.
func networks(c *config.Config) []cni.Opt {
	switch {
	case c.ConfDir == "":
		return nil
	case c.Networks == config.All:
		return []cni.Opt{cni.WithAllConf}
	default:
		return []cni.Opt{cni.WithDefaultConf}
	}
}

// Verify returns an error if a configuration contradicts itself in a way that only the
// Runtime knows, such as a type that is not built in.
func Verify(c *config.Config) error {
	_, err := cni.New(settings(c)...)
	return err
}

// loadNetworks loads the networks, with the settings that can change. While the files cannot
// be loaded, those before stay, and the Watch loads them later.
func (d *daemon) loadNetworks(c *config.Config) {
	err := d.runtime.Load(append(liveSettings(c), networks(c)...)...)
	if err != nil {
		d.log.Warn("networks are not loaded", "confDir", c.ConfDir, "error", err)
	}
	d.noteNetworks(err)
}

// watchNetworks follows the files of the networks.
func (d *daemon) watchNetworks(ctx context.Context) {
	err := netconf.Watch(ctx, d.runtime, netconf.WatchOptions{Logger: d.log, Report: func(e netconf.WatchEvent) {
		if e.Kind != netconf.Failed {
			d.noteNetworks(e.Err)
		}
	}})
	if err != nil {
		d.log.Error("changes of the networks are not noticed", "error", err)
		d.conditions.set("networks", doubtful, err.Error())
	}
}

// noteNetworks notes what has become of the loaded networks.
func (d *daemon) noteNetworks(err error) {
	loaded := d.runtime.GetConfig().Networks
	switch {
	case d.config.Load().ConfDir == "":
		d.conditions.set("networks", met, "")
	case len(loaded) == 0 && err == nil:
		d.conditions.set("networks", unmet, "none is loaded")
	case len(loaded) == 0:
		d.conditions.set("networks", unmet, err.Error())
	case err != nil:
		d.conditions.set("networks", doubtful, "earlier ones are in use: "+err.Error())
	default:
		d.conditions.set("networks", met, "")
	}
}

// inArguments returns the networks that a container without Kubernetes gets beside the loaded
// ones: NETWORKS of CNI_ARGS, in the syntax of a pod's annotation.
func inArguments(_ context.Context, r *server.Request) (string, error) {
	return r.Args["NETWORKS"], nil
}

// lookup finds a network of inArguments by its name.
func (d *daemon) lookup(_ context.Context, r *server.Request, s multinet.Selection) (found multinet.Definition, err error) {
	if s.Namespace != r.Pod.Namespace {
		return found, errors.New("it is in another namespace than the container")
	}
	found.Config, err = d.networkInFile(s.Name)
	return found, err
}

// networkInFile returns the configuration of a network of the directory, loaded or not.
func (d *daemon) networkInFile(name string) ([]byte, error) {
	c := d.config.Load()
	if c.ConfDir == "" {
		return nil, errors.New("this daemon has no directory of networks (confDir)")
	}
	all := *c
	all.Networks = config.All
	r, err := cni.New(append(settings(&all), networks(&all)...)...)
	if err != nil {
		return nil, err
	}
	found := r.GetConfig()
	for _, n := range found.Networks {
		if n.Config.Name == name {
			return []byte(n.Config.Source), nil
		}
	}
	err = fmt.Errorf("no file in %s has the network %q", c.ConfDir, name)
	for _, s := range found.Skipped {
		err = fmt.Errorf("%w; %s cannot be used: %s", err, s.Path, s.Reason)
	}
	return nil, err
}
