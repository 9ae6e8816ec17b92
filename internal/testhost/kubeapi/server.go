// Package kubeapi is as much of Kubernetes' API server as the tests ask for: objects of a few
// kinds that are created, read, listed, watched, replaced, patched and deleted. It does not
// depend on Kubernetes.
package kubeapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// Object is one of the API.
type Object = map[string]any

// Kind is a kind of objects with its resource and its version, which begins with the group:
// "k8s.cni.cncf.io/v1".
type Kind struct{ Name, Resource, Version string }

// The kinds that a daemon of Kubernetes' nodes asks for.
var (
	Pod        = Kind{"Pod", "pods", "v1"}
	Definition = Kind{"NetworkAttachmentDefinition", "network-attachment-definitions", "k8s.cni.cncf.io/v1"}
	Event      = Kind{"Event", "events", "v1"}
)

// Group returns the group of the API, which is empty for Kubernetes' first kinds.
func (k Kind) Group() string {
	return strings.TrimSuffix(path.Dir(k.Version), ".")
}

// key is that of an object. Without a name it begins the keys of a namespace, and without a
// namespace those of the kind.
func (k Kind) key(namespace, name string) string {
	if namespace == "" {
		return k.Resource + " "
	}
	return k.Resource + " " + namespace + "/" + name
}

// Server is the handler of the API. As the real one it refuses a new object that exists already,
// a change of another version or UID than the present one, and a patch whose tests do not hold.
// Its functions are set before the first request.
type Server struct {
	// Refuse returns why a request is forbidden, or nothing. Without it all are allowed.
	Refuse func(r *http.Request, verb, group, resource string) string
	// Protobuf returns in JSON an object in the protobuf form of Kubernetes. Some clients have no
	// choice of sending another.
	Protobuf func(body []byte) ([]byte, error)
	// JSONPatch applies a patch of RFC 6902. All other patches are merged.
	JSONPatch func(object, patch []byte) ([]byte, error)

	mux      *http.ServeMux
	mu       sync.Mutex
	revision int
	objects  map[string]Object // by key; none is ever changed
	changed  chan struct{}     // closed by the next change
	unknown  []string          // requests that no API server expects
}

// New returns a server of some kinds. The test fails if it was asked for others.
func New(t testing.TB, kinds ...Kind) *Server {
	s := &Server{mux: http.NewServeMux(), objects: map[string]Object{}, changed: make(chan struct{})}
	for _, k := range kinds {
		s.route(k)
	}
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.unknown = append(s.unknown, r.Method+" "+r.URL.Path)
		refusal(http.StatusNotFound, "NotFound", "there is no such path").write(w)
	})
	t.Cleanup(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		expect.Empty(t, "requests that no API server expects", s.unknown)
	})
	return s
}

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// route serves a kind.
func (s *Server) route(k Kind) {
	root := "/apis/" + k.Version
	if k.Group() == "" {
		root = "/api/" + k.Version
	}
	within := root + "/namespaces/{namespace}/" + k.Resource
	one := within + "/{name}"
	for pattern, do := range map[string]func(*http.Request, Kind, []byte) answer{
		"GET " + root + "/" + k.Resource: s.list, "GET " + within: s.list, "POST " + within: s.create,
		"GET " + one: s.get, "DELETE " + one: s.remove, "PUT " + one: s.change, "PATCH " + one: s.change,
		"PUT " + one + "/status": s.change, "PATCH " + one + "/status": s.change,
	} {
		s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, k, do) })
	}
}

