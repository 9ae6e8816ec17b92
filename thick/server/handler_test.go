package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/thick/internal/delqueue"
	"github.com/embedcni/cni/thick/server"
)

func TestEveryVerbIsAnswered(t *testing.T) {
	b := &backend{}
	s := newServer(t, b, server.Options{})
	success(t, post(s, "/cni", request("ADD", "c1")), answered)
	success(t, post(s, "/cni", request("CHECK", "c1")), "")
	success(t, post(s, "/cni", request("DEL", "c1", variable("CNI_NETNS", ""))), "")
	success(t, post(s, "/cni", request("STATUS", "")), "")
	success(t, post(s, "/cni", request("GC", "", configured(`{"cniVersion":"1.1.0","name":"n","cni.dev/valid-attachments":[]}`))), "")
	expect.Same(t, "the backend was asked for", b.Verbs(), []string{"ADD", "CHECK", "DEL", "STATUS", "GC"})
	w := post(s, "/cni", []byte(`{"env":{"CNI_COMMAND":"VERSION"}}`))
	var v struct {
		CNIVersion        string
		SupportedVersions []string
	}
	if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil || w.Code != 200 || v.CNIVersion != "1.1.0" || len(v.SupportedVersions) != 7 {
		t.Errorf("VERSION: status %d: %s", w.Code, w.Body)
	}
}

// TestShimsBeforeMultus4AreAnswered: they post to /, and decode each answer.
func TestShimsBeforeMultus4AreAnswered(t *testing.T) {
	b := &backend{}
	var seen []server.Observation
	s := newServer(t, b, server.Options{Observe: func(o server.Observation) { seen = append(seen, o) }})
	success(t, post(s, "/", request("ADD", "c1")), answered)
	success(t, post(s, "/", request("CHECK", "c1")), "{}")
	success(t, post(s, "/", request("DEL", "c1")), "{}")
	expect.Same(t, "the backend was asked for", b.Verbs(), []string{"ADD", "CHECK", "DEL"})
	refused(t, post(s, "/", []byte("null")), 400, 4)
	for _, o := range seen {
		expect.Same(t, "observed path", o.Path, "/cni")
	}
}

func TestTheBackendGetsACheckedRequest(t *testing.T) {
	b := &backend{}
	s := newServer(t, b, server.Options{PluginDirs: []string{"/opt/cni/bin/", "/usr/lib/cni"}})
	before := expect.Value(delqueue.Now())(t)
	odd := "{ \"name\": \"podnet\",\t\"cniVersion\":\"0.3.1\", \"n\": 9007199254740993 }"
	success(t, post(s, "/cni", request("ADD", "c1", configured("%s", odd), variable("CNI_IFNAME", ""),
		variable("CNI_PATH", "/tmp/evil:/usr/lib/cni/more:/opt/cni/bin/../../evil:/opt/cni/bin/:/opt/cni/binary:bin:/opt/cni/bin"),
		variable("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web;K8S_POD_UID=u;K8S_POD_INFRA_CONTAINER_ID=i"))), answered)
	want := &server.Request{
		ContainerID: "c1", NetNS: "/run/netns/c1", IfName: "eth0",
		Args:       map[string]string{"IgnoreUnknown": "1", "K8S_POD_NAMESPACE": "ns", "K8S_POD_NAME": "web", "K8S_POD_UID": "u", "K8S_POD_INFRA_CONTAINER_ID": "i"},
		Pod:        server.Pod{Namespace: "ns", Name: "web", UID: "u", InfraContainerID: "i"},
		PluginDirs: []string{"/usr/lib/cni/more", "/opt/cni/bin"}, Config: json.RawMessage(odd), Network: "podnet", CNIVersion: "0.3.1",
		Began: b.Last().Request.Began,
	}
	if began, err := delqueue.ParseMoment(b.Last().Request.Began); err != nil || began.Boot != before.Boot || began.Nanos < before.Nanos {
		t.Errorf("began at %v, %v, which is before %v", began, err, before)
	}
	expect.Same(t, "ADD", b.Last().Request, want)
	success(t, post(newServer(t, b, server.Options{}), "/cni", request("ADD", "c1")), answered)
	if b.Last().Request.PluginDirs != nil {
		t.Errorf("without plugin directories, CNI_PATH counts: %v", b.Last().Request.PluginDirs)
	}
	success(t, post(s, "/cni", request("GC", "", configured(`{"cniVersion":"1.1.0","name":"n","cni.dev/valid-attachments":[{"containerID":"a","ifname":"eth0"}]}`))), "")
	want = &server.Request{
		PluginDirs: []string{"/opt/cni/bin"}, Network: "n", CNIVersion: "1.1.0", Config: b.Last().Request.Config,
		Valid: []types.GCAttachment{{ContainerID: "a", IfName: "eth0"}},
	}
	expect.Same(t, "GC", b.Last().Request, want)
}

