package kube_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apitypes "k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/scheme"
	corefake "k8s.io/client-go/kubernetes/typed/core/v1/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/thick/backend"
	"github.com/embedcni/cni/thick/kube"
	"github.com/embedcni/cni/thick/multinet"
	"github.com/embedcni/cni/thick/server"
)

const node = "node-1"

// aPod returns a pod shop/web of the node.
func aPod(uid string, change ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web", UID: apitypes.UID(uid),
			Annotations: map[string]string{multinet.Annotation: "storage-" + uid},
		},
		Spec:   corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	for _, c := range change {
		c(pod)
	}
	return pod
}

// web is the pod of a request.
func web(uid string) server.Pod { return server.Pod{Namespace: "shop", Name: "web", UID: uid} }

func request(uid string) *server.Request { return &server.Request{Pod: web(uid)} }

// api is a fake API server with pods. As the real one, it refuses a patch with another UID
// than the pod has.
type api struct {
	corefake.FakeCoreV1
	tracker clienttesting.ObjectTracker
	asked   atomic.Int32 // GETs of pods
}

func (a *api) Tracker() clienttesting.ObjectTracker { return a.tracker }

func newAPI(pods ...*corev1.Pod) *api {
	a := &api{
		FakeCoreV1: corefake.FakeCoreV1{Fake: &clienttesting.Fake{}},
		tracker:    clienttesting.NewObjectTracker(scheme.Scheme, scheme.Codecs.UniversalDecoder()),
	}
	for _, pod := range pods {
		if err := a.tracker.Add(pod); err != nil {
			panic(err)
		}
	}
	a.AddReactor("*", "*", clienttesting.ObjectReaction(a.tracker))
	a.AddWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		w, err := a.tracker.Watch(action.GetResource(), action.GetNamespace())
		return true, w, err
	})
	a.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		a.asked.Add(1)
		return false, nil, nil
	})
	a.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch := action.(clienttesting.PatchAction)
		object, err := a.Tracker().Get(action.GetResource(), action.GetNamespace(), patch.GetName())
		if err != nil {
			return true, nil, err
		}
		var wanted struct{ Metadata struct{ UID apitypes.UID } }
		if err := json.Unmarshal(patch.GetPatch(), &wanted); err != nil {
			return true, nil, err
		}
		if pod := object.(*corev1.Pod); wanted.Metadata.UID != pod.UID {
			return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, pod.Name, errors.New("Precondition failed: UID in precondition"))
		}
		return false, nil, nil
	})
	return a
}

// fails makes the next n calls of a verb on pods fail.
func (a *api) fails(verb string, n int, err error) {
	a.PrependReactor(verb, "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		if n--; n < 0 {
			return false, nil, nil
		}
		return true, nil, err
	})
}

// replace puts another pod in the place of the one of its name.
func (a *api) replace(t *testing.T, by *corev1.Pod) {
	t.Helper()
	pods := corev1.SchemeGroupVersion.WithResource("pods")
	expect.NoError(t, errors.Join(a.Tracker().Delete(pods, by.Namespace, by.Name), a.Tracker().Add(by)))
}

// status returns the status of the pod that is there.
func (a *api) status(t *testing.T) string {
	t.Helper()
	pod := expect.Value(a.Tracker().Get(corev1.SchemeGroupVersion.WithResource("pods"), "shop", "web"))(t)
	return pod.(*corev1.Pod).Annotations[multinet.StatusAnnotation]
}

// newPods returns pods whose cache is empty until run.
func newPods(t *testing.T, a *api, change ...func(*kube.Options)) *kube.Pods {
	t.Helper()
	o := kube.Options{Node: node, Timeout: 5 * time.Second}
	for _, c := range change {
		c(&o)
	}
	return expect.Value(kube.New(a, o))(t)
}

// run fills the cache and keeps it until the test ends. Afterwards nothing runs.
func run(t *testing.T, a *api, pods *kube.Pods, uid string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); pods.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case <-done:
		case <-time.After(30 * time.Second):
			t.Error("Run does not return")
		}
	})
	expect.Eventually(t, "the cache", func() bool { // a lookup that asks nobody is its
		before := a.asked.Load()
		_, err := pods.Networks(t.Context(), request(uid))
		return err == nil && a.asked.Load() == before
	})
}