var verbs = map[string]string{http.MethodGet: "get", http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete"}

func (s *Server) serve(w http.ResponseWriter, r *http.Request, k Kind, do func(*http.Request, Kind, []byte) answer) {
	resource, verb := k.Resource, verbs[r.Method]
	if isStatus(r) {
		resource += "/status"
	}
	if watch, _ := strconv.ParseBool(r.URL.Query().Get("watch")); watch {
		verb = "watch"
	} else if verb == "get" && r.PathValue("name") == "" {
		verb = "list"
	}
	if s.Refuse != nil {
		if reason := s.Refuse(r, verb, k.Group(), resource); reason != "" {
			refusal(http.StatusForbidden, "Forbidden", reason).write(w)
			return
		}
	}
	if verb == "watch" {
		s.watch(w, r, k)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // the client has gone
	}
	func() answer {
		s.mu.Lock()
		defer s.mu.Unlock()
		return do(r, k, body)
	}().write(w)
}

func isStatus(r *http.Request) bool { return strings.HasSuffix(r.Pattern, "/status") }

// Put stores an object, which has its name, and reports the change to the watches.
func (s *Server) Put(k Kind, namespace string, o Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(k, namespace, o)
}

// put returns the object as it is stored. This and all below, but for watch, are called with mu
// held.
func (s *Server) put(k Kind, namespace string, o Object) Object {
	s.revision++
	revision := strconv.Itoa(s.revision)
	m := Object{"uid": "uid-" + revision}
	maps.Copy(m, metadata(o))
	m["namespace"], m["resourceVersion"] = namespace, revision
	o = maps.Clone(o)
	o["metadata"], o["kind"], o["apiVersion"] = m, k.Name, k.Version
	name, _ := m["name"].(string)
	s.objects[k.key(namespace, name)] = o
	s.announce()
	return o
}

// Delete deletes an object.
func (s *Server) Delete(k Kind, namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.objects, k.key(namespace, name))
	s.announce()
}

func (s *Server) announce() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Get returns an object, or nil. It must not be changed.
func (s *Server) Get(k Kind, namespace, name string) Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.objects[k.key(namespace, name)]
}

// All returns the objects of a kind. They must not be changed.
func (s *Server) All(k Kind) []Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	return sorted(s.present(k, ""))
}

// present returns the objects of a kind by their keys, in one namespace or all.
func (s *Server) present(k Kind, namespace string) map[string]Object {
	items := maps.Clone(s.objects)
	maps.DeleteFunc(items, func(at string, _ Object) bool { return !strings.HasPrefix(at, k.key(namespace, "")) })
	return items
}

func (s *Server) list(r *http.Request, k Kind, _ []byte) answer {
	return answer{http.StatusOK, Object{
		"kind": k.Name + "List", "apiVersion": k.Version, "metadata": Object{"resourceVersion": strconv.Itoa(s.revision)},
		"items": sorted(s.present(k, r.PathValue("namespace"))),
	}}
}

func sorted(items map[string]Object) []Object {
	all := []Object{}
	for _, at := range slices.Sorted(maps.Keys(items)) {
		all = append(all, items[at])
	}
	return all
}

