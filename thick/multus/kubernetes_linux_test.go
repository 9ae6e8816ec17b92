package multus

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

type object = map[string]any

// kind is a resource of the cluster that the daemon watches.
type kind struct{ name, list, version string }

var (
	pods     = kind{"Pod", "/api/v1/pods", "v1"}
	networks = kind{"NetworkAttachmentDefinition", "/apis/k8s.cni.cncf.io/v1/network-attachment-definitions", "k8s.cni.cncf.io/v1"}
)

// cluster is as much of the Kubernetes API as Multus' daemon asks for: pods and network
// definitions listed and watched, a pod read, and its status written.
type cluster struct {
	server *httptest.Server

	mu       sync.Mutex
	revision int
	objects  map[string]object // by kind, namespace and name
	changed  chan struct{}     // closed by the next change
	unknown  []string          // requests without a handler
	problems []error
}

// newCluster serves the API on the loopback interface, and has the daemon find it as a pod
// does: by a certificate and a token below /run.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{objects: map[string]object{}, changed: make(chan struct{})}
	mux := http.NewServeMux()
	for _, k := range []kind{pods, networks} {
		mux.HandleFunc("GET "+k.list, func(w http.ResponseWriter, r *http.Request) { c.list(w, r, k) })
	}
	mux.HandleFunc("GET /api/v1/namespaces/{namespace}/pods/{name}", c.pod)
	mux.HandleFunc("PUT /api/v1/namespaces/{namespace}/pods/{name}/status", c.status)
	for _, events := range []string{"POST /api/v1/namespaces/{namespace}/events", "PATCH /api/v1/namespaces/{namespace}/events/{name}"} {
		mux.HandleFunc(events, func(w http.ResponseWriter, _ *http.Request) {
			// They are for people to read.
			c.answer(w, http.StatusOK, object{"kind": "Event", "apiVersion": "v1", "metadata": object{"name": "event"}})
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		c.unknown = append(c.unknown, r.Method+" "+r.URL.Path)
		c.mu.Unlock()
		c.notFound(w)
	})
	c.server = httptest.NewUnstartedServer(mux)
	ctx, stop := context.WithCancel(context.Background())
	c.server.Config.BaseContext = func(net.Listener) context.Context { return ctx }
	c.server.StartTLS()
	t.Cleanup(func() {
		stop() // the watches
		c.server.Close()
		c.mu.Lock()
		defer c.mu.Unlock()
		expect.NoError(t, c.problems...)
		expect.Same(t, "requests that the cluster does not know", c.unknown, nil)
	})
	c.account(t)
	return c
}

// serviceAccount is where a program in a pod finds its credentials.
const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

func (c *cluster) account(t *testing.T) {
	t.Helper()
	// The sandbox covers /run, which may only be /var/run by a link.
	if target := expect.Value(filepath.EvalSymlinks("/var/run"))(t); target != "/run" {
		t.Fatalf("/var/run is %s: the test would write to the machine", target)
	}
	expect.NoError(t, os.MkdirAll(serviceAccount, 0o700))
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.server.Certificate().Raw})
	expect.NoError(t, os.WriteFile(filepath.Join(serviceAccount, "ca.crt"), certificate, 0o600))
	expect.NoError(t, os.WriteFile(filepath.Join(serviceAccount, "token"), []byte("test"), 0o600))
}

// env returns the variables by which a program in a pod finds the API.
func (c *cluster) env(t *testing.T) []string {
	t.Helper()
	host, port, err := net.SplitHostPort(c.server.Listener.Addr().String())
	expect.NoError(t, err)
	return []string{"KUBERNETES_SERVICE_HOST=" + host, "KUBERNETES_SERVICE_PORT=" + port}
}

// addPod adds a pod. networks is its annotation, empty for none.
func (c *cluster) addPod(namespace, name, uid, networks string) {
	annotations := object{}
	if networks != "" {
		annotations["k8s.v1.cni.cncf.io/networks"] = networks
	}
	c.put(pods, namespace, name, object{
		"metadata": object{"uid": uid, "annotations": annotations},
		"spec":     object{"containers": []object{{"name": "main", "image": "image"}}},
	})
}

// addNetwork adds a network definition.
func (c *cluster) addNetwork(namespace, name, config string) {
	c.put(networks, namespace, name, object{"metadata": object{}, "spec": object{"config": config}})
}

// addResource adds a network definition whose attachments need a device.
func (c *cluster) addResource(namespace, name, config, resource string) {
	c.put(networks, namespace, name, object{
		"metadata": object{"annotations": object{"k8s.v1.cni.cncf.io/resourceName": resource}}, "spec": object{"config": config},
	})
}

func key(k kind, namespace, name string) string { return k.name + " " + namespace + "/" + name }