// wantCode compares the code of an error, and words in its text.
func wantCode(t *testing.T, err error, code uint, words ...string) {
	t.Helper()
	var said *types.Error
	if !errors.As(err, &said) || said.Code != code {
		t.Fatalf("error %v, want code %d", err, code)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %v, want %q in it", err, w)
		}
	}
}

// wantUID compares the UID of the pod that a request without one means.
func wantUID(t *testing.T, pods *kube.Pods, uid string) {
	t.Helper()
	expect.Same(t, "UID", expect.Value(pods.UID(t.Context(), web("")))(t), uid)
}

// wantNetworks wants the annotation of the pod with a UID.
func wantNetworks(t *testing.T, pods *kube.Pods, uid string) {
	t.Helper()
	expect.Same(t, "networks", expect.Value(pods.Networks(t.Context(), request(uid)))(t), "storage-"+uid)
}

func TestAPodIsCached(t *testing.T) {
	a := newAPI(aPod("uid-1"))
	pods := newPods(t, a)
	expect.Same(t, "synced before Run", pods.Synced(), false)
	run(t, a, pods, "uid-1")
	expect.Eventually(t, "Synced", pods.Synced)
	before := a.asked.Load()
	for range 3 {
		wantUID(t, pods, "uid-1")
	}
	wantNetworks(t, pods, "uid-1")
	expect.Same(t, "GETs", a.asked.Load()-before, 0)
	for _, action := range a.Actions() {
		var fields string
		switch action := action.(type) {
		case clienttesting.ListActionImpl:
			fields = action.GetListRestrictions().Fields.String()
		case clienttesting.WatchActionImpl:
			fields = action.GetWatchRestrictions().Fields.String()
		default:
			continue
		}
		expect.Same(t, action.GetVerb()+" of pods with the fields", fields, "spec.nodeName="+node)
	}
}

// TestACacheThatIsLate: a pod is asked for while the cache lacks it, and while the cache has
// another pod of its name.
func TestACacheThatIsLate(t *testing.T) {
	a := newAPI(aPod("uid-1"))
	pods := newPods(t, a)
	wantNetworks(t, pods, "uid-1")
	run(t, a, pods, "uid-1")

	// From now on the cache learns nothing of what GET sees.
	get := func(pod *corev1.Pod) {
		a.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return true, pod, nil })
	}
	get(aPod("uid-2"))
	wantNetworks(t, pods, "uid-2")
	wantNetworks(t, pods, "uid-1")
	_, err := pods.Networks(t.Context(), request("uid-0"))
	wantCode(t, err, types.ErrUnknownContainer, "uid-0", "uid-2")
}

// TestAPodThatEnds is not taken for the next one of its name.
func TestAPodThatEnds(t *testing.T) {
	for name, ends := range map[string]func(*corev1.Pod){
		"deleted": func(p *corev1.Pod) {
			p.DeletionTimestamp, p.Finalizers = &metav1.Time{Time: time.Now()}, []string{"test/keep"}
		},
		"succeeded": func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded },
		"failed":    func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed },
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(aPod("uid-1", ends))
			pods := newPods(t, a)
			run(t, a, pods, "uid-1")
			a.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return true, aPod("uid-2"), nil })
			wantUID(t, pods, "uid-2")
		})
	}
}

// TestAStaticPod: the kubelet and the API have different UIDs for it.
func TestAStaticPod(t *testing.T) {
	a := newAPI(aPod("uid-of-mirror", func(p *corev1.Pod) { p.Annotations[corev1.MirrorPodAnnotationKey] = "hash" }))
	pods := newPods(t, a)
	wantUID(t, pods, "hash")
	for _, uid := range []string{"hash", "uid-of-mirror"} {
		if err := pods.SetStatus(t.Context(), request(uid), "status of "+uid); err != nil || a.status(t) != "status of "+uid {
			t.Errorf("%s: status %q, %v", uid, a.status(t), err)
		}
	}
}

