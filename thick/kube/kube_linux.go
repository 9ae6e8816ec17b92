package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
)

// Options configure Pods.
type Options struct {
	// Node is the name of this node, as spec.nodeName of its pods has it. A daemon in a
	// pod gets it by the downward API. Only pods of this node are cached, and served.
	Node string
	// Networks is the client for NetworkAttachmentDefinitions. Without it Configuration
	// refuses.
	Networks dynamic.Interface
	// Isolated refuses a pod the networks of other namespaces than its own, but for
	// those in Global.
	Isolated bool
	Global   []string
	// File returns the configuration of a definition without spec.config, by the name of
	// the definition, which is that of a network in a file on the node. Without File such a
	// definition is refused.
	File func(name string) ([]byte, error)
	// Timeout is the time of one lookup, or of writing one status, with its repetitions
	// while the API server does not answer. The default is ten seconds.
	Timeout time.Duration
	// Logger receives the errors of watching; nil is slog.Default().
	Logger *slog.Logger
}

// Pods are the pods of one node. Use New to make them. The methods are safe for concurrent
// use. Their errors are *types.Errors of CNI: code 11, "try again later", where another
// attempt may succeed, and 3, "unknown container", for a pod that exists no more.
type Pods struct {
	client    corev1client.PodsGetter
	node      string
	networks  dynamic.Interface
	isolated  bool
	global    []string
	file      func(string) ([]byte, error)
	timeout   time.Duration
	end       context.CancelFunc // of lists and watches
	informers []cache.SharedIndexInformer
	pods      cache.Store
	configs   cache.Store // nil without Networks
	outages   sync.Map    // by resource: the outage of one that is not watched
}

// outage is the first moment, and the last error, of requests that fail.
type outage struct {
	since time.Time
	why   error
}

// New returns the pods of a node. The client is CoreV1() of a clientset. They are looked up
// from the first moment, one by one until Run has filled the cache.
func New(client corev1client.PodsGetter, o Options) (*Pods, error) {
	switch {
	case client == nil:
		return nil, errors.New("kube: no client")
	case o.Node == "":
		return nil, errors.New("kube: no name of the node: in a pod, have the downward API put spec.nodeName into its environment")
	case o.Timeout < 0:
		return nil, fmt.Errorf("kube: negative timeout %v", o.Timeout)
	}
	p := &Pods{client: client, node: o.Node, networks: o.Networks, isolated: o.Isolated, global: slices.Clone(o.Global), file: o.File, timeout: o.Timeout}
	if p.timeout == 0 {
		p.timeout = 10 * time.Second
	}
	logger := o.Logger
	if logger == nil {
		logger = slog.Default()
	}
	ctx, end := context.WithCancel(context.Background())
	p.end = end
	var err error
	all := client.Pods(metav1.NamespaceAll)
	p.pods, err = follow(ctx, p, &corev1.Pod{}, "pods", logger, fields.OneTermEqualSelector("spec.nodeName", o.Node).String(), all.List, all.Watch)
	if err == nil && o.Networks != nil {
		configs := o.Networks.Resource(definitions)
		p.configs, err = follow(ctx, p, &unstructured.Unstructured{}, definitions.Resource, logger, "", configs.List, configs.Watch)
	}
	if err != nil {
		end()
		return nil, err
	}
	return p, nil
}

// follow prepares an informer for Run, and returns its cache. selector is of fields. The end of
// ctx ends requests that are not answered: an informer waits for the begin of a watch.
func follow[L runtime.Object](ctx context.Context, p *Pods, object runtime.Object, what string, logger *slog.Logger, selector string,
	list func(context.Context, metav1.ListOptions) (L, error), watches func(context.Context, metav1.ListOptions) (watch.Interface, error)) (cache.Store, error) {
	// client-go says nothing while it repeats a watch that is refused a connection, so each
	// request reports its own error.
	report := func(err error) {
		if err != nil && ctx.Err() == nil && !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) { // a list follows
			logger.Warn("watch the API server", "resource", what, "error", err)
			first, _ := p.outages.LoadOrStore(what, outage{since: time.Now()})
			p.outages.Store(what, outage{first.(outage).since, err})
		}
	}
	informer := cache.NewSharedIndexInformer(&cache.ListWatch{
		ListFunc: func(o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			found, err := list(ctx, o)
			report(err)
			return found, err
		},
		WatchFunc: func(o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			w, err := inTime(ctx, func(ctx context.Context) (watch.Interface, error) { return watches(ctx, o) })
			if report(err); err == nil {
				p.outages.Delete(what)
			}
			return w, err
		},
	}, object, 0, cache.Indexers{})
	err := errors.Join(informer.SetTransform(trim), informer.SetWatchErrorHandler(func(*cache.Reflector, error) {}))
	if err != nil {
		return nil, fmt.Errorf("kube: %s: %w", what, err)
	}
	p.informers = append(p.informers, informer)
	return informer.GetStore(), nil
}

// Run keeps the cache up to date until the context ends. Call it once. While the API server
// does not answer, Run tries again, and lookups get the cached objects.
func (p *Pods) Run(ctx context.Context) {
	context.AfterFunc(ctx, p.end)
	var all sync.WaitGroup
	for _, informer := range p.informers {
		all.Add(1)
		go func() {
			defer all.Done()
			informer.Run(ctx.Done())
		}()
	}
	all.Wait()
}

// Synced reports whether Run has filled the cache. Before, each lookup is a request.
func (p *Pods) Synced() bool {
	return !slices.ContainsFunc(p.informers, func(i cache.SharedIndexInformer) bool { return !i.HasSynced() })
}

// Outage returns an error while the API server cannot be watched: the reason, and since when. The
// cache serves as it was then.
func (p *Pods) Outage() (err error) {
	p.outages.Range(func(what, o any) bool {
		err = fmt.Errorf("%s have not been watched since %s: %w", what, o.(outage).since.UTC().Format(time.RFC3339), o.(outage).why)
		return false
	})
	return err
}

// trim drops of a pod what nobody here asks for, which is nearly all of it.
func trim(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Annotations: pod.Annotations,
			ResourceVersion: pod.ResourceVersion, DeletionTimestamp: pod.DeletionTimestamp,
		},
		Spec:   corev1.PodSpec{NodeName: pod.Spec.NodeName},
		Status: corev1.PodStatus{Phase: pod.Status.Phase},
	}, nil
}
