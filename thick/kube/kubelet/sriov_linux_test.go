package kubelet_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/thick/backend"
	"github.com/embedcni/cni/thick/multinet"
	"github.com/embedcni/cni/thick/server"
)

// devices makes PCI devices with interfaces: ends of veth pairs, which sysfs shows as theirs
// in this mount namespace.
func devices(t *testing.T, h *testhost.RealHost, ids ...string) {
	t.Helper()
	expect.NoError(t, unix.Mount("tmpfs", "/sys/bus", "tmpfs", 0, "mode=0755"))
	t.Cleanup(func() { expect.NoError(t, unix.Unmount("/sys/bus", 0)) })
	for i, id := range ids {
		name := fmt.Sprintf("vf%d", i)
		h.VethPair(name, name+"peer")
		link := expect.Value(netlink.LinkByName(name))(t)
		expect.NoError(t, netlink.LinkSetHardwareAddr(link, []byte{2, 0, 0, 0, 0, byte(i)}))
		dir := filepath.Join("/sys/bus/pci/devices", id)
		driver := "/sys/bus/pci/drivers/iavf"
		expect.NoError(t, os.MkdirAll(filepath.Join(dir, "net", name), 0o755), os.MkdirAll(driver, 0o755), os.Symlink(driver, filepath.Join(dir, "driver")))
		describe(t, id)
	}
}

// TestPodsGetTheirDevices: each network with a resource gets another device of the pod, in
// the order of the annotation, and again the same. DEL gives them back.
func TestPodsGetTheirDevices(t *testing.T) {
	h := testhost.NewReal(t)
	devices(t, h, "0000:03:02.0", "0000:03:02.1")
	d := serve(t, &fake{pods: []*podresources.PodResources{{Name: "web", Namespace: "shop", Containers: []*podresources.ContainerResources{
		has("vendor.com/vf", "0000:03:02.1"), has("vendor.com/vf", "0000:03:02.0"),
	}}}})
	var status string
	var log strings.Builder
	daemon := func(annotation string) *backend.Backend {
		return backend.New(h.Real(cni.WithBuiltinPlugins()), backend.Options{
			Networks: func(context.Context, *server.Request) (string, error) { return annotation, nil },
			Lookup: func(context.Context, *server.Request, multinet.Selection) (multinet.Definition, error) {
				return multinet.Definition{Config: []byte(`{"cniVersion": "1.0.0", "plugins": [{"type": "host-device"}]}`), Resource: "vendor.com/vf"}, nil
			},
			Devices:  d,
			OnStatus: func(_ context.Context, _ *server.Request, value string) error { status = value; return nil },
			Logger:   slog.New(slog.NewTextHandler(&log, nil)),
		})
	}
	r := &server.Request{
		ContainerID: "c1", NetNS: h.Container("c1"), IfName: "eth0", Network: "node", CNIVersion: "1.0.0", Pod: request.Pod,
		Config: json.RawMessage(`{"cniVersion": "1.0.0", "name": "node", "delegates": [{"type": "ptp", "ipam": {"type": "static", "addresses": [{"address": "10.1.0.2/24", "gateway": "10.1.0.1"}]}}]}`),
	}
	files := func() []string { return expect.Value(filepath.Glob("/var/run/k8s.cni.cncf.io/devinfo/cni/*"))(t) }
	_, err := daemon("fast, fast, fast").Add(t.Context(), r)
	expect.Says(t, "the third network has no device left", err, "host-device")
	expect.Says(t, "log", errors.New(log.String()), `no device left for a network" pod=shop/web network=shop/fast resource=vendor.com/vf`)
	expect.Same(t, "files", files(), nil)
	b := daemon("fast, fast@vf")
	for range 2 {
		expect.Value(b.Add(t.Context(), r))(t)
		var all []multinet.Status
		expect.NoError(t, json.Unmarshal([]byte(status), &all))
		var got []string
		for _, one := range all[1:] {
			var info v1.DeviceInfo
			expect.NoError(t, json.Unmarshal(one.DeviceInfo, &info))
			got = append(got, fmt.Sprintf("%s %s %s", one.Interface, one.MAC, info.Pci.PciAddress))
		}
		expect.Same(t, "the default network's", string(all[0].DeviceInfo), "")
		expect.Same(t, "status", got, []string{"net1 02:00:00:00:00:00 0000:03:02.0", "vf 02:00:00:00:00:01 0000:03:02.1"})
		expect.NoError(t, b.Del(t.Context(), r))
		for i := range 2 { // they are back
			expect.Value(netlink.LinkByName(fmt.Sprintf("vf%d", i)))(t)
		}
		expect.Same(t, "files", files(), nil)
	}
}