func TestAnAPIServerThatFails(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for name, c := range map[string]struct {
		err  error
		n    int // failed GETs
		code uint
		says []string
	}{
		"gone for a moment":   {errors.New("connection refused"), 2, 0, nil},
		"overloaded":          {apierrors.NewTooManyRequests("later", 1), 2, 0, nil},
		"starts":              {apierrors.NewServiceUnavailable("starting"), 2, 0, nil},
		"gone":                {errors.New("connection refused"), 1 << 20, types.ErrTryAgainLater, []string{"connection refused", "2s"}},
		"no right":            {apierrors.NewForbidden(pods, "web", errors.New("no role")), 1, types.ErrTryAgainLater, []string{"no role", "service account", "get"}},
		"nobody":              {apierrors.NewUnauthorized("expired"), 1, types.ErrTryAgainLater, []string{"does not accept the token", "service account"}},
		"no such pod":         {apierrors.NewNotFound(pods, "web"), 1, types.ErrTryAgainLater, []string{"no pod shop/web"}},
		"does not understand": {apierrors.NewBadRequest("what"), 1, types.ErrTryAgainLater, []string{"what"}},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(aPod("uid-1"))
			a.fails("get", c.n, c.err)
			p := newPods(t, a, func(o *kube.Options) {
				if o.Timeout = time.Minute; c.n > 2 {
					o.Timeout = 2 * time.Second
				}
			})
			begun := time.Now()
			uid, err := p.UID(t.Context(), web(""))
			if c.code == 0 {
				if uid != "uid-1" || err != nil {
					t.Errorf("UID %q, %v", uid, err)
				}
				return
			}
			wantCode(t, err, c.code, c.says...)
			if took := time.Since(begun); took > 30*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// TestACallThatEnds does not wait for the API server any more.
func TestACallThatEnds(t *testing.T) {
	a := newAPI()
	a.fails("get", 1<<20, errors.New("connection refused"))
	pods := newPods(t, a, func(o *kube.Options) { o.Timeout = time.Hour })
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the client has gone"))
	_, err := pods.UID(ctx, web(""))
	wantCode(t, err, types.ErrTryAgainLater, "the client has gone")
}

// TestTheCacheServesWithoutTheAPIServer: as long as the pod is not known to have ended.
func TestTheCacheServesWithoutTheAPIServer(t *testing.T) {
	a := newAPI(aPod("uid-1"))
	pods := newPods(t, a)
	run(t, a, pods, "uid-1")
	a.fails("*", 1<<20, errors.New("connection refused"))
	wantUID(t, pods, "uid-1")
}

// TestAWatchThatFails is reported, with its reason, and pods are asked for one by one.
func TestAWatchThatFails(t *testing.T) {
	a := newAPI(aPod("uid-1"))
	a.fails("list", 1<<20, apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New("no role")))
	lines, in := io.Pipe()
	pods := newPods(t, a, func(o *kube.Options) { o.Logger = slog.New(slog.NewTextHandler(in, nil)) })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); pods.Run(ctx) }()
	line, err := bufio.NewReader(lines).ReadString('\n')
	if err != nil || !strings.Contains(line, "resource=pods") || !strings.Contains(line, "no role") {
		t.Errorf("%q, %v", line, err)
	}
	wantUID(t, pods, "uid-1")
	cancel()
	if err := lines.Close(); err != nil { // further lines are dropped
		t.Error(err)
	}
	<-done
}

func TestAPodOfAnotherNode(t *testing.T) {
	a := newAPI(aPod("uid-1", func(p *corev1.Pod) { p.Spec.NodeName = "node-2" }))
	_, err := newPods(t, a).UID(t.Context(), web(""))
	wantCode(t, err, types.ErrInvalidEnvironmentVariables, "node-2", "Options.Node")
}