func TestErrorsOfTheBackend(t *testing.T) {
	b := &backend{}
	s := newServer(t, b, server.Options{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	fail := func(err error) *httptest.ResponseRecorder {
		b.Do = func(context.Context, string, *server.Request) (types.Result, error) { return nil, err }
		return post(s, "/cni", request("DEL", "c1"))
	}
	w := fail(errors.Join(errors.New("x"), types.NewError(101, "no port", "details")))
	if got, want := w.Body.String(), `{"code":101,"msg":"no port","details":"details"}`; w.Code != 400 || got != want {
		t.Errorf("status %d: %s; want 400 with %s", w.Code, got, want)
	}
	if w := fail(errors.New("just text")); w.Code != 400 || w.Body.String() != "just text\n" || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/plain") {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
	b.Do = func(context.Context, string, *server.Request) (types.Result, error) { panic("oh") }
	expect.Same(t, "a panic is answered by", refused(t, post(s, "/cni", request("ADD", "c1")), 400, 999), "panic: oh")
	b.Do = func(context.Context, string, *server.Request) (types.Result, error) { return nil, nil }
	if w := post(s, "/cni", request("ADD", "c1")); w.Code != 400 || w.Body.String() != "no result\n" {
		t.Errorf("no result: status %d: %s", w.Code, w.Body)
	}
}

// TestRequestsAreRefusedBeforeTheBackendIsAsked: package wire has more of them.
func TestRequestsAreRefusedBeforeTheBackendIsAsked(t *testing.T) {
	b := &backend{}
	s := newServer(t, b, server.Options{Kubernetes: true, Limits: server.Limits{Request: 4096}})
	for name, c := range map[string]struct {
		body []byte
		code uint
		want string
	}{
		"no JSON":          {[]byte("CNI_COMMAND=ADD"), 6, "request: invalid character"},
		"no namespace":     {request("ADD", "c1", variable("CNI_NETNS", "")), 4, "[CNI_NETNS] missing"},
		"no pod":           {request("DEL", "c1", variable("CNI_ARGS", "A=B")), 4, "[K8S_POD_NAMESPACE,K8S_POD_NAME] missing"},
		"no UID":           {request("ADD", "c1"), 4, "K8S_POD_UID"},
		"no configuration": {request("DEL", "c1", configured("")), 6, "not a JSON object"},
		"a list":           {request("DEL", "c1", configured("[]")), 6, "not a JSON object"},
		"null":             {request("DEL", "c1", configured("null")), 6, "not a JSON object"},
		"CHECK too early":  {request("CHECK", "c1", configured(`{"cniVersion":"0.3.1","name":"n"}`)), 1, "does not allow CHECK"},
		"relative file":    {request("ADD", "c1", configured(`{"name":"n","readinessIndicatorFile":"ready"}`)), 7, "absolute path"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := refused(t, post(s, "/cni", c.body), 400, c.code); !strings.Contains(got, c.want) {
				t.Errorf("%s; want %q", got, c.want)
			}
		})
	}
	expect.Empty(t, "the backend was asked for", b.Verbs())
	large := request("ADD", "c1", configured(`{"name":"n","x":"%s"}`, strings.Repeat("x", 5000)))
	if w := post(s, "/cni", large); w.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/cni", io.MultiReader(bytes.NewReader(large)))) // of unknown length
	if w.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
}

// TestPathsAndMethods: the server has one of Multus' paths less, by which interfaces are
// attached to living containers.
func TestPathsAndMethods(t *testing.T) {
	for path, want := range map[string][3]int{ // GET, POST, PUT
		"/cni": {405, 400, 405}, "/delegate": {404, 404, 404}, "/healthz": {200, 200, 405}, "/readyz": {200, 200, 405},
		"/": {404, 400, 404}, "/metrics": {404, 404, 404}, "/cni/": {404, 404, 404},
	} {
		s := newServer(t, &backend{}, server.Options{})
		for i, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut} {
			w := httptest.NewRecorder()
			s.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader("null"))) // a Multus shim polls with null
			expect.Same(t, method+" "+path+": status", w.Code, want[i])
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	b := &backend{}
	for _, o := range []server.Options{
		{PluginDirs: []string{"bin"}}, {UID: -1}, {UID: 65534},
		{ReadinessFile: "ready"}, {Limits: server.Limits{Queued: -1}},
	} {
		if _, err := server.New(b, o); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
	expect.Fails(t, "a server without a backend was made", expect.Err(server.New(nil, server.Options{})))
}

func TestUIDOfAPod(t *testing.T) {
	b := &backend{}
	var asked []server.Pod
	uid, fail := "u-1", error(nil)
	s := newServer(t, b, server.Options{Kubernetes: true, PodUID: func(_ context.Context, p server.Pod) (string, error) {
		asked = append(asked, p)
		return uid, fail
	}})
	pod := server.Pod{Namespace: "default", Name: "web-0", InfraContainerID: "c1"}
	success(t, post(s, "/cni", request("ADD", "c1")), answered)
	if b.Last().Request.Pod.UID != "u-1" || !reflect.DeepEqual(asked, []server.Pod{pod}) {
		t.Errorf("UID %q, asked for %v", b.Last().Request.Pod.UID, asked)
	}
	success(t, post(s, "/cni", request("ADD", "c1", variable("CNI_ARGS", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b;K8S_POD_UID=sent"))), answered)
	if b.Last().Request.Pod.UID != "sent" || len(asked) != 1 {
		t.Errorf("UID %q, asked for %v", b.Last().Request.Pod.UID, asked)
	}
	fail = errors.New("no such pod")
	success(t, post(s, "/cni", request("DEL", "c1")), "") // the pod is gone
	if b.Last().Request.Pod != pod || len(asked) != 1 {
		t.Errorf("DEL got %+v, asked for %v", b.Last().Request.Pod, asked)
	}
	if got := refused(t, post(s, "/cni", request("ADD", "c1")), 400, 11); !strings.Contains(got, "pod default/web-0: no such pod") {
		t.Error(got)
	}
	fail = types.NewError(7, "not this pod", "")
	refused(t, post(s, "/cni", request("CHECK", "c1")), 400, 7)
	uid, fail = "", nil
	refused(t, post(s, "/cni", request("ADD", "c1")), 400, 11)
	if b.Count("ADD") != 2 || b.Count("CHECK") != 0 {
		t.Errorf("the backend was asked for %v", b.Verbs())
	}
}

func TestObservation(t *testing.T) {
	b := &backend{}
	var seen []server.Observation
	s := newServer(t, b, server.Options{Observe: func(o server.Observation) { seen = append(seen, o) }})
	post(s, "/cni", request("ADD", "c1"))
	b.Do = func(context.Context, string, *server.Request) (types.Result, error) {
		return nil, types.NewError(11, "later", "")
	}
	post(s, "/cni", request("DEL", "c2"))
	post(s, "/cni", []byte(`{"env":{"CNI_COMMAND":"FOO"}}`))
	post(s, "/readyz", nil)
	post(s, "/secret/7", nil)
	var got []server.Observation
	for _, o := range seen {
		if o.Duration <= 0 || o.Duration > time.Minute || o.Queued > o.Duration || (o.Err == nil) != (o.Status == 200 || o.Status == 404) {
			t.Errorf("%+v", o)
		}
		o.Duration, o.Queued, o.Err = 0, 0, nil
		got = append(got, o)
	}
	want := []server.Observation{
		{Path: "/cni", Method: "POST", Status: 200, Verb: "ADD", ContainerID: "c1", IfName: "eth0", Network: "podnet",
			Pod: server.Pod{Namespace: "default", Name: "web-0", InfraContainerID: "c1"}},
		{Path: "/cni", Method: "POST", Status: 400, Verb: "DEL", ContainerID: "c2", IfName: "eth0", Network: "podnet",
			Pod: server.Pod{Namespace: "default", Name: "web-0", InfraContainerID: "c2"}, Code: 11},
		{Path: "/cni", Method: "POST", Status: 400, Code: 4},
		{Path: "/readyz", Method: "POST", Status: 200},
		{Method: "POST", Status: 404},
	}
	expect.Same(t, "observations", got, want)
}
