package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/containernetworking/cni/libcni"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/embedcni/cni/internal/expect"
)

// pod returns the sandbox of a pod, as a runtime of Kubernetes asks for it.
func (s *site) pod(name, uid string) *libcni.RuntimeConf {
	s.t.Helper()
	c := s.container("sandbox-of-"+name, "")
	c.Args = append(c.Args, [2]string{"K8S_POD_NAMESPACE", "shop"}, [2]string{"K8S_POD_NAME", name}, [2]string{"K8S_POD_INFRA_CONTAINER_ID", c.ContainerID})
	if uid != "" {
		c.Args = append(c.Args, [2]string{"K8S_POD_UID", uid})
	}
	return c
}

// clusterRules are the rules of the manifest.
func clusterRules(t *testing.T) []rbacv1.PolicyRule {
	t.Helper()
	for _, document := range strings.Split(string(expect.Value(os.ReadFile("../../../deploy/kubernetes/rbac.yaml"))(t)), "\n---\n") {
		var role rbacv1.ClusterRole
		expect.NoError(t, yaml.Unmarshal([]byte(document), &role))
		if role.Kind == "ClusterRole" {
			return role.Rules
		}
	}
	t.Fatal("no ClusterRole in the manifest")
	return nil
}

// onCluster has the site's daemon ask an API server that allows the manifest's rules.
func (s *site) onCluster() *api {
	s.t.Helper()
	a := newAPI(s.t, clusterRules(s.t))
	s.config["kubernetes"] = map[string]any{"enabled": true, "node": "node-1", "kubeconfig": a.kubeconfig(s.path("kubeconfig")), "timeout": "30s"}
	s.write()
	return a
}

// TestKubernetes: a pod gets the networks of its annotation, from a definition and from a file
// of the node, and its status. What the daemon asks for is what the manifest allows.
func TestKubernetes(t *testing.T) {
	s, ctx := newSite(t), t.Context()
	a := s.onCluster()
	a.addDefinition("backup", object{"config": strings.ReplaceAll(fmt.Sprintf(storage, s.path("ipam")), "10.65.", "10.67.")})
	a.addDefinition("storage", object{})
	a.addPod("web", "uid-1", "node-1", "backup@net7,storage")
	p := s.start()
	expect.Eventually(t, "the cache", func() bool {
		_, text := get(t, "/readyz")
		return strings.Contains(text, "[+]kubernetes\n")
	})
	c := s.pod("web", "uid-1")
	expect.Value(s.add(ctx, c))(t)
	expect.Same(t, "interfaces", interfaces(t, c), []string{"lo", "eth0", "net7", "net2"})
	var status []struct {
		Name, Interface string
		IPs             []string
		Default         bool
	}
	expect.NoError(t, json.Unmarshal([]byte(a.status("web")), &status))
	expect.Same(t, "status", fmt.Sprint(status), "[{podnet eth0 [10.64.0.2] true} {shop/backup net7 [10.67.0.2] false} {shop/storage net2 [10.65.0.2] false}]")
	expect.NoError(t, s.cni.CheckNetworkList(ctx, s.list(), c), s.del(ctx, c))

	// An older runtime sends no UID, and the cache may not have the pod yet.
	a.addPod("old", "uid-2", "node-1", "")
	old := s.pod("old", "")
	expect.Value(s.add(ctx, old))(t)
	expect.NoError(t, s.del(ctx, old))
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)
}

// TestAPodLearnsWhyItFails by an Event, again and again by one that counts, and the log
// names it.
func TestAPodLearnsWhyItFails(t *testing.T) {
	s, ctx := newSite(t), t.Context()
	a := s.onCluster()
	a.addPod("web", "uid-1", "node-1", "missing")
	p := s.start()
	c := s.pod("web", "uid-1")
	for range 2 {
		_, err := s.add(ctx, c)
		expect.Says(t, "ADD", err, "there is no NetworkAttachmentDefinition shop/missing")
		p.find("call refused", `"verb":"ADD"`, `"container":"sandbox-of-web"`, `"pod":"shop/web"`, `"network":"node"`, `"code":7`, "shop/missing")
	}
	event := expect.Await(t, "an Event", a.events)
	expect.Same(t, "the pod", expect.JSON(t, expect.Value(json.Marshal(event["involvedObject"]))(t)),
		`{"apiVersion":"v1","kind":"Pod","name":"web","namespace":"shop","uid":"uid-1"}`)
	expect.Same(t, "type and reason", fmt.Sprint(event["type"], " ", event["reason"], " ", event["source"]), "Warning NetworkAttachmentFailed map[component:embedcnid host:node-1]")
	message, _ := event["message"].(string)
	expect.Contains(t, "message", message, "interface eth0: ", "there is no NetworkAttachmentDefinition shop/missing")
	again := expect.Await(t, "the Event's patch", a.events)
	expect.Same(t, "count", fmt.Sprint(again["count"]), "2")
	expect.NoError(t, s.del(ctx, c))

	// With a pod that is there and one that is not, every rule of the manifest is used.
	a.addPod("fine", "uid-2", "node-1", "")
	fine := s.pod("fine", "uid-2")
	expect.Value(s.add(ctx, fine))(t)
	expect.NoError(t, s.del(ctx, fine))
	_, err := s.add(ctx, s.pod("none", ""))
	expect.Says(t, "ADD", err, "there is no pod shop/none")
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.rules {
		for _, resource := range r.Resources {
			for _, verb := range r.Verbs {
				expect.That(t, a.used[verb+" "+resource], "the manifest allows %s %s, and nobody asks for it", verb, resource)
			}
		}
	}
}

// TestAnAPIServerThatIsAway: the daemon starts, is not ready, and carries out DELs. When the
// server is back, it is ready.
func TestAnAPIServerThatIsAway(t *testing.T) {
	s, ctx := newSite(t), t.Context()
	a := s.onCluster()
	a.addPod("web", "uid-1", "node-1", "")
	p := s.start()
	c := s.pod("web", "uid-1")
	expect.Value(s.add(ctx, c))(t)
	expect.Same(t, "exit code", p.end(syscall.SIGKILL), -1)
	a.setAway(true)
	p = s.start()
	status, text := get(t, "/readyz")
	expect.Same(t, "status", status, 503)
	expect.Contains(t, "/readyz", text, "[-]kubernetes: pods and definitions have not been listed yet\n", "[+]listening\n")
	expect.NoError(t, s.del(ctx, c))
	expect.Same(t, "interfaces", interfaces(t, c), []string{"lo"})
	a.setAway(false)
	expect.Eventually(t, "the cache", func() bool {
		status, _ := get(t, "/readyz")
		return status == 200
	})
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)
}
