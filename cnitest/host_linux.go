package cnitest

import (
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/netns"
)

// prepareNetNS turns duplicate address detection off and, for a host, its lo up.
func prepareNetNS(ns *netns.Handle, lo bool) error {
	return ns.Do(func() error {
		if err := nettest.NoAddressDetection(); err != nil || !lo {
			return err
		}
		link, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(link)
	})
}

// unmountBelow removes the namespaces that are pinned in a directory, the last mounted
// first.
func unmountBelow(dir string) error {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var at []string
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			at = append(at, f[4])
		}
	}
	var errs []error
	for _, path := range slices.Backward(at) {
		errs = append(errs, netns.Remove(path))
	}
	return joined.Errors(errs...)
}
