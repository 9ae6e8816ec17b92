package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/netns"
)

// enter turns the namespaces that the process was started in into a sandbox.
// The argument is the outer process's network namespace, from the marker.
//
// The marker could be present by mistake, exported into the environment of a
// program that starts on the machine itself. Mounting over /run there would be
// a disaster, so enter first verifies that the namespaces differ.
func enter(outside string) error {
	if err := os.Unsetenv(marker); err != nil {
		return err
	}
	if err := checkNetNS(outside); err != nil {
		return err
	}
	if err := privateMounts(); err != nil {
		return err
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	if err := adoptInside(); err != nil {
		return err
	}
	inside, err := mountNS()
	if err != nil {
		return err
	}
	return os.Setenv(within, inside)
}

// adoptInside makes this process the parent of orphans, unless the outer one is.
func adoptInside() error {
	if _, outside := os.LookupEnv(orphansOutside); outside {
		return os.Unsetenv(orphansOutside)
	}
	return adoptOrphans()
}

// adoptOrphans makes this process the parent of its descendants' orphans.
func adoptOrphans() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the parent of orphans: %w", err)
	}
	return nil
}

func mountNS() (string, error) {
	link, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return "", fmt.Errorf("look up the mount namespace: %w", err)
	}
	return link, nil
}

func checkNetNS(outside string) error {
	id, err := netns.CurrentID()
	if err != nil {
		return err
	}
	var was netns.ID
	if _, err := fmt.Sscanf(outside, "%d:%d", &was.Dev, &was.Ino); err != nil {
		return fmt.Errorf("%s=%q is not set by this package, unset it: %w", marker, outside, err)
	}
	if id == was {
		return fmt.Errorf("%s is set, but the network namespace is still the outer one, %s: unset it", marker, id)
	}
	return checkMountNS()
}

// checkMountNS verifies that the mount namespace also differs from the parent
// process's. Otherwise the mounts of privateMounts would appear there. An
// invisible parent is not an obstacle.
func checkMountNS() error {
	mine, err := mountNS()
	if err != nil {
		return err
	}
	parents, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", os.Getppid()))
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		return nil
	case err != nil:
		return fmt.Errorf("look up the parent's mount namespace: %w", err)
	case mine == parents:
		return fmt.Errorf("%s is set, but the mount namespace is still the outer one, %s: unset it", marker, mine)
	}
	return nil
}

// privateMounts makes all mounts private, then covers the directories where CNI
// plugins, iptables and runtimes keep their state.
func privateMounts() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		if refused(err) {
			// Ubuntu allows the namespace but gives no capabilities in it.
			return fmt.Errorf("%w: make mounts private: %w", ErrRefused, err)
		}
		return fmt.Errorf("make mounts private: %w", err)
	}
	for _, dir := range []string{"/run", "/var/lib"} {
		err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755")
		// A missing directory has no state to cover, and making it would be
		// visible outside.
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("mount a tmpfs on %s: %w", dir, err)
		}
	}
	return nil
}

func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	return nil
}
