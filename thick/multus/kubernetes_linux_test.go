package multus

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost/kubeapi"
	"github.com/embedcni/cni/thick/multinet"
)

type object = kubeapi.Object

// cluster is the API server that Multus' daemon finds as a pod does.
type cluster struct {
	*kubeapi.Server
	endpoint *kubeapi.Endpoint
}

// newCluster serves the API on the loopback interface, and writes the certificate and the token
// of a pod's service account below /run.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{Server: kubeapi.New(t, kubeapi.Pod, kubeapi.Definition, kubeapi.Event)}
	c.Protobuf = inJSON
	c.endpoint = kubeapi.Listen(expect.Value(net.Listen("tcp", "127.0.0.1:0"))(t), c.Server)
	t.Cleanup(c.endpoint.Stop)
	// The sandbox covers /run, which may only be /var/run by a link.
	if target := expect.Value(filepath.EvalSymlinks("/var/run"))(t); target != "/run" {
		t.Fatalf("/var/run is %s: the test would write to the machine", target)
	}
	const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount" // where a program in a pod looks
	expect.NoError(t, os.MkdirAll(serviceAccount, 0o700))
	expect.NoError(t, os.WriteFile(filepath.Join(serviceAccount, "ca.crt"), c.endpoint.CA(), 0o600))
	expect.NoError(t, os.WriteFile(filepath.Join(serviceAccount, "token"), []byte("test"), 0o600))
	return c
}

// env returns the variables by which a program in a pod finds the API.
func (c *cluster) env(t *testing.T) []string {
	t.Helper()
	host, port, err := net.SplitHostPort(c.endpoint.Address())
	expect.NoError(t, err)
	return []string{"KUBERNETES_SERVICE_HOST=" + host, "KUBERNETES_SERVICE_PORT=" + port}
}

// addPod adds the pod of the requests, with these annotations alone.
func (c *cluster) addPod(annotations object) {
	c.Put(kubeapi.Pod, podNamespace, object{
		"metadata": object{"name": podName, "uid": podUID, "annotations": annotations},
		"spec":     object{"containers": []object{{"name": "main", "image": "image"}}},
	})
}

// addNetwork adds a network definition. If resource is not empty, its attachments need a device.
func (c *cluster) addNetwork(namespace, name, config, resource string) {
	metadata := object{"name": name}
	if resource != "" {
		metadata["annotations"] = object{multinet.ResourceAnnotation: resource}
	}
	c.Put(kubeapi.Definition, namespace, object{"metadata": metadata, "spec": object{"config": config}})
}

// found returns an object with its annotations.
func (c *cluster) found(k kubeapi.Kind, namespace, name string) (o, annotations object, err error) {
	if o = c.Get(k, namespace, name); o == nil {
		return nil, nil, fmt.Errorf("no %s %s/%s", k.Name, namespace, name)
	}
	annotations, _ = o["metadata"].(object)["annotations"].(object)
	return o, annotations, nil
}

// networkStatus returns the annotation of the pod that lists its interfaces.
func (c *cluster) networkStatus(t *testing.T) string {
	t.Helper()
	_, annotations, err := c.found(kubeapi.Pod, podNamespace, podName)
	expect.NoError(t, err)
	status, _ := annotations[multinet.StatusAnnotation].(string)
	return status
}