func TestTheStatusIsWritten(t *testing.T) {
	invalid := apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "web", nil)
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "web", errors.New("another writer"))
	for name, c := range map[string]struct {
		meanwhile *corev1.Pod // is there when the patch comes
		gone      bool
		n         int // failed patches
		err       error
		code      uint
		says      []string
	}{
		"at once":                       {},
		"beside another writer":         {n: 3, err: conflict},
		"when the server is back":       {n: 2, err: errors.New("connection refused")},
		"not to another pod":            {meanwhile: aPod("uid-2"), code: types.ErrUnknownContainer, says: []string{"uid-1", "uid-2"}},
		"not to a pod that is gone":     {gone: true, code: types.ErrUnknownContainer, says: []string{"uid-1"}},
		"not against the server's will": {n: 1, err: invalid, code: types.ErrTryAgainLater, says: []string{"invalid"}},
		"not without the right": {n: 1, err: apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "web", errors.New("no role")),
			code: types.ErrTryAgainLater, says: []string{"patch", "pods/status"}},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(aPod("uid-1"))
			pods := newPods(t, a)
			run(t, a, pods, "uid-1")
			a.fails("patch", c.n, c.err)
			deleted := corev1.SchemeGroupVersion.WithResource("pods")
			switch {
			case c.meanwhile != nil:
				a.replace(t, c.meanwhile)
			case c.gone:
				expect.NoError(t, a.Tracker().Delete(deleted, "shop", "web"))
			}
			err := pods.SetStatus(t.Context(), request("uid-1"), "[]")
			if c.code != 0 {
				// The cache may have heard of it: then there is no patch at all.
				if said := (*types.Error)(nil); c.gone && errors.As(err, &said) && said.Code == types.ErrTryAgainLater {
					return
				}
				wantCode(t, err, c.code, c.says...)
				if !c.gone && a.status(t) != "" {
					t.Errorf("status %q", a.status(t))
				}
				return
			}
			if got := a.status(t); got != "[]" || err != nil {
				t.Errorf("status %q, %v", got, err)
			}
			for _, action := range a.Actions() {
				if action.GetVerb() == "patch" && action.GetSubresource() != "status" {
					t.Errorf("patch of %q", action.GetSubresource())
				}
			}
		})
	}
}

func TestARequestWithoutAPod(t *testing.T) {
	pods := newPods(t, newAPI())
	value, err := pods.Networks(t.Context(), &server.Request{})
	if value != "" || err != nil || pods.SetStatus(t.Context(), &server.Request{}, "[]") != nil {
		t.Errorf("%q, %v", value, err)
	}
}

var definitions = schema.GroupVersionResource{Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions"}

// definition returns a NetworkAttachmentDefinition.
func definition(namespace, name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
		"metadata": map[string]any{"namespace": namespace, "name": name}, "spec": spec,
	}}
}

func newDefinitions(objects ...*unstructured.Unstructured) (*dynamicfake.FakeDynamicClient, error) {
	client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{definitions: "NetworkAttachmentDefinitionList"})
	var errs []error
	for _, o := range objects { // the fake would guess another resource
		errs = append(errs, client.Tracker().Create(definitions, o, o.GetNamespace()))
	}
	return client, errors.Join(errs...)
}

