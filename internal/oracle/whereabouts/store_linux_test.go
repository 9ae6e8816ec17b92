package whereabouts

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	coordination "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/embedcni/cni/internal/expect"
)

type object = map[string]any

// The resources of the API that whereabouts uses.
const (
	pools        = "ippools"
	reservations = "overlappingrangeipreservations"
	leases       = "leases"
)

// kinds are the kinds of the resources.
var kinds = map[string]string{pools: "IPPool", reservations: "OverlappingRangeIPReservation", leases: "Lease"}

// store is as much of the Kubernetes API as whereabouts asks for: objects of a namespace that
// are read, listed, created, replaced, patched and deleted. As the real API it refuses what
// exists already, a replacement of another version (both 409), and a patch whose tests do not
// hold (422).
type store struct {
	mu       sync.Mutex
	revision int
	objects  map[string]object // by resource and name
	strikes  map[string]strike // at the next request of that name
	unknown  []string          // requests that the store does not know
}

// newStore makes an empty store.
func newStore(t *testing.T) *store {
	t.Helper()
	s := &store{objects: map[string]object{}, strikes: map[string]strike{}}
	t.Cleanup(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		expect.Empty(t, "requests that the store does not know", s.unknown)
	})
	return s
}

// A strike is what befalls one request. apply makes the change that was asked for.
type strike func(r *http.Request, apply func())

// strikeAt has the next request of a name struck: "PATCH ippools/10.1.0.0-24".
func (s *store) strikeAt(request string, f strike) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.strikes[request] = f
}

// waiting returns the strikes that no request has met.
func (s *store) waiting() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.strikes))
}

// take returns the strike at a request, and removes it.
func (s *store) take(request string) strike {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.strikes[request]
	delete(s.strikes, request)
	return f
}

// An answer is a status and an object.
type answer struct {
	status int
	object object
}

// refusal is the answer of the API to a request that fails.
func refusal(status int, reason, name string) answer {
	return answer{status, object{
		"kind": "Status", "apiVersion": "v1", "metadata": object{}, "status": "Failure",
		"message": reason + ": " + name, "reason": reason, "code": status,
	}}
}

// routes returns the handlers of the API.
func (s *store) routes() http.Handler {
	const all = "/apis/{group}/{version}/namespaces/{namespace}/{resource}"
	mux := http.NewServeMux()
	for pattern, serve := range map[string]func(*http.Request, []byte) answer{
		"GET " + all: s.list, "POST " + all: s.create,
		"GET " + all + "/{name}": s.read, "PUT " + all + "/{name}": s.replace,
		"PATCH " + all + "/{name}": s.patch, "DELETE " + all + "/{name}": s.remove,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, serve) })
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, nil) })
	return mux
}

// nameOf is the name of a request in [store.strikeAt], with the name of the object unless it is
// a list.
func nameOf(r *http.Request, body []byte) string {
	name := r.PathValue("name")
	if r.Method == http.MethodPost {
		_, name, _ = decoded(body)
	}
	return r.Method + " " + r.PathValue("resource") + "/" + name
}

func (s *store) serve(w http.ResponseWriter, r *http.Request, do func(*http.Request, []byte) answer) {
	if kinds[r.PathValue("resource")] == "" || do == nil {
		s.mu.Lock()
		s.unknown = append(s.unknown, r.Method+" "+r.URL.Path)
		s.mu.Unlock()
		http.NotFound(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // the client has gone
	}
	body = plain(body)
	var a answer
	apply := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		a = do(r, body)
	}
	if struck := s.take(nameOf(r, body)); struck != nil {
		struck(r, apply)
	} else {
		apply()
	}
	data, err := json.Marshal(a.object)
	if err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(a.status)
	_, _ = w.Write(data) // or the client has gone
}

func key(r *http.Request) string { return r.PathValue("resource") + "/" + r.PathValue("name") }

func (s *store) read(r *http.Request, _ []byte) answer {
	if o, ok := s.objects[key(r)]; ok {
		return answer{http.StatusOK, o}
	}
	return refusal(http.StatusNotFound, "NotFound", key(r))
}

func (s *store) list(r *http.Request, _ []byte) answer {
	items := []object{}
	for _, name := range slices.Sorted(maps.Keys(s.objects)) {
		if strings.HasPrefix(name, key(r)) {
			items = append(items, s.objects[name])
		}
	}
	return answer{http.StatusOK, object{
		"kind": kinds[r.PathValue("resource")] + "List", "apiVersion": r.PathValue("group") + "/" + r.PathValue("version"),
		"metadata": object{"resourceVersion": strconv.Itoa(s.revision)}, "items": items,
	}}
}

func (s *store) create(r *http.Request, body []byte) answer {
	o, name, _ := decoded(body)
	if o == nil {
		return refusal(http.StatusBadRequest, "BadRequest", key(r))
	}
	if _, ok := s.objects[key(r)+name]; ok {
		return refusal(http.StatusConflict, "AlreadyExists", name)
	}
	return answer{http.StatusCreated, s.put(key(r)+name, r.PathValue("namespace"), o)}
}

func (s *store) replace(r *http.Request, body []byte) answer {
	o, _, version := decoded(body)
	if o == nil {
		return refusal(http.StatusBadRequest, "BadRequest", key(r))
	}
	return s.change(r, o, version)
}

