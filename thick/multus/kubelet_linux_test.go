package multus

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/thick/kube/kubelet"
)

// fakeKubelet says which devices the pod has.
type fakeKubelet struct {
	podresources.UnimplementedPodResourcesListerServer
	devices *podresources.ContainerDevices
}

func (k *fakeKubelet) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	return &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{{
		Name: podName, Namespace: podNamespace,
		Containers: []*podresources.ContainerResources{{Name: "main", Devices: []*podresources.ContainerDevices{k.devices}}},
	}}}, nil
}

// giveDevices has a kubelet say that the pod has devices of a resource, at the socket where
// daemons look for it, and a device plugin describe them, until the test ends.
func giveDevices(t *testing.T, resource string, ids ...string) {
	t.Helper()
	const information = "/var/run/k8s.cni.cncf.io/devinfo/dp"
	expect.NoError(t, os.MkdirAll(filepath.Dir(kubelet.DefaultSocket), 0o700), os.MkdirAll(information, 0o755))
	for _, id := range ids {
		file := filepath.Join(information, strings.ReplaceAll(resource, "/", "-")+"-"+id+"-device.json")
		expect.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `{"type": "pci", "version": "1.1.0", "pci": {"pci-address": %q}}`, id), 0o600))
	}
	t.Cleanup(func() { expect.NoError(t, os.RemoveAll(filepath.Dir(information))) })
	l := expect.Value(net.Listen("unix", kubelet.DefaultSocket))(t)
	s, done := grpc.NewServer(), make(chan error, 1)
	podresources.RegisterPodResourcesListerServer(s, &fakeKubelet{devices: &podresources.ContainerDevices{ResourceName: resource, DeviceIds: ids}})
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		expect.NoError(t, expect.Await(t, "the end of the kubelet", done))
	})
}