func TestNetworkAttachmentDefinitions(t *testing.T) {
	const config = `{"cniVersion": "1.0.0", "type": "macvlan"}`
	objects := []*unstructured.Unstructured{
		definition("shop", "storage", map[string]any{"config": config}), definition("other", "storage", map[string]any{"config": config}),
		definition("default", "storage", map[string]any{"config": config}), definition("shop", "file", map[string]any{}),
		definition("shop", "lost", map[string]any{}), definition("shop", "odd", map[string]any{"config": int64(1)}),
	}
	files := func(o *kube.Options) {
		o.File = func(name string) ([]byte, error) {
			if name != "file" {
				return nil, fmt.Errorf("no file for %s", name)
			}
			return []byte(config), nil
		}
	}
	isolated := func(o *kube.Options) { o.Isolated, o.Global = true, []string{"default"} }
	multus := func(config string) func(*server.Request) {
		return func(r *server.Request) { r.Config = json.RawMessage(config) }
	}
	for name, c := range map[string]struct {
		of      multinet.Selection
		options func(*kube.Options)
		code    uint
		says    []string
		asks    func(*server.Request)
	}{
		"isolated, open":                  {of: multinet.Selection{Namespace: "other", Name: "storage", Open: true}, options: isolated},
		"isolated by Multus' key":         {multinet.Selection{Namespace: "other", Name: "storage"}, nil, types.ErrInvalidNetworkConfig, []string{"shop", "other"}, multus(`{"namespaceIsolation": true}`)},
		"isolated by it, of default":      {of: multinet.Selection{Namespace: "default", Name: "storage"}, asks: multus(`{"namespaceIsolation": true}`)},
		"isolated by it, of a global":     {of: multinet.Selection{Namespace: "other", Name: "storage"}, asks: multus(`{"namespaceIsolation": true, "globalNamespaces": "a, other"}`)},
		"isolated by it, default unnamed": {multinet.Selection{Namespace: "default", Name: "storage"}, nil, types.ErrInvalidNetworkConfig, []string{"default"}, multus(`{"namespaceIsolation": true, "globalNamespaces": "a"}`)},
		"of the pod's namespace":          {of: multinet.Selection{Namespace: "shop", Name: "storage"}},
		"of another namespace":            {of: multinet.Selection{Namespace: "other", Name: "storage"}},
		"isolated, of the pod's":          {of: multinet.Selection{Namespace: "shop", Name: "storage"}, options: isolated},
		"isolated, of a global":           {of: multinet.Selection{Namespace: "default", Name: "storage"}, options: isolated},
		"isolated, of another":            {multinet.Selection{Namespace: "other", Name: "storage"}, isolated, types.ErrInvalidNetworkConfig, []string{"shop", "other"}, nil},
		"missing":                         {multinet.Selection{Namespace: "shop", Name: "none"}, nil, types.ErrInvalidNetworkConfig, []string{"shop/none"}, nil},
		"in a file of the node":           {of: multinet.Selection{Namespace: "shop", Name: "file"}, options: files},
		"in no file of the node":          {multinet.Selection{Namespace: "shop", Name: "lost"}, files, types.ErrInvalidNetworkConfig, []string{"shop/lost", "spec.config", "no file for lost"}, nil},
		"without a configuration":         {multinet.Selection{Namespace: "shop", Name: "file"}, nil, types.ErrInvalidNetworkConfig, []string{"shop/file", "spec.config"}, nil},
		"with an odd configuration":       {multinet.Selection{Namespace: "shop", Name: "odd"}, nil, types.ErrInvalidNetworkConfig, []string{"shop/odd"}, nil},
		"where nobody looks them up":      {multinet.Selection{Namespace: "shop", Name: "storage"}, func(o *kube.Options) { o.Networks = nil }, types.ErrInvalidNetworkConfig, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(aPod("uid-1"))
			networks := expect.Value(newDefinitions(objects...))(t)
			pods := newPods(t, a, func(o *kube.Options) {
				o.Networks = networks
				if c.options != nil {
					c.options(o)
				}
			})
			for _, from := range []string{"the API server", "the cache"} {
				r := request("uid-1")
				if c.asks != nil {
					c.asks(r)
				}
				got, err := pods.Configuration(t.Context(), r, c.of)
				switch {
				case c.code != 0:
					wantCode(t, err, c.code, c.says...)
				case err != nil || string(got.Config) != config:
					t.Errorf("from %s: %s, %v", from, got, err)
				}
				if from != "the cache" {
					run(t, a, pods, "uid-1")
				}
			}
		})
	}
}

