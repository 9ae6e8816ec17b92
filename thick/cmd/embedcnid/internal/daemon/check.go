package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/thick/cmd/embedcnid/internal/config"
)

// ShimType is the type of the plugin that asks the daemon.
const ShimType = "embedcni-shim"

// Check returns what is wrong with a valid configuration on this host: with its directories,
// conflists and plugins, and with the file that names the API server. It runs no plugin, asks
// nobody and changes nothing.
func Check(c *config.Config) (findings []error) {
	for _, dir := range []struct {
		key, path string
		isPrivate bool // the daemon does not start while others may write there
	}{
		{"socket", filepath.Dir(c.Socket), true}, {"queueDir", c.QueueDir, true}, {"stateDir", c.StateDir, false}, {"recordDir", c.RecordDir, false},
	} {
		err := writable(dir.path)
		if info, serr := os.Stat(dir.path); err == nil && serr == nil && dir.isPrivate && info.Mode()&0o022 != 0 {
			err = fmt.Errorf("others may write to %s (mode %v): run chmod go-w on it", dir.path, info.Mode())
		}
		if err != nil {
			findings = append(findings, fmt.Errorf("%s: %w", dir.key, err))
		}
	}
	for _, dir := range c.PluginDirs {
		if err := readable(filepath.Join(c.PluginRoot, dir)); err != nil {
			findings = append(findings, fmt.Errorf("pluginDirs: %w", err))
		}
	}
	if c.Kubernetes.Enabled {
		if _, err := clientConfig(c.Kubernetes); err != nil {
			findings = append(findings, fmt.Errorf("kubernetes.kubeconfig: %w", err))
		}
	}
	return append(findings, checkNetworks(c)...)
}

// checkNetworks finds conflists that cannot be used, and plugins that are missing.
func checkNetworks(c *config.Config) (findings []error) {
	if c.ConfDir == "" {
		return nil
	}
	all := *c
	all.Networks = config.All
	r, err := cni.New(settings(&all)...)
	if err == nil {
		err = r.Load(networks(&all)...)
	}
	if err != nil {
		return []error{fmt.Errorf("confDir: %w", err)}
	}
	found := r.GetConfig()
	for _, s := range found.Skipped {
		findings = append(findings, fmt.Errorf("confDir: %s: %s", s.Path, s.Reason))
	}
	for _, n := range found.Networks {
		for _, p := range n.Config.Plugins {
			switch typ := p.Network.Type; {
			case typ == ShimType:
				findings = append(findings, fmt.Errorf("confDir: network %q: plugin %s would ask this daemon itself; its conflist is for the runtime's directory", n.Config.Name, typ))
			case p.Reason != "":
				findings = append(findings, fmt.Errorf("confDir: network %q: plugin %s: %s", n.Config.Name, typ, p.Reason))
			}
		}
	}
	return findings
}

// writable returns an error if a directory cannot be written, or cannot be made.
func writable(dir string) error {
	if dir == "" {
		return nil
	}
	info, err := os.Stat(dir)
	for errors.Is(err, fs.ErrNotExist) && dir != "/" {
		dir = filepath.Dir(dir)
		info, err = os.Stat(dir)
	}
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is no directory", dir)
	}
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return fmt.Errorf("%s cannot be written: %w", dir, err)
	}
	return nil
}

// readable returns an error if a directory is there and cannot be listed. One that is missing
// has no plugins.
func readable(dir string) error {
	if _, err := os.ReadDir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
