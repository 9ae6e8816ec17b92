package main

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost/kubeapi"
	"github.com/embedcni/cni/thick/multinet"
)

// apiServer is the server of a cluster, with the manifests applied: the tests' own or, in
// make cluster, Kubernetes'.
type apiServer interface {
	// client returns the configuration of the administrator's client, or else of the service
	// account's in the manifests.
	client(admin bool) *rest.Config
	// allow replaces the rules of the manifests' ClusterRole. They are in force when it returns.
	allow(rules []rbacv1.PolicyRule)
	// kill ends the server at once, and begin starts it again.
	kill()
	begin()
}

// serviceAccount is the user of the manifests, as a cluster names it.
const serviceAccount = "system:serviceaccount:kube-system:embedcnid"

// shop is the namespace of the tests' pods.
const shop = "shop"

// cluster is what its administrator does.
type cluster struct {
	apiServer
	t           *testing.T
	core        corev1client.CoreV1Interface
	definitions dynamic.NamespaceableResourceInterface
}

// onCluster has the site's daemon ask an API server as the manifests' service account.
func (s *site) onCluster() *cluster {
	s.t.Helper()
	c := &cluster{t: s.t}
	if program := os.Getenv(apiServerVariable); program != "" {
		c.apiServer = newKubernetes(s, program)
	} else {
		c.apiServer = newAPI(s.t)
	}
	c.core = expect.Value(corev1client.NewForConfig(c.client(true)))(s.t)
	c.definitions = expect.Value(dynamic.NewForConfig(c.client(true)))(s.t).Resource(
		schema.GroupVersionResource{Group: kubeapi.Definition.Group(), Version: "v1", Resource: kubeapi.Definition.Resource})
	s.config["kubernetes"] = map[string]any{"enabled": true, "node": "node-1", "kubeconfig": s.kubeconfig(c.client(false)), "timeout": "50s"}
	s.write()
	return c
}

// kubeconfig writes the file of a client, and returns its path.
func (s *site) kubeconfig(client *rest.Config) string {
	s.t.Helper()
	c := clientcmdapi.NewConfig()
	c.Clusters["c"] = &clientcmdapi.Cluster{Server: client.Host, CertificateAuthorityData: client.CAData}
	c.AuthInfos["c"] = &clientcmdapi.AuthInfo{Token: client.BearerToken}
	c.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "c"}
	c.CurrentContext = "c"
	path := s.path("kubeconfig")
	expect.NoError(s.t, clientcmd.WriteToFile(*c, path))
	return path
}

// addPod adds a pod of the node, with the annotation that names its networks, and returns its
// UID.
func (c *cluster) addPod(name, networks string) (uid string) {
	c.t.Helper()
	return c.addPodWith(name, map[string]string{multinet.Annotation: networks})
}

func (c *cluster) addPodWith(name string, annotations map[string]string) (uid string) {
	c.t.Helper()
	pod, err := c.core.Pods(shop).Create(context.Background(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations},
		Spec:       corev1.PodSpec{NodeName: "node-1", Containers: []corev1.Container{{Name: name, Image: "alpine"}}},
	}, metav1.CreateOptions{})
	expect.NoError(c.t, err)
	return string(pod.UID)
}

// deletePod deletes a pod as the kubelet does when its containers have ended.
func (c *cluster) deletePod(name string) {
	c.t.Helper()
	expect.NoError(c.t, c.core.Pods(shop).Delete(context.Background(), name, *metav1.NewDeleteOptions(0)))
}

// addDefinition adds a NetworkAttachmentDefinition. Without a configuration a file of the node
// has it.
func (c *cluster) addDefinition(name, config string) {
	c.t.Helper()
	c.addDefinitionTo(shop, object{"name": name}, config)
}

func (c *cluster) addDefinitionTo(namespace string, metadata object, config string) {
	c.t.Helper()
	o := &unstructured.Unstructured{Object: object{
		"apiVersion": kubeapi.Definition.Version, "kind": kubeapi.Definition.Name, "metadata": metadata, "spec": object{},
	}}
	if config != "" {
		o.Object["spec"] = object{"config": config}
	}
	expect.Value(c.definitions.Namespace(namespace).Create(context.Background(), o, metav1.CreateOptions{}))(c.t)
}

// status returns the network status of a pod.
func (c *cluster) status(name string) string {
	c.t.Helper()
	pod := expect.Value(c.core.Pods(shop).Get(context.Background(), name, metav1.GetOptions{}))(c.t)
	return pod.Annotations[multinet.StatusAnnotation]
}

// event waits for an Event of a pod that has happened so often.
func (c *cluster) event(pod string, count int32) (found corev1.Event) {
	c.t.Helper()
	expect.Eventually(c.t, "an Event", func() bool {
		all := expect.Value(c.core.Events(shop).List(context.Background(), metav1.ListOptions{}))(c.t).Items
		i := slices.IndexFunc(all, func(e corev1.Event) bool { return e.InvolvedObject.Name == pod && e.Count == count })
		if i >= 0 {
			found = all[i]
		}
		return i >= 0
	})
	return found
}

// pod returns the sandbox of a pod, as a runtime of Kubernetes asks for it.
func (s *site) pod(name, uid string) *libcni.RuntimeConf {
	s.t.Helper()
	c := s.container("sandbox-of-"+name, "")
	c.Args = append(c.Args, [2]string{"K8S_POD_NAMESPACE", shop}, [2]string{"K8S_POD_NAME", name}, [2]string{"K8S_POD_INFRA_CONTAINER_ID", c.ContainerID})
	if uid != "" {
		c.Args = append(c.Args, [2]string{"K8S_POD_UID", uid})
	}
	return c
}

// clusterRules are the rules of the manifest.
func clusterRules(t *testing.T) []rbacv1.PolicyRule {
	t.Helper()
	return manifest[rbacv1.ClusterRole](t, "rbac.yaml", "ClusterRole").Rules
}

// without returns rules that lack one verb on one resource.
func without(rules []rbacv1.PolicyRule, verb, resource string) (rest []rbacv1.PolicyRule) {
	for _, r := range rules {
		if slices.Contains(r.Resources, resource) {
			r.Verbs = slices.DeleteFunc(slices.Clone(r.Verbs), func(v string) bool { return v == verb })
		}
		if len(r.Verbs) > 0 {
			rest = append(rest, r)
		}
	}
	return rest
}

// isSynced reports whether the daemon has listed pods and definitions.
func isSynced(t *testing.T) bool {
	_, text := get(t, "/readyz")
	return strings.Contains(text, "[+]kubernetes\n")
}