// TestDefinitionsAreCached: when they are, the API server is not asked.
func TestDefinitionsAreCached(t *testing.T) {
	networks, err := newDefinitions(definition("shop", "storage", map[string]any{"config": "{}"}))
	expect.NoError(t, err)
	var asked atomic.Int32
	networks.PrependReactor("get", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		asked.Add(1)
		return true, nil, errors.New("connection refused")
	})
	a := newAPI(aPod("uid-1"))
	pods := newPods(t, a, func(o *kube.Options) { o.Networks, o.Timeout = networks, 2*time.Second })
	_, err = pods.Configuration(t.Context(), request("uid-1"), multinet.Selection{Namespace: "shop", Name: "storage"})
	wantCode(t, err, types.ErrTryAgainLater, "connection refused", "network-attachment-definitions")
	run(t, a, pods, "uid-1")
	expect.Eventually(t, "the definition in the cache", func() bool {
		_, err := pods.Configuration(t.Context(), request("uid-1"), multinet.Selection{Namespace: "shop", Name: "storage"})
		return err == nil
	})
	before := asked.Load()
	if _, err := pods.Configuration(t.Context(), request("uid-1"), multinet.Selection{Namespace: "shop", Name: "storage"}); err != nil || asked.Load() != before {
		t.Errorf("%v; %d GETs", err, asked.Load()-before)
	}
}

func TestOptionsThatAreRefused(t *testing.T) {
	for what, o := range map[string]kube.Options{
		"no node": {}, "a negative timeout": {Node: node, Timeout: -1},
	} {
		if _, err := kube.New(newAPI(), o); err == nil {
			t.Errorf("%s is accepted", what)
		}
	}
	if _, err := kube.New(nil, kube.Options{Node: node}); err == nil {
		t.Error("no client is accepted")
	}
}

// The methods are those that a backend and a server ask for.
var _ = func(p *kube.Pods) (backend.Options, server.Options) {
	return backend.Options{Networks: p.Networks, DefaultNetwork: p.DefaultNetwork, Lookup: p.Configuration, OnStatus: p.SetStatus}, server.Options{PodUID: p.UID}
}

// A daemon looks up the pod of a request, and the networks that its annotation names.
func Example() {
	client := newAPI(aPod("uid-1")) // in place of CoreV1() of a clientset
	networks, err := newDefinitions(definition("shop", "storage-uid-1", map[string]any{"config": `{"type": "macvlan"}`}))
	if err != nil {
		fmt.Println(err)
		return
	}
	pods, err := kube.New(client, kube.Options{Node: "node-1", Networks: networks})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stopped := make(chan struct{})
	go func() { defer close(stopped); pods.Run(ctx) }()

	r := &server.Request{Pod: server.Pod{Namespace: "shop", Name: "web", UID: "uid-1"}}
	annotation, err := pods.Networks(ctx, r)
	if err != nil {
		fmt.Println(err)
		return
	}
	selected, err := multinet.Parse(annotation, r.Pod.Namespace)
	if err != nil {
		fmt.Println(err)
		return
	}
	config, err := pods.Configuration(ctx, r, selected[0])
	fmt.Println(selected[0], string(config.Config), err)

	cancel()
	<-stopped
	// Output: shop/storage-uid-1 {"type": "macvlan"} <nil>
}

// TestMultusAnnotations: the default network of a pod, and the resource of a network.
func TestMultusAnnotations(t *testing.T) {
	fast := definition("shop", "fast", map[string]any{"config": `{"type": "sriov"}`})
	fast.SetAnnotations(map[string]string{multinet.ResourceAnnotation: "vendor.com/vf"})
	networks := expect.Value(newDefinitions(fast))(t)
	a := newAPI(aPod("uid-1", func(pod *corev1.Pod) { pod.Annotations[multinet.DefaultAnnotation] = "infra/fast" }))
	pods := newPods(t, a, func(o *kube.Options) { o.Networks = networks })
	for _, from := range []string{"the API server", "the cache"} {
		value, err := pods.DefaultNetwork(t.Context(), request("uid-1"))
		expect.NoError(t, err)
		expect.Same(t, "default network from "+from, value, "infra/fast")
		found, err := pods.Configuration(t.Context(), request("uid-1"), multinet.Selection{Namespace: "shop", Name: "fast"})
		expect.NoError(t, err)
		expect.Same(t, "resource from "+from, found.Resource, "vendor.com/vf")
		if from != "the cache" {
			run(t, a, pods, "uid-1")
		}
	}
}