// watch reports all objects of a kind, at first and after each change, and those that have gone.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, k Kind) {
	w.Header().Set("Content-Type", "application/json")
	send := func(change string, o Object) { _ = json.NewEncoder(w).Encode(Object{"type": change, "object": o}) } // or the client has gone
	initial := r.URL.Query().Get("sendInitialEvents") == "true"
	for was := map[string]Object(nil); ; {
		s.mu.Lock()
		items, revision, changed := s.present(k, r.PathValue("namespace")), strconv.Itoa(s.revision), s.changed
		s.mu.Unlock()
		for _, item := range sorted(items) {
			send("MODIFIED", item)
		}
		maps.DeleteFunc(was, func(at string, _ Object) bool { return items[at] != nil })
		for _, item := range was {
			send("DELETED", item)
		}
		if initial {
			send("BOOKMARK", Object{"kind": k.Name, "apiVersion": k.Version, "metadata": Object{
				"resourceVersion": revision, "annotations": Object{"k8s.io/initial-events-end": "true"},
			}})
			initial = false
		}
		if http.NewResponseController(w).Flush() != nil {
			return
		}
		was = items
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

func (s *Server) get(r *http.Request, k Kind, _ []byte) answer {
	if o, ok := s.objects[k.key(r.PathValue("namespace"), r.PathValue("name"))]; ok {
		return answer{http.StatusOK, o}
	}
	return refusal(http.StatusNotFound, "NotFound", r.PathValue("name"))
}

func (s *Server) remove(r *http.Request, k Kind, _ []byte) answer {
	found := s.get(r, k, nil)
	if found.status == http.StatusOK {
		delete(s.objects, k.key(r.PathValue("namespace"), r.PathValue("name")))
		s.announce()
	}
	return found
}

func (s *Server) create(r *http.Request, k Kind, body []byte) answer {
	o, err := s.asked(r, nil, body)
	if err != nil {
		return refusal(http.StatusUnprocessableEntity, "Invalid", err.Error())
	}
	name, _ := metadata(o)["name"].(string)
	if _, ok := s.objects[k.key(r.PathValue("namespace"), name)]; ok {
		return refusal(http.StatusConflict, "AlreadyExists", name)
	}
	return answer{http.StatusCreated, s.put(k, r.PathValue("namespace"), o)}
}

// change replaces or patches an object, unless another version or UID of it is asked for.
func (s *Server) change(r *http.Request, k Kind, body []byte) answer {
	found := s.get(r, k, nil)
	if found.status != http.StatusOK {
		return found
	}
	o, err := s.asked(r, found.object, body)
	if err != nil {
		return refusal(http.StatusUnprocessableEntity, "Invalid", err.Error())
	}
	for _, field := range []string{"resourceVersion", "uid"} {
		if asked := metadata(o)[field]; asked != nil && asked != metadata(found.object)[field] {
			return refusal(http.StatusConflict, "Conflict", "the "+field+" is another")
		}
	}
	return answer{http.StatusOK, s.put(k, r.PathValue("namespace"), o)}
}

// asked returns the object that a request makes of the present one.
func (s *Server) asked(r *http.Request, now Object, body []byte) (o Object, err error) {
	isJSONPatch := r.Header.Get("Content-Type") == "application/json-patch+json"
	if isJSONPatch && s.JSONPatch != nil {
		if body, err = s.JSONPatch(encode(now), body); err != nil {
			return nil, err
		}
	}
	if s.Protobuf != nil && bytes.HasPrefix(body, []byte("k8s\x00")) {
		body, err = s.Protobuf(body)
	}
	if err == nil {
		err = json.Unmarshal(body, &o)
	}
	switch {
	case err != nil:
		s.unknown = append(s.unknown, fmt.Sprintf("%s %s: %v", r.Method, r.URL.Path, err))
	case r.Method == http.MethodPatch && !isJSONPatch:
		o = merged(now, o)
	case isStatus(r):
		o["spec"] = now["spec"]
	}
	return o, err
}

// merged is a merge patch (RFC 7396) that removes nothing.
func merged(o, change Object) Object {
	o = maps.Clone(o)
	for key, value := range change {
		before, _ := o[key].(Object)
		if inner, ok := value.(Object); ok && before != nil {
			value = merged(before, inner)
		}
		o[key] = value
	}
	return o
}

func metadata(o Object) Object {
	m, _ := o["metadata"].(Object)
	return m
}

func encode(o Object) []byte {
	data, err := json.Marshal(o)
	if err != nil {
		panic(err) // texts and numbers always encode
	}
	return data
}

// answer is a status and an object.
type answer struct {
	status int
	object Object
}

func refusal(status int, reason, message string) answer {
	return answer{status, Object{
		"kind": "Status", "apiVersion": "v1", "metadata": Object{}, "status": "Failure", "message": message, "reason": reason, "code": status,
	}}
}

func (a answer) write(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(a.status)
	_, _ = w.Write(encode(a.object)) // the client may have gone
}
