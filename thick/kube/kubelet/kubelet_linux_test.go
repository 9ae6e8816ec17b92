package kubelet_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	v1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	"github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/utils"
	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/thick/kube/kubelet"
	"github.com/embedcni/cni/thick/server"
)

// fake is a kubelet that lists pods, or fails.
type fake struct {
	podresources.UnimplementedPodResourcesListerServer
	pods []*podresources.PodResources
	err  error
}

func (f *fake) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	return &podresources.ListPodResourcesResponse{PodResources: f.pods}, f.err
}

// serve has a fake listen until the test ends.
func serve(t *testing.T, f *fake) kubelet.Devices {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubelet.sock")
	l := expect.Value(net.Listen("unix", path))(t)
	s := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(s, f)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		expect.NoError(t, expect.Await(t, "the end of the kubelet", done))
	})
	return kubelet.Devices{Socket: path}
}

// has is a container with devices of a resource.
func has(resource string, ids ...string) *podresources.ContainerResources {
	return &podresources.ContainerResources{Devices: []*podresources.ContainerDevices{{ResourceName: resource, DeviceIds: ids}}}
}

var request = &server.Request{Pod: server.Pod{Namespace: "shop", Name: "web"}}

func TestDevicesAreThoseOfThePodInOrder(t *testing.T) {
	claim := &podresources.ContainerResources{DynamicResources: []*podresources.DynamicResource{{
		ClaimName: "claim", ClaimResources: []*podresources.ClaimResource{{CDIDevices: []*podresources.CDIDevice{{Name: "vendor.com/nic=vf9"}, {Name: "odd"}}}},
	}}}
	d := serve(t, &fake{pods: []*podresources.PodResources{
		{Name: "web", Namespace: "other", Containers: []*podresources.ContainerResources{has("vendor.com/vf", "0000:03:09.0")}},
		{Name: "web", Namespace: "shop", Containers: []*podresources.ContainerResources{
			has("vendor.com/vf", "0000:03:02.2", "0000:03:02.0"), has("vendor.com/vf", "0000:03:02.1"), has("vendor.com/gpu", "gpu0"), claim, claim,
		}},
	}})
	for range 2 {
		got, err := d.IDs(t.Context(), request)
		expect.NoError(t, err)
		expect.Same(t, "devices", got, map[string][]string{
			"vendor.com/vf": {"0000:03:02.0", "0000:03:02.1", "0000:03:02.2"}, "vendor.com/gpu": {"gpu0"}, "claim": {"vf9"},
		})
	}
}

func TestAKubeletThatDoesNotAnswerIsAskedLater(t *testing.T) {
	for what, d := range map[string]kubelet.Devices{
		"no socket": {Socket: filepath.Join(t.TempDir(), "kubelet.sock")},
		"an error":  serve(t, &fake{err: errors.New("not now")}),
	} {
		_, err := d.IDs(t.Context(), request)
		var said *types.Error
		if !errors.As(err, &said) || said.Code != types.ErrTryAgainLater || !strings.Contains(said.Msg, d.Socket) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// describe writes what a device plugin says of a device.
func describe(t *testing.T, id string) *v1.DeviceInfo {
	t.Helper()
	info := &v1.DeviceInfo{Type: v1.DeviceInfoTypePCI, Version: "1.1.0", Pci: &v1.PciDevice{PciAddress: id}}
	expect.NoError(t, os.MkdirAll("/var/run/k8s.cni.cncf.io/devinfo/dp", 0o755), utils.SaveDeviceInfoForDP("vendor.com/vf", id, info))
	t.Cleanup(func() { expect.NoError(t, utils.CleanDeviceInfoForDP("vendor.com/vf", id)) })
	return info
}

func TestInformationOfADevice(t *testing.T) {
	var d kubelet.Devices
	pci := describe(t, "0000:03:02.0")
	const path = "/var/run/k8s.cni.cncf.io/devinfo/cni/shop-fast-c1_net1"
	const text = `{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:03:02.0"}}`
	info := func(want string) {
		t.Helper()
		got, err := d.Info(path)
		expect.NoError(t, err)
		expect.Same(t, "information", string(got), want)
	}
	for range 2 { // the second time after an attempt that was killed
		file, err := d.Publish("vendor.com/vf", "0000:03:02.0", "shop/fast-c1_net1")
		expect.NoError(t, err)
		expect.Same(t, "file", file, path)
		info(text)
	}
	for _, of := range []struct{ resource, id string }{{"vendor.com/vf", "0000:03:02.1"}, {"", "0000:03:02.0"}} { // nothing is said of them
		expect.Value(d.Publish(of.resource, of.id, "shop/fast-c1_net1"))(t)
		info("")
	}
	expect.NoError(t, utils.SaveDeviceInfoForCNI(path, pci)) // by a CNI plugin
	info(text)
	expect.NoError(t, d.Forget(path), d.Forget(path))
	info("")
	expect.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
	_, err := d.Info(path)
	expect.Says(t, "a damaged file", err, path)
	expect.NoError(t, os.WriteFile("/var/run/k8s.cni.cncf.io/devinfo/dp/vendor.com-vf-0000:03:02.0-device.json", []byte("{"), 0o600))
	file, err := d.Publish("vendor.com/vf", "0000:03:02.0", "shop/fast-c1_net1")
	expect.Fails(t, "a damaged description", err)
	expect.Same(t, "file", file, path)
	info("")
	expect.NoError(t, d.Forget(path))
	mode := expect.Value(os.Stat(filepath.Dir(path)))(t).Mode().Perm()
	expect.Same(t, "mode of the directory", mode, os.FileMode(0o755))
}
