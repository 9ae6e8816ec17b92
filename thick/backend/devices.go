package backend

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/thick/multinet"
	"github.com/embedcni/cni/thick/server"
)

// Devices are what device plugins of Kubernetes have given to pods, and the files that describe
// them (Device Information Specification, version 1.1).
type Devices interface {
	// IDs returns the devices of the request's pod by their resource, in the same order each
	// time.
	IDs(context.Context, *server.Request) (map[string][]string, error)
	// Publish prepares the file of an attachment with a device, and returns its path. It
	// copies the device plugin's description of the device, if there is one. A CNI plugin may
	// write the file, also after an error: the device needs no description to work. resource is
	// empty for a device that the pod itself has named.
	Publish(resource, id, attachment string) (file string, err error)
	// Info returns the content of the file, or nil if it does not exist.
	Info(file string) (json.RawMessage, error)
	// Forget removes the file, if it exists.
	Forget(file string) error
}

// keyDeviceFile is of attachments with a device.
const keyDeviceFile = "server.device"

// device is the device that a network attaches.
type device struct {
	resource string // of the network
	given    bool   // by the kubelet, not named by the pod
	id       string
	file     string
}

// assign gives each network with a resource a device of the pod: the first network the first
// device, and so on, so that another attempt gives the same ones. A network for which none is
// left gets none, as from Multus: its plugin may do without.
func (b *Backend) assign(ctx context.Context, r *server.Request, all []network) error {
	i := slices.IndexFunc(all, func(n network) bool { return n.device.resource != "" })
	if i < 0 {
		return nil
	}
	if b.options.Devices == nil {
		return invalid("network %s needs a device of %s, and this daemon gives none", all[i].name, all[i].device.resource)
	}
	left, err := b.options.Devices.IDs(ctx, r)
	if err != nil {
		return fmt.Errorf("devices of the pod: %w", err)
	}
	for i := range all {
		n := &all[i]
		d := &n.device
		ids := left[d.resource]
		switch {
		case d.resource == "":
			continue
		case len(ids) == 0:
			b.options.Logger.Warn("the pod has no device left for a network", "pod", r.Pod.Namespace+"/"+r.Pod.Name, "network", n.name, "resource", d.resource)
			continue
		case d.id != "":
			b.options.Logger.Warn("deviceID in a pod's networks has no effect: the network has a resource", "pod", r.Pod.Namespace+"/"+r.Pod.Name, "network", n.name, "deviceID", d.id)
		}
		left[d.resource], d.id, d.given = ids[1:], ids[0], true
		if n.config, err = eachPlugin(n.config, d.applyTo); err != nil {
			return invalid("network %s: %v", n.name, err)
		}
	}
	return nil
}

// applyTo names the device to a plugin by the two keys by which SR-IOV plugins know it.
func (d *device) applyTo(plugin map[string]json.RawMessage) error {
	id, err := json.Marshal(d.id)
	plugin["deviceID"], plugin["pciBusID"] = id, id
	return err
}

// options are those of the attachment. A device from the kubelet is in the configuration, so
// its plugins need not declare the capability.
func (d *device) options(declared map[string]bool) (opts []cni.NamespaceOpts) {
	if d.id != "" && (declared["deviceID"] || !d.given) {
		opts = append(opts, cni.WithCapability("deviceID", d.id))
	}
	if d.file != "" {
		opts = append(opts, cni.WithMetadata(map[string]string{keyDeviceFile: d.file}))
	}
	if d.file != "" && declared["CNIDeviceInfoFile"] {
		opts = append(opts, cni.WithCapability("CNIDeviceInfoFile", d.file))
	}
	return opts
}

// publish makes the files of the networks' devices ready, but for an interface that is attached
// already: its file stays as it is.
func (b *Backend) publish(r *server.Request, all []network) error {
	if b.options.Devices == nil || !slices.ContainsFunc(all, func(n network) bool { return n.device.id != "" }) {
		return nil
	}
	before, err := b.runtime.Attachments(r.ContainerID)
	if err != nil {
		return err
	}
	for i := range all {
		n := &all[i]
		attached := func(a cni.Attachment) bool { return a.IfName == n.ifName && a.State == cni.Attached }
		if n.device.id == "" || slices.ContainsFunc(before, attached) {
			continue
		}
		resource := n.device.resource
		if !n.device.given {
			resource = ""
		}
		n.device.file, err = b.options.Devices.Publish(resource, n.device.id, fmt.Sprintf("%s-%s_%s", n.name, r.ContainerID, n.ifName))
		if err != nil {
			b.options.Logger.Warn("the description of a device cannot be used", "network", n.name, "device", n.device.id, "error", err)
		}
	}
	return nil
}

// statusOf returns the network status.
func (b *Backend) statusOf(all []network, result *cni.Result) string {
	var found []multinet.Status
	for i, n := range all {
		if n.ifName == lo {
			continue
		}
		info := b.deviceInfo(n)
		for _, one := range multinet.Statuses(n.name, result.Raw()[i], n.isDefault) {
			one.DeviceInfo = info
			found = append(found, one)
		}
	}
	return multinet.StatusValue(found)
}

// deviceInfo returns what is known of a network's device, for the status.
func (b *Backend) deviceInfo(n network) json.RawMessage {
	if n.device.file == "" {
		return nil
	}
	info, err := b.options.Devices.Info(n.device.file)
	if err != nil {
		b.options.Logger.Warn("the status has no information about a device", "network", n.name, "device", n.device.id, "error", err)
	}
	return info
}

// filesOf returns the files of networks' devices.
func filesOf(all []network) (files []string) {
	for _, n := range all {
		files = append(files, n.device.file)
	}
	return files
}

// recordedFiles returns the files of recorded attachments' devices.
func recordedFiles(all []cni.Attachment) (files []string) {
	for _, a := range all {
		files = append(files, a.Metadata[keyDeviceFile])
	}
	return files
}

// forget removes the files of devices.
func (b *Backend) forget(files []string) (first error) {
	for _, file := range files {
		if file == "" || b.options.Devices == nil {
			continue
		}
		if err := b.options.Devices.Forget(file); err != nil && first == nil {
			first = fmt.Errorf("information about a device: %w", err)
		}
	}
	return first
}

// ForgetGone removes the files of devices whose attachments were on record before, and are not
// now: a program calls it after a Recover or a GC of its own.
func (b *Backend) ForgetGone(before []cni.Attachment) error {
	files := slices.DeleteFunc(recordedFiles(before), func(file string) bool { return file == "" })
	if len(files) == 0 {
		return nil
	}
	now, err := b.runtime.Attachments()
	if err != nil {
		return err
	}
	kept := recordedFiles(now)
	return b.forget(slices.DeleteFunc(files, func(file string) bool { return slices.Contains(kept, file) }))
}
