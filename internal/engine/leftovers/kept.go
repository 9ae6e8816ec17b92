package leftovers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/plainfile"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/internal/store/record"
)

// kept finds the files in which flannel keeps the configuration of its delegate for the
// container. A file that names another network is of another attachment.
func (t *Target) kept(context.Context) (items []Item, err error) {
	var errs []error
	for _, file := range t.Footprint.Kept {
		its, err := conflist.ReadKept(file)
		switch {
		case errors.Is(err, conflist.ErrTorn):
		case err != nil:
			errs = append(errs, err)
			continue
		case its == nil || its.Network.Name != t.Footprint.Network:
			continue
		}
		items = append(items, Item{"configuration of flannel's delegate in " + file, func(context.Context) error {
			if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			return plainfile.SyncDir(filepath.Dir(file))
		}})
	}
	return items, joined.Errors(errs...)
}

// ForeignKept returns the files of flannel for a network that belong to no valid container.
// Another program may have attached theirs, so nothing is removed.
func (v *Valid) ForeignKept(list *libcni.NetworkConfigList) (foreign []string, err error) {
	var errs []error
	for _, p := range list.Plugins {
		if p.Network.Type != conflist.Flannel {
			continue
		}
		f, err := conflist.ParseFlannel(p.Bytes)
		if err != nil {
			continue // nothing can be attached
		}
		entries, err := os.ReadDir(f.DataDir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		errs = append(errs, err)
		for _, e := range entries {
			its, err := conflist.ReadKept(f.File(e.Name()))
			if torn := errors.Is(err, conflist.ErrTorn); !torn && (err != nil || its == nil || its.Network.Name != list.Name) || v.hasContainer(e.Name()) {
				continue
			}
			foreign = append(foreign, fmt.Sprintf("network %q: %s has flannel's configuration for a container that is on no record: another program may have "+
				"attached it; delete the file if the container is gone", list.Name, f.File(e.Name())))
		}
	}
	return foreign, joined.Errors(errs...)
}

// hasContainer reports whether an attachment of a container is valid.
func (v *Valid) hasContainer(id string) bool {
	for _, key := range v.keys {
		if key.ContainerID == record.PluginID(id) {
			return true
		}
	}
	return false
}
