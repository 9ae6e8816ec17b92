package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/embedcni/cni/internal/expect"
)

// object is one of the API.
type object = map[string]any

// kind is a resource that the daemon lists and watches.
type kind struct{ name, resource, group, version string }

var (
	podKind        = kind{"Pod", "pods", "", "v1"}
	definitionKind = kind{"NetworkAttachmentDefinition", "network-attachment-definitions", "k8s.cni.cncf.io", "k8s.cni.cncf.io/v1"}
)

// api is as much of the API server as the daemon asks for: it lists, watches and reads pods
// and definitions, takes patches of a pod's status, and Events. It allows what rules do.
type api struct {
	server *httptest.Server
	t      *testing.T
	rules  []rbacv1.PolicyRule // none: everything

	mu       sync.Mutex
	away     bool
	revision int
	objects  map[string]object // by kind, namespace and name
	changed  chan struct{}     // closed by the next change
	events   chan object
	used     map[string]bool // verbs on resources
	refused  []string
}

func newAPI(t *testing.T, rules []rbacv1.PolicyRule) *api {
	t.Helper()
	a := &api{t: t, rules: rules, objects: map[string]object{}, changed: make(chan struct{}), events: make(chan object, 1000), used: map[string]bool{}}
	mux := http.NewServeMux()
	for _, k := range []kind{podKind, definitionKind} {
		root := "/api/v1"
		if k.group != "" {
			root = "/apis/" + k.version
		}
		mux.HandleFunc("GET "+root+"/"+k.resource, func(w http.ResponseWriter, r *http.Request) { a.list(w, r, k) })
		mux.HandleFunc("GET "+root+"/namespaces/{namespace}/"+k.resource+"/{name}", func(w http.ResponseWriter, r *http.Request) {
			if a.allows(w, "get", k.group, k.resource) {
				a.get(w, r, k)
			}
		})
	}
	mux.HandleFunc("PATCH /api/v1/namespaces/{namespace}/pods/{name}/status", a.patchStatus)
	mux.HandleFunc("POST /api/v1/namespaces/{namespace}/events", func(w http.ResponseWriter, r *http.Request) { a.event(w, r, "create") })
	mux.HandleFunc("PATCH /api/v1/namespaces/{namespace}/events/{name}", func(w http.ResponseWriter, r *http.Request) { a.event(w, r, "patch") })
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { a.refuse(w, r.Method+" "+r.URL.Path) })
	a.server = httptest.NewUnstartedServer(mux)
	ctx, stop := context.WithCancel(context.Background())
	a.server.Config.BaseContext = func(net.Listener) context.Context { return ctx }
	a.server.Start()
	t.Cleanup(func() {
		stop() // the watches
		a.server.Close()
		expect.Same(t, "requests that are not allowed", a.refused, nil)
	})
	return a
}

// kubeconfig writes the file that names the server, and returns its path.
func (a *api) kubeconfig(path string) string {
	c := clientcmdapi.NewConfig()
	c.Clusters["c"] = &clientcmdapi.Cluster{Server: a.server.URL}
	c.Contexts["c"] = &clientcmdapi.Context{Cluster: "c"}
	c.CurrentContext = "c"
	expect.NoError(a.t, clientcmd.WriteToFile(*c, path))
	return path
}

// allows answers a request that no rule allows, and reports whether one does.
func (a *api) allows(w http.ResponseWriter, verb, group, resource string) bool {
	a.mu.Lock()
	away := a.away
	a.used[verb+" "+resource] = true
	a.mu.Unlock()
	if away {
		a.fail(w, http.StatusServiceUnavailable, "ServiceUnavailable")
		return false
	}
	has := func(all []string, one string) bool { return slices.Contains(all, one) }
	if a.rules != nil && !slices.ContainsFunc(a.rules, func(r rbacv1.PolicyRule) bool {
		return has(r.Verbs, verb) && has(r.APIGroups, group) && has(r.Resources, resource)
	}) {
		a.refuse(w, verb+" "+resource)
		return false
	}
	return true
}

// refuse answers a request, and fails the test at its end.
func (a *api) refuse(w http.ResponseWriter, request string) {
	a.mu.Lock()
	a.refused = append(a.refused, request)
	a.mu.Unlock()
	a.fail(w, http.StatusForbidden, "Forbidden")
}

// setAway has the server answer nothing useful from now on, or again.
func (a *api) setAway(away bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.away = away
}

// put stores an object and reports the change to the watches.
func (a *api) put(k kind, namespace, name string, o object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.revision++
	o = maps.Clone(o)
	metadata := object{}
	if m, ok := o["metadata"].(object); ok {
		metadata = maps.Clone(m)
	}
	metadata["namespace"], metadata["name"], metadata["resourceVersion"] = namespace, name, strconv.Itoa(a.revision)
	o["metadata"], o["kind"], o["apiVersion"] = metadata, k.name, k.version
	a.objects[k.name+" "+namespace+"/"+name] = o
	close(a.changed)
	a.changed = make(chan struct{})
}

