package netns

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Share makes dir, with mode 0755 if it is missing, a mount of its own that is shared,
// as ip-netns(8) does with [RunDir]. Namespaces that are pinned in dir afterwards are
// then seen in other mount namespaces, and are removed there together with the pin
// here. Calling it again does nothing.
//
// Mount namespaces that were made before get the pins only if dir was on a shared mount
// already, as /run is under systemd. Those that are made later get them in any case,
// unless they are private.
func Share(dir string) error {
	if err := share(dir); err != nil {
		return fmt.Errorf("share the mounts in %q: %w", dir, err)
	}
	return nil
}

func share(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return withoutPath(err)
	}
	const how = unix.MS_SHARED | unix.MS_REC
	err := unix.Mount("", dir, "none", how, "")
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	// It is no mount point yet.
	if err := unix.Mount(dir, dir, "none", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind mount: %w", err)
	}
	return unix.Mount("", dir, "none", how, "")
}
