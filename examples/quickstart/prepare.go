package main

import (
	"context"
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
	"github.com/embedcni/cni/internal/refplugins"
)

// prepare makes sure, outside the sandbox, that the plugins and iptables are
// there, and returns the environment entries that say where.
func prepare(ctx context.Context) ([]string, error) {
	path, err := searchPath()
	if err != nil {
		return nil, err
	}
	plugins := os.Getenv("CNI_PATH")
	if plugins == "" {
		// Built once, into the user's cache, from the version in go.mod.
		if plugins, err = refplugins.Dir(ctx, os.Stderr); err != nil {
			return nil, err
		}
	}
	return []string{"PATH=" + path, "CNI_PATH=" + plugins}, nil
}

// searchPath returns PATH with the directories of system programs, which a
// user's PATH lacks on Debian: that is where the plugins find iptables.
func searchPath() (string, error) {
	dirs := append(filepath.SplitList(os.Getenv("PATH")), "/usr/local/sbin", "/usr/sbin", "/sbin")
	path := strings.Join(dirs, string(filepath.ListSeparator))
	for _, tool := range iptables() {
		if !inAny(dirs, tool) {
			return "", fmt.Errorf("%s is not installed, and plugins need it: run `apt-get install iptables` "+
				"(Debian, Ubuntu), `dnf install iptables-nft` (Fedora) or `apk add iptables` (Alpine)", tool)
		}
	}
	return path, nil
}

// iptables returns what the plugins bridge, firewall and portmap run.
func iptables() []string { return []string{"iptables", "ip6tables"} }

func inAny(dirs []string, program string) bool {
	for _, dir := range dirs {
		if _, err := exec.LookPath(filepath.Join(dir, program)); err == nil {
			return true
		}
	}
	return false
}

// checkIPTables makes sure, in the sandbox, that the kernel gives iptables what
// the plugins will ask for: nothing is attached yet, so it can be said plainly.
func checkIPTables(ctx context.Context) error {
	for _, tool := range iptables() {
		out, err := exec.CommandContext(ctx, tool, "--table", "nat", "--list-rules").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s does not work in a network namespace: %w: %s; as root, run "+
				"`modprobe -a nf_tables nft_compat nft_chain_nat` or, for iptables-legacy, `modprobe -a iptable_nat ip6table_nat`",
				tool, err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}

// checkPlugins makes sure that all plugins of the networks are there, rather
// than to find out in the middle of the first container.
func checkPlugins(config *cni.ConfigResult) error {
	missing := map[string]bool{}
	for _, n := range config.Networks {
		for _, p := range n.Config.Plugins {
			for _, plugin := range []string{p.Network.Type, p.Network.IPAM.Type} {
				if plugin != "" && !inAny(config.PluginDirs, plugin) {
					missing[plugin] = true
				}
			}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("no plugin %s in %s: unset CNI_PATH to have the reference plugins built, "+
		"or add a directory that has what else is missing to it",
		strings.Join(slices.Sorted(maps.Keys(missing)), ", "), strings.Join(config.PluginDirs, ", "))
}

// shippedConfig is where the networks of this program are in a checkout. They
// are read from there rather than embedded, so that they are where everybody
// can look at them, change one and run the program again.
const shippedConfig = "testdata/quickstart"

// findConfig returns the directory of the networks: dir if it is given, else
// the checkout's, found from anywhere in it.
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
