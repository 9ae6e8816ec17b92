package chain

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/plainfile"
)

// ForgetUnneeded deletes the files of one container from libcni's cache that nobody needs:
// those that libcni cannot read, and those of attachments that unneeded accepts.
// isIt reports whether an ID is the container's. A file that a power cut has emptied is
// known by its name, which contains the ID.
func ForgetUnneeded(cacheDir string, isIt func(id string) bool, unneeded func(*libcni.NetworkAttachment) bool) error {
	dir := filepath.Join(cacheDir, "results")
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cached attachments: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if e.Type().IsRegular() && mayName(e.Name(), isIt) {
			errs = append(errs, forgetIf(filepath.Join(dir, e.Name()), isIt, unneeded))
		}
	}
	return errors.Join(errs...)
}

func forgetIf(path string, isIt func(id string) bool, unneeded func(*libcni.NetworkAttachment) bool) error {
	data, err := plainfile.Read(path)
	var k content
	if err == nil && (json.Unmarshal(data, &k) != nil || isIt(k.ContainerID) && unneeded(k.attachment())) {
		err = os.Remove(path)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget a cached attachment: %w", err)
	}
	return nil
}

func (k content) attachment() *libcni.NetworkAttachment {
	return &libcni.NetworkAttachment{ContainerID: k.ContainerID, Network: k.NetworkName, IfName: k.IfName, Config: k.Config, NetNS: k.NetNS}
}

// mayName reports whether a file name of libcni's cache, which is the network, the ID and
// the interface joined by hyphens, may contain the ID.
func mayName(file string, isIt func(id string) bool) bool {
	parts := strings.Split(file, "-")
	for from := 1; from < len(parts)-1; from++ {
		for to := from + 1; to < len(parts); to++ {
			if isIt(strings.Join(parts[from:to], "-")) {
				return true
			}
		}
	}
	return false
}
