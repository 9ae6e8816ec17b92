package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/embedcni/cni"
)

// prepare verifies, outside the sandbox, that the executables' requirements are
// met, and returns the environment entry with their directory. The built-in
// plugins need only the kernel.
func prepare(pluginDir string) ([]string, error) {
	if pluginDir == "" {
		return nil, nil
	}
	// On Debian a user's PATH lacks the directories of system programs, where
	// the reference plugins find their tools.
	dirs := append(filepath.SplitList(os.Getenv("PATH")), "/usr/local/sbin", "/usr/sbin", "/sbin")
	if !inAny(dirs, "nft") {
		return nil, errors.New("nft is not installed, and the executables of -plugins run it: leave -plugins out, " +
			"or run `apt-get install nftables` (Debian, Ubuntu), `dnf install nftables` (Fedora) or `apk add nftables` (Alpine)")
	}
	return []string{"PATH=" + strings.Join(dirs, string(filepath.ListSeparator))}, nil
}

func inAny(dirs []string, program string) bool {
	for _, dir := range dirs {
		if _, err := exec.LookPath(filepath.Join(dir, program)); err == nil {
			return true
		}
	}
	return false
}

// checkPlugins verifies that all plugins of the networks exist, before the
// first container needs them.
func checkPlugins(config *cni.ConfigResult) error {
	missing := map[string]bool{}
	for _, n := range config.Networks {
		for _, p := range n.Config.Plugins {
			if p.Kind == "" {
				missing[p.Network.Type] = true
			}
			// An executable searches for its IPAM plugin among the executables.
			ipam := p.Network.IPAM.Type
			if ipam != "" && p.IPAMKind == "" && !inAny(config.PluginDirs, ipam) {
				missing[ipam] = true
			}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	types := strings.Join(slices.Sorted(maps.Keys(missing)), ", ")
	if len(config.PluginDirs) == 0 {
		return fmt.Errorf("not built in: %s: name a directory that has executables of all plugins with -plugins", types)
	}
	return fmt.Errorf("no plugin %s in %s: leave -plugins out to have those built in, "+
		"or add the missing ones to it", types, strings.Join(config.PluginDirs, ", "))
}

// shippedConfig is the directory of this program's networks in a checkout. They
// are not embedded, so that everybody can read them, change one and run the
// program again.
const shippedConfig = "testdata/quickstart"

// findConfig returns the directory of the networks: dir if it is set, else the
// checkout's. It works anywhere in the checkout.
func findConfig(dir string) (string, error) {
	if dir != "" {
		if _, err := os.ReadDir(dir); err != nil {
			return "", fmt.Errorf("networks of -config: %w", err)
		}
		return dir, nil
	}
	wd, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for at := wd; ; at = filepath.Dir(at) {
		found := filepath.Join(at, shippedConfig)
		switch _, err := os.Stat(found); {
		case err == nil:
			return found, nil
		case !errors.Is(err, fs.ErrNotExist):
			return "", err
		case at == filepath.Dir(at):
			return "", fmt.Errorf("there is no %s in %s or above it: run it in a checkout of the module, "+
				"or name a directory of conflists with -config", shippedConfig, wd)
		}
	}
}