// change stores a new version of an object, unless it was made of an older one than the
// present.
func (s *store) change(r *http.Request, o object, version string) answer {
	now, ok := s.objects[key(r)]
	if !ok {
		return refusal(http.StatusNotFound, "NotFound", key(r))
	}
	if version != "" && version != now["metadata"].(object)["resourceVersion"] {
		return refusal(http.StatusConflict, "Conflict", key(r))
	}
	return answer{http.StatusOK, s.put(key(r), r.PathValue("namespace"), o)}
}

func (s *store) patch(r *http.Request, body []byte) answer {
	now, ok := s.objects[key(r)]
	if !ok {
		return refusal(http.StatusNotFound, "NotFound", key(r))
	}
	if r.Header.Get("Content-Type") != "application/json-patch+json" {
		return refusal(http.StatusUnsupportedMediaType, "UnsupportedMediaType", key(r))
	}
	patch, err := jsonpatch.DecodePatch(body)
	if err != nil {
		return refusal(http.StatusBadRequest, "BadRequest", err.Error())
	}
	data, err := json.Marshal(now)
	if err == nil {
		data, err = patch.Apply(data)
	}
	if err != nil {
		return refusal(http.StatusUnprocessableEntity, "Invalid", err.Error())
	}
	o, _, version := decoded(data)
	return s.change(r, o, version)
}

func (s *store) remove(r *http.Request, _ []byte) answer {
	if _, ok := s.objects[key(r)]; !ok {
		return refusal(http.StatusNotFound, "NotFound", key(r))
	}
	delete(s.objects, key(r))
	return answer{http.StatusOK, object{"kind": "Status", "apiVersion": "v1", "metadata": object{}, "status": "Success"}}
}

// plain returns an object in JSON. The client of Kubernetes sends its own kinds in the protobuf
// form, of which the store knows leases.
func plain(body []byte) []byte {
	encoded, ok := bytes.CutPrefix(body, []byte("k8s\x00"))
	if !ok {
		return body
	}
	var envelope runtime.Unknown
	var lease coordination.Lease
	err := envelope.Unmarshal(encoded)
	if err == nil {
		err = lease.Unmarshal(envelope.Raw)
	}
	if err == nil {
		body, err = json.Marshal(lease)
	}
	if err != nil {
		return nil // no object
	}
	return body
}

// decoded returns an object with its name and version; nil if there is none in data.
func decoded(data []byte) (o object, name, version string) {
	if json.Unmarshal(data, &o) != nil {
		return nil, "", ""
	}
	metadata, ok := o["metadata"].(object)
	if !ok {
		return nil, "", ""
	}
	name, _ = metadata["name"].(string)
	version, _ = metadata["resourceVersion"].(string)
	return o, name, version
}

// put stores a version of an object.
func (s *store) put(at, namespace string, o object) object {
	s.revision++
	metadata := maps.Clone(o["metadata"].(object))
	metadata["namespace"], metadata["resourceVersion"] = namespace, strconv.Itoa(s.revision)
	o["metadata"] = metadata
	s.objects[at] = o
	return o
}

// held lists what the store holds for containers, sorted: "10.1.0.1 of a0/eth0" in the pool of
// a range, and "10.1.0.1 reserved by default/a0", over all ranges. With names, only theirs.
func (s *store) held(t *testing.T, containers ...string) []string {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	all := []string{}
	add := func(container, line string) {
		if len(containers) == 0 || slices.Contains(containers, container) {
			all = append(all, line)
		}
	}
	for at, o := range s.objects {
		spec := expect.Value(json.Marshal(o["spec"]))(t)
		switch resource, name, _ := strings.Cut(at, "/"); resource {
		case pools:
			var pool struct {
				Range       netip.Prefix
				Allocations map[string]struct{ ID, IfName string }
			}
			expect.NoError(t, json.Unmarshal(spec, &pool))
			for offset, a := range pool.Allocations {
				n := expect.Value(strconv.Atoi(offset))(t)
				add(a.ID, fmt.Sprintf("%s of %s/%s", nth(pool.Range.Masked().Addr(), n), a.ID, a.IfName))
			}
		case reservations:
			var reservation struct{ PodRef string }
			expect.NoError(t, json.Unmarshal(spec, &reservation))
			add(strings.TrimPrefix(reservation.PodRef, podNamespace+"/"),
				fmt.Sprintf("%s reserved by %s", strings.ReplaceAll(name, "-", ":"), reservation.PodRef))
		}
	}
	slices.Sort(all)
	return all
}

// nth returns the nth address after another one.
func nth(a netip.Addr, n int) netip.Addr {
	for range n {
		a = a.Next()
	}
	return a
}

// lose deletes what the store holds for a container, as somebody does who takes it for dead.
func (s *store) lose(container string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at, o := range s.objects {
		spec, _ := o["spec"].(object)
		if allocations, ok := spec["allocations"].(object); ok {
			changed := maps.Clone(o)
			kept := maps.Clone(allocations)
			maps.DeleteFunc(kept, func(_ string, a any) bool { return a.(object)["id"] == container })
			changed["spec"] = object{"range": spec["range"], "allocations": kept}
			s.put(at, o["metadata"].(object)["namespace"].(string), changed)
		}
		if spec["podref"] == podNamespace+"/"+container {
			delete(s.objects, at)
		}
	}
}
