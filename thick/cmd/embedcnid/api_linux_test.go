package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/rest"

	"github.com/embedcni/cni/internal/expect"
)

// object is one of the API.
type object = map[string]any

// kind is a resource of the API.
type kind struct{ name, resource, group, version string }

var (
	podKind        = kind{"Pod", "pods", "", "v1"}
	definitionKind = kind{"NetworkAttachmentDefinition", "network-attachment-definitions", "k8s.cni.cncf.io", "k8s.cni.cncf.io/v1"}
	eventKind      = kind{"Event", "events", "", "v1"}
)

// api is as much of the API server as the tests and the daemon ask for. It allows the
// daemon what rules do, and the administrator everything.
type api struct {
	t       *testing.T
	mux     *http.ServeMux
	server  *http.Server
	address string
	served  chan error

	mu       sync.Mutex
	rules    []rbacv1.PolicyRule
	revision int
	objects  map[string]object // by kind, namespace and name
	changed  chan struct{}     // closed by the next change
	unknown  []string          // requests that no API server expects
}

func newAPI(t *testing.T) *api {
	t.Helper()
	a := &api{
		t: t, mux: http.NewServeMux(), address: "127.0.0.1:0", served: make(chan error),
		rules: clusterRules(t), objects: map[string]object{}, changed: make(chan struct{}),
	}
	for _, k := range []kind{podKind, definitionKind, eventKind} {
		a.route(k)
	}
	a.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		a.unknown = append(a.unknown, r.Method+" "+r.URL.Path)
		a.mu.Unlock()
		a.fail(w, http.StatusNotFound, "NotFound", "there is no such path")
	})
	a.begin()
	t.Cleanup(func() {
		a.kill()
		expect.Empty(t, "requests that no API server expects", a.unknown)
	})
	return a
}

// route serves a kind.
func (a *api) route(k kind) {
	root := "/api/v1"
	if k.group != "" {
		root = "/apis/" + k.version
	}
	within := root + "/namespaces/{namespace}/" + k.resource
	for pattern, do := range map[string]func(http.ResponseWriter, *http.Request, kind){
		"GET " + root + "/" + k.resource: a.list, "GET " + within: a.list, "POST " + within: a.create,
		"GET " + within + "/{name}": a.get, "DELETE " + within + "/{name}": a.remove,
		"PATCH " + within + "/{name}": a.patch, "PATCH " + within + "/{name}/status": a.patch,
	} {
		a.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if a.allows(w, r, k) {
				do(w, r, k)
			}
		})
	}
}

// administrator is the token of who may do everything.
const administrator = "administrator"

func (a *api) client(admin bool) *rest.Config {
	c := &rest.Config{Host: "http://" + a.address, BearerToken: "daemon", ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
	if admin {
		c.BearerToken = administrator
	}
	return c
}

func (a *api) allow(rules []rbacv1.PolicyRule) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rules = rules
}

func (a *api) kill() {
	expect.Succeeds(a.t, "close the API server", a.server.Close())
	expect.Is(a.t, <-a.served, http.ErrServerClosed)
}

// begin serves at the address of the first time.
func (a *api) begin() {
	l := expect.Value(net.Listen("tcp", a.address))(a.t)
	a.address, a.server = l.Addr().String(), &http.Server{Handler: a.mux}
	go func() { a.served <- a.server.Serve(l) }()
}