// addPod adds a pod of a node, with the annotation that names its networks.
func (a *api) addPod(name, uid, node, networks string) {
	a.put(podKind, "shop", name, object{
		"metadata": object{"uid": uid, "annotations": object{"k8s.v1.cni.cncf.io/networks": networks}},
		"spec":     object{"nodeName": node}, "status": object{"phase": "Pending"},
	})
}

func (a *api) addDefinition(name string, spec object) {
	a.put(definitionKind, "shop", name, object{"spec": spec})
}

// status returns the network status of a pod.
func (a *api) status(name string) (text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	annotations, _ := a.objects["Pod shop/"+name]["metadata"].(object)["annotations"].(object)
	text, _ = annotations["k8s.v1.cni.cncf.io/network-status"].(string)
	return text
}

// present returns the objects of a kind, their revision, and a channel that the next change
// closes.
func (a *api) present(k kind) (items []object, revision string, changed chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	items = []object{}
	for _, name := range slices.Sorted(maps.Keys(a.objects)) {
		if strings.HasPrefix(name, k.name+" ") {
			items = append(items, a.objects[name])
		}
	}
	return items, strconv.Itoa(a.revision), a.changed
}

// list answers a list or a watch. Of pods the daemon must ask for its node's.
func (a *api) list(w http.ResponseWriter, r *http.Request, k kind) {
	if node := r.URL.Query().Get("fieldSelector"); k == podKind && node != "spec.nodeName=node-1" {
		a.refuse(w, "list pods of "+node)
		return
	}
	watches := r.URL.Query().Get("watch") == "true"
	verb := "list"
	if watches {
		verb = "watch"
	}
	if !a.allows(w, verb, k.group, k.resource) {
		return
	}
	items, revision, changed := a.present(k)
	if !watches {
		answer(w, http.StatusOK, object{"kind": k.name + "List", "apiVersion": k.version, "metadata": object{"resourceVersion": revision}, "items": items})
		return
	}
	w.Header().Set("Content-Type", "application/json")
	for {
		for _, item := range items {
			_ = json.NewEncoder(w).Encode(object{"type": "MODIFIED", "object": item}) // or the daemon has gone
		}
		if http.NewResponseController(w).Flush() != nil {
			return
		}
		select {
		case <-changed:
			items, _, changed = a.present(k)
		case <-r.Context().Done():
			return
		}
	}
}

func (a *api) get(w http.ResponseWriter, r *http.Request, k kind) {
	a.mu.Lock()
	o, ok := a.objects[k.name+" "+r.PathValue("namespace")+"/"+r.PathValue("name")]
	a.mu.Unlock()
	if !ok {
		a.fail(w, http.StatusNotFound, "NotFound")
		return
	}
	answer(w, http.StatusOK, o)
}

// patchStatus takes annotations for a pod of the UID that the patch names.
func (a *api) patchStatus(w http.ResponseWriter, r *http.Request) {
	if !a.allows(w, "patch", "", "pods/status") {
		return
	}
	var patch struct {
		Metadata struct {
			UID         string
			Annotations map[string]string
		}
	}
	expect.Succeeds(a.t, "decode a patch", json.NewDecoder(r.Body).Decode(&patch))
	namespace, name := r.PathValue("namespace"), r.PathValue("name")
	a.mu.Lock()
	pod := a.objects["Pod "+namespace+"/"+name]
	a.mu.Unlock()
	metadata, _ := pod["metadata"].(object)
	switch {
	case metadata == nil:
		a.fail(w, http.StatusNotFound, "NotFound")
		return
	case metadata["uid"] != patch.Metadata.UID:
		a.fail(w, http.StatusConflict, "Conflict")
		return
	}
	metadata = maps.Clone(metadata)
	annotations := maps.Clone(metadata["annotations"].(object))
	for key, value := range patch.Metadata.Annotations {
		annotations[key] = value
	}
	metadata["annotations"] = annotations
	pod = maps.Clone(pod)
	pod["metadata"] = metadata
	a.put(podKind, namespace, name, pod)
	a.get(w, r, podKind)
}

// event takes an Event or a patch of one.
func (a *api) event(w http.ResponseWriter, r *http.Request, verb string) {
	if !a.allows(w, verb, "", "events") {
		return
	}
	body, err := io.ReadAll(r.Body)
	expect.Succeeds(a.t, "read an Event", err)
	var e object
	expect.Succeeds(a.t, "decode an Event", json.Unmarshal(body, &e))
	a.events <- e
	answer(w, http.StatusCreated, e)
}

func (a *api) fail(w http.ResponseWriter, status int, reason string) {
	answer(w, status, object{
		"kind": "Status", "apiVersion": "v1", "metadata": object{}, "status": "Failure",
		"message": fmt.Sprint("the test's API server says ", reason), "reason": reason, "code": status,
	})
}

func answer(w http.ResponseWriter, status int, o object) {
	body, err := json.Marshal(o)
	if err != nil {
		panic(err) // texts and numbers always encode
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body) // the daemon may have gone
}