// put stores an object and reports the change to the watches.
func (c *cluster) put(k kind, namespace, name string, o object) object {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.revision++
	metadata := maps.Clone(o["metadata"].(object))
	metadata["namespace"], metadata["name"], metadata["resourceVersion"] = namespace, name, strconv.Itoa(c.revision)
	o = maps.Clone(o)
	o["metadata"], o["kind"], o["apiVersion"] = metadata, k.name, k.version
	c.objects[key(k, namespace, name)] = o
	close(c.changed)
	c.changed = make(chan struct{})
	return o
}

// list answers a list, or a watch, which may begin with the present objects.
func (c *cluster) list(w http.ResponseWriter, r *http.Request, k kind) {
	query := r.URL.Query()
	if query.Get("watch") == "true" || query.Get("watch") == "1" {
		c.watch(w, r, k, query.Get("sendInitialEvents") == "true")
		return
	}
	items, revision, _ := c.present(k)
	c.answer(w, http.StatusOK, object{
		"kind": k.name + "List", "apiVersion": k.version, "metadata": object{"resourceVersion": revision}, "items": items,
	})
}

// present returns the objects of a kind, the revision that they are of, and a channel that
// the next change closes.
func (c *cluster) present(k kind) (items []object, revision string, changed chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	items = []object{}
	for _, name := range slices.Sorted(maps.Keys(c.objects)) {
		if o := c.objects[name]; o["kind"] == k.name {
			items = append(items, o)
		}
	}
	return items, strconv.Itoa(c.revision), c.changed
}

// watch reports all objects of a kind, at first and after each change.
func (c *cluster) watch(w http.ResponseWriter, r *http.Request, k kind, initial bool) {
	w.Header().Set("Content-Type", "application/json")
	send := func(change string, o object) { _ = json.NewEncoder(w).Encode(object{"type": change, "object": o}) } // or the daemon has gone
	for {
		items, revision, changed := c.present(k)
		for _, item := range items {
			send("MODIFIED", item)
		}
		if initial {
			send("BOOKMARK", object{"kind": k.name, "apiVersion": k.version, "metadata": object{
				"resourceVersion": revision, "annotations": object{"k8s.io/initial-events-end": "true"},
			}})
			initial = false
		}
		if http.NewResponseController(w).Flush() != nil {
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

func (c *cluster) pod(w http.ResponseWriter, r *http.Request) {
	o, err := c.object(pods, r.PathValue("namespace"), r.PathValue("name"))
	if err != nil {
		c.notFound(w)
		return
	}
	c.answer(w, http.StatusOK, o)
}

// status takes the annotations of the new status, the only change that the daemon makes.
func (c *cluster) status(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	c.fail(err)
	annotations, err := podAnnotations(body)
	c.fail(err)
	o, err := c.annotate(r.PathValue("namespace"), r.PathValue("name"), annotations)
	if err != nil {
		c.notFound(w)
		return
	}
	c.answer(w, http.StatusOK, o)
}

// annotate gives a pod other annotations.
func (c *cluster) annotate(namespace, name string, annotations map[string]string) (object, error) {
	o, err := c.object(pods, namespace, name)
	if err != nil {
		return nil, err
	}
	metadata := maps.Clone(o["metadata"].(object))
	metadata["annotations"] = annotations
	return c.put(pods, namespace, name, object{"metadata": metadata, "spec": o["spec"]}), nil
}

func (c *cluster) object(k kind, namespace, name string) (object, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o, ok := c.objects[key(k, namespace, name)]
	if !ok {
		return nil, fmt.Errorf("no %s %s/%s", k.name, namespace, name)
	}
	return o, nil
}

// networkStatus returns the annotation of a pod that lists its interfaces.
func (c *cluster) networkStatus(t *testing.T, namespace, name string) string {
	t.Helper()
	o := expect.Value(c.object(pods, namespace, name))(t)
	annotations, _ := o["metadata"].(object)["annotations"].(map[string]string)
	return annotations["k8s.v1.cni.cncf.io/network-status"]
}

func (c *cluster) notFound(w http.ResponseWriter) {
	c.answer(w, http.StatusNotFound, object{
		"kind": "Status", "apiVersion": "v1", "metadata": object{}, "status": "Failure",
		"message": "not found", "reason": "NotFound", "code": http.StatusNotFound,
	})
}

func (c *cluster) answer(w http.ResponseWriter, status int, o object) {
	body, err := json.Marshal(o)
	c.fail(err)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// The daemon may have gone meanwhile.
	_, _ = w.Write(body)
}

// fail keeps an error for the end of the test.
func (c *cluster) fail(err error) {
	if err == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.problems = append(c.problems, fmt.Errorf("cluster: %w", err))
}
