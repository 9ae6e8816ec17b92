package main

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/thick/kube/kubelet"
	"github.com/embedcni/cni/thick/multinet"
)

// TestAnnotationsOfMultus: a pod may name another default network, in the namespace of the
// cluster's although pods are isolated, and a network with a resource needs the kubelet.
func TestAnnotationsOfMultus(t *testing.T) {
	s, ctx := newSite(t), t.Context()
	a := s.onCluster()
	s.config["kubernetes"].(map[string]any)["isolated"] = true
	s.write()
	config := strings.ReplaceAll(fmt.Sprintf(storage, s.path("ipam")), "10.65.", "10.68.")
	a.addDefinitionTo("kube-system", object{"name": "infra"}, config)
	a.addDefinitionTo(shop, object{"name": "fast", "annotations": object{multinet.ResourceAnnotation: "vendor.com/vf"}}, config)
	web := a.addPodWith("web", map[string]string{multinet.DefaultAnnotation: "infra"})
	fast := a.addPod("fast", "fast")
	p := s.start()
	c := s.pod("web", web)
	expect.Value(s.add(ctx, c))(t)
	expect.Contains(t, "status", a.status("web"), `"name": "kube-system/infra"`, `"interface": "eth0"`, `"10.68.0.2"`, `"default": true`)
	expect.NoError(t, s.del(ctx, c))
	c = s.pod("fast", fast)
	_, err := s.add(ctx, c)
	expect.Says(t, "ADD without a kubelet", err, "ask the kubelet at "+kubelet.DefaultSocket)
	expect.NoError(t, s.del(ctx, c))
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)
}