// allows answers a request that no rule allows, as the API server's authorizer does, and
// reports whether one does.
func (a *api) allows(w http.ResponseWriter, r *http.Request, k kind) bool {
	resource, verb := k.resource, map[string]string{http.MethodPost: "create", http.MethodPatch: "patch", http.MethodDelete: "delete"}[r.Method]
	switch {
	case strings.HasSuffix(r.URL.Path, "/status"):
		resource += "/status"
	case r.URL.Query().Get("watch") == "true":
		verb = "watch"
	case verb == "" && r.PathValue("name") == "":
		verb = "list"
	case verb == "":
		verb = "get"
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	has := func(all []string, one string) bool { return slices.Contains(all, one) }
	if r.Header.Get("Authorization") == "Bearer "+administrator || slices.ContainsFunc(a.rules, func(r rbacv1.PolicyRule) bool {
		return has(r.Verbs, verb) && has(r.APIGroups, k.group) && has(r.Resources, resource)
	}) {
		return true
	}
	a.fail(w, http.StatusForbidden, "Forbidden", fmt.Sprintf("%s is forbidden: User %q cannot %s resource %q in API group %q", k.resource, serviceAccount, verb, resource, k.group))
	return false
}

// path is the key of an object.
func path(k kind, namespace, name string) string { return k.name + " " + namespace + "/" + name }

// put stores an object, reports the change to the watches, and returns what it has stored. The
// caller holds mu.
func (a *api) put(k kind, namespace string, o object) object {
	a.revision++
	o, metadata := maps.Clone(o), maps.Clone(o["metadata"].(object))
	name := metadata["name"].(string)
	revision := strconv.Itoa(a.revision)
	if metadata["uid"] == nil {
		metadata["uid"] = "uid-" + revision
	}
	metadata["namespace"], metadata["resourceVersion"] = namespace, revision
	o["metadata"], o["kind"], o["apiVersion"] = metadata, k.name, k.version
	a.objects[path(k, namespace, name)] = o
	a.announce()
	return o
}

func (a *api) announce() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// present returns the objects of a kind, in one namespace or all, their revision, and a channel
// that the next change closes.
func (a *api) present(k kind, namespace string) (items map[string]object, revision string, changed chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	items = maps.Clone(a.objects)
	maps.DeleteFunc(items, func(at string, _ object) bool { return !strings.HasPrefix(at, k.name+" "+namespace) })
	return items, strconv.Itoa(a.revision), a.changed
}

// list answers a list or a watch. Of pods the daemon must ask for its node's.
func (a *api) list(w http.ResponseWriter, r *http.Request, k kind) {
	namespace, query := r.PathValue("namespace"), r.URL.Query()
	if k == podKind && query.Get("fieldSelector") != "spec.nodeName=node-1" {
		a.fail(w, http.StatusBadRequest, "BadRequest", "pods of one node only")
		return
	}
	if namespace != "" {
		namespace += "/"
	}
	items, revision, changed := a.present(k, namespace)
	if query.Get("watch") != "true" {
		answer(w, http.StatusOK, object{"kind": k.name + "List", "apiVersion": k.version, "metadata": object{"resourceVersion": revision}, "items": slices.AppendSeq([]object{}, maps.Values(items))})
		return
	}
	w.Header().Set("Content-Type", "application/json")
	for was := map[string]object(nil); ; {
		for at, item := range items {
			_ = json.NewEncoder(w).Encode(object{"type": "MODIFIED", "object": item}) // or the daemon has gone
			delete(was, at)
		}
		for _, item := range was {
			_ = json.NewEncoder(w).Encode(object{"type": "DELETED", "object": item})
		}
		if http.NewResponseController(w).Flush() != nil {
			return
		}
		was = items
		select {
		case <-changed:
			items, _, changed = a.present(k, namespace)
		case <-r.Context().Done():
			return
		}
	}
}

// found returns the object of a request, or answers that there is none. The caller holds mu.
func (a *api) found(w http.ResponseWriter, r *http.Request, k kind) (o object, ok bool) {
	o, ok = a.objects[path(k, r.PathValue("namespace"), r.PathValue("name"))]
	if !ok {
		a.fail(w, http.StatusNotFound, "NotFound", "it is not there")
	}
	return o, ok
}

func (a *api) get(w http.ResponseWriter, r *http.Request, k kind) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if o, ok := a.found(w, r, k); ok {
		answer(w, http.StatusOK, o)
	}
}

func (a *api) create(w http.ResponseWriter, r *http.Request, k kind) {
	o := a.decode(r)
	a.mu.Lock()
	defer a.mu.Unlock()
	answer(w, http.StatusCreated, a.put(k, r.PathValue("namespace"), o))
}

func (a *api) remove(w http.ResponseWriter, r *http.Request, k kind) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if o, ok := a.found(w, r, k); ok {
		delete(a.objects, path(k, r.PathValue("namespace"), r.PathValue("name")))
		a.announce()
		answer(w, http.StatusOK, o)
	}
}

// patch merges, unless the patch names another UID than the object has.
func (a *api) patch(w http.ResponseWriter, r *http.Request, k kind) {
	change := a.decode(r)
	a.mu.Lock()
	defer a.mu.Unlock()
	o, ok := a.found(w, r, k)
	if !ok {
		return
	}
	metadata, _ := change["metadata"].(object)
	if uid := metadata["uid"]; uid != nil && uid != o["metadata"].(object)["uid"] {
		a.fail(w, http.StatusConflict, "Conflict", "the UID is another")
		return
	}
	answer(w, http.StatusOK, a.put(k, r.PathValue("namespace"), merged(o, change)))
}

// merged is a merge patch (RFC 7396) that removes nothing.
func merged(o, change object) object {
	o = maps.Clone(o)
	for key, value := range change {
		before, _ := o[key].(object)
		if inner, ok := value.(object); ok && before != nil {
			value = merged(before, inner)
		}
		o[key] = value
	}
	return o
}

func (a *api) decode(r *http.Request) (o object) {
	expect.Succeeds(a.t, "decode a request", json.NewDecoder(r.Body).Decode(&o))
	return o
}

func (a *api) fail(w http.ResponseWriter, status int, reason, message string) {
	answer(w, status, object{"kind": "Status", "apiVersion": "v1", "metadata": object{}, "status": "Failure", "message": message, "reason": reason, "code": status})
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
