package whereabouts

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	coordination "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost/kubeapi"
)

type object = kubeapi.Object

// The kinds of the API that whereabouts uses.
var (
	pools        = kubeapi.Kind{Name: "IPPool", Resource: "ippools", Version: "whereabouts.cni.cncf.io/v1alpha1"}
	reservations = kubeapi.Kind{Name: "OverlappingRangeIPReservation", Resource: "overlappingrangeipreservations", Version: pools.Version}
	leases       = kubeapi.Kind{Name: "Lease", Resource: "leases", Version: "coordination.k8s.io/v1"}
)

// storeNamespace is that of all objects in the store.
const storeNamespace = "kube-system"

// store is the API server, whose requests can be struck.
type store struct {
	*kubeapi.Server

	mu      sync.Mutex
	strikes map[string]strike // at the next request of that name
}

// newStore makes an empty store.
func newStore(t *testing.T) *store {
	t.Helper()
	s := &store{Server: kubeapi.New(t, pools, reservations, leases), strikes: map[string]strike{}}
	s.Protobuf = leaseInJSON
	s.JSONPatch = func(o, patch []byte) ([]byte, error) {
		p, err := jsonpatch.DecodePatch(patch)
		if err != nil {
			return nil, err
		}
		return p.Apply(o)
	}
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

// nameOf is the name of a request in [store.strikeAt], with the name of the object unless it is
// a list.
func nameOf(r *http.Request, body []byte) string {
	_, of, _ := strings.Cut(r.URL.Path, "/namespaces/"+storeNamespace+"/")
	if r.Method == http.MethodPost {
		var o struct{ Metadata struct{ Name string } }
		_ = json.Unmarshal(body, &o) // or it is a lease in the protobuf form
		of = path.Join(of, o.Metadata.Name)
	} else if !strings.Contains(of, "/") {
		of += "/"
	}
	return r.Method + " " + of
}

func (s *store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // the client has gone
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	struck := s.take(nameOf(r, body))
	if struck == nil {
		s.Server.ServeHTTP(w, r)
		return
	}
	answer := httptest.NewRecorder()
	struck(r, func() { s.Server.ServeHTTP(answer, r) })
	maps.Copy(w.Header(), answer.Header())
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes()) // or the client has gone
}

// leaseInJSON returns a lease from the protobuf form, in which the client of Kubernetes sends
// its own kinds.
func leaseInJSON(body []byte) ([]byte, error) {
	var envelope runtime.Unknown
	var lease coordination.Lease
	err := envelope.Unmarshal(bytes.TrimPrefix(body, []byte("k8s\x00")))
	if err == nil {
		err = lease.Unmarshal(envelope.Raw)
	}
	if err != nil {
		return nil, err
	}
	return json.Marshal(lease)
}

// held lists the addresses of containers in the store, sorted: "10.1.0.1 of a0/eth0" in the pool of
// a range, and "10.1.0.1 reserved by default/a0", over all ranges. With names, only theirs.
func (s *store) held(t *testing.T, containers ...string) []string {
	t.Helper()
	all := []string{}
	add := func(container, line string) {
		if len(containers) == 0 || slices.Contains(containers, container) {
			all = append(all, line)
		}
	}
	for _, o := range s.All(pools) {
		var pool struct {
			Range       netip.Prefix
			Allocations map[string]struct{ ID, IfName string }
		}
		expect.NoError(t, json.Unmarshal(expect.Value(json.Marshal(o["spec"]))(t), &pool))
		for offset, a := range pool.Allocations {
			n := expect.Value(strconv.Atoi(offset))(t)
			add(a.ID, fmt.Sprintf("%s of %s/%s", nth(pool.Range.Masked().Addr(), n), a.ID, a.IfName))
		}
	}
	for _, o := range s.All(reservations) {
		podRef, name := o["spec"].(object)["podref"].(string), nameIn(o)
		add(strings.TrimPrefix(podRef, podNamespace+"/"), fmt.Sprintf("%s reserved by %s", strings.ReplaceAll(name, "-", ":"), podRef))
	}
	slices.Sort(all)
	return all
}

func nameIn(o object) string { return o["metadata"].(object)["name"].(string) }

// nth returns the nth address after another one.
func nth(a netip.Addr, n int) netip.Addr {
	for range n {
		a = a.Next()
	}
	return a
}

// lose deletes the addresses of a container from the store, as a reconciler does if it takes the
// container for dead.
func (s *store) lose(container string) {
	for _, o := range s.All(pools) {
		spec := maps.Clone(o["spec"].(object))
		allocations, _ := spec["allocations"].(object)
		kept := maps.Clone(allocations)
		maps.DeleteFunc(kept, func(_ string, a any) bool { return a.(object)["id"] == container })
		spec["allocations"] = kept
		s.Put(pools, storeNamespace, object{"metadata": o["metadata"], "spec": spec})
	}
	for _, o := range s.All(reservations) {
		if o["spec"].(object)["podref"] == podNamespace+"/"+container {
			s.Delete(reservations, storeNamespace, nameIn(o))
		}
	}
}
