package engine

import (
	"fmt"
	"strings"

	"github.com/containernetworking/cni/pkg/utils"

	"github.com/embedcni/cni/internal/record"
)

// maxCacheName is the longest file name of the usual file systems. libcni caches a
// result in a file called <network>-<container>-<interface>.
const maxCacheName = 255

// validateID checks a container ID: a letter or digit, then letters, digits,
// '_', '.', '-' (CNI specification 1.1.0, section 2).
func ValidateID(id record.ID) error {
	if err := utils.ValidateContainerID(string(id)); err != nil {
		return fmt.Errorf("container ID %q: %w: %w", id, err, ErrInvalidArgument)
	}
	if len(id) > maxCacheName {
		return fmt.Errorf("container ID of %d bytes is too long: %w", len(id), ErrInvalidArgument)
	}
	return nil
}

// validateAttachmentName checks the interface name of an attachment, which an
// earlier version may have made, and that libcni can cache its result.
func ValidateAttachmentName(network, id, ifName string) error {
	if err := utils.ValidateInterfaceName(ifName); err != nil {
		return fmt.Errorf("interface name %q: %w: %w", ifName, err, ErrInvalidArgument)
	}
	if n := len(network) + len(id) + len(ifName) + 2; n > maxCacheName {
		return fmt.Errorf("network %q, container ID and interface name take %d bytes together, %d are allowed: %w",
			network, n, maxCacheName, ErrInvalidArgument)
	}
	return nil
}

// validateIfName checks the name of a new interface. The kernel replaces "%d" by a
// number (dev_alloc_name), and the interface would have another name than in the
// record and in the plugins' requests.
func ValidateIfName(name string) error {
	if err := utils.ValidateInterfaceName(name); err != nil {
		return fmt.Errorf("%w: %w", err, ErrInvalidArgument)
	}
	if strings.Contains(name, "%") {
		return fmt.Errorf("the kernel replaces %%d by a number and takes no other '%%': %w", ErrInvalidArgument)
	}
	return nil
}
