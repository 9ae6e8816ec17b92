package daemon

import (
	"context"
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/embedcni/cni/thick/cmd/embedcnid/internal/config"
	"github.com/embedcni/cni/thick/kube"
	"github.com/embedcni/cni/thick/server"
)

// program names the daemon to the API server.
const program = "embedcnid"

// cluster is the API server, as far as the daemon asks it.
type cluster struct {
	pods   *kube.Pods
	events record.EventRecorder // nil: none are written
	sink   record.EventSink
	cast   record.EventBroadcaster
}

// connect prepares the clients. It asks nobody: an API server that is away must not keep the
// daemon from answering DELs. file finds the configuration of a definition that has none.
func connect(c config.Kubernetes, file func(string) ([]byte, error), log *slog.Logger) (*cluster, error) {
	klog.SetSlogLogger(log)
	client, err := clientConfig(c)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	core, err := corev1client.NewForConfig(client)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	definitions, err := dynamic.NewForConfig(client)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	k := &cluster{}
	k.pods, err = kube.New(core, kube.Options{
		Node: c.Node, Networks: definitions, Isolated: c.Isolated, Global: c.Global, File: file, Timeout: c.Timeout, Logger: log,
	})
	if err != nil {
		return nil, err
	}
	if c.Events {
		k.cast = record.NewBroadcaster()
		k.sink = &corev1client.EventSinkImpl{Interface: core.Events("")}
		k.events = k.cast.NewRecorder(scheme.Scheme, corev1.EventSource{Component: program, Host: c.Node})
	}
	return k, nil
}

// clientConfig returns the configuration of the clients.
func clientConfig(c config.Kubernetes) (client *rest.Config, err error) {
	if c.Kubeconfig != "" {
		client, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	} else {
		client, err = rest.InClusterConfig()
	}
	if err != nil {
		return nil, err
	}
	client.QPS, client.Burst = float32(c.QPS), c.Burst
	return rest.AddUserAgent(client, program), nil
}

// run keeps the cache up to date and writes Events, until ctx ends.
func (k *cluster) run(ctx context.Context) {
	if k.events != nil {
		defer k.cast.Shutdown()
		k.cast.StartRecordingToSink(k.sink)
	}
	k.pods.Run(ctx)
}

// condition is the one of the cache. A full cache serves without the API server.
func (k *cluster) condition() (state, string) {
	if !k.pods.Synced() {
		return unmet, "pods and definitions have not been listed yet"
	}
	if err := k.pods.Outage(); err != nil {
		return doubtful, err.Error()
	}
	return met, ""
}

// reasonFailed is the reason of the Events.
const reasonFailed = "NetworkAttachmentFailed"

// report writes an Event to the pod of an ADD that has failed. client-go limits how many are
// written for a pod, and counts those that are the same.
func (k *cluster) report(r *server.Request, err error) {
	if k.events == nil || r.Pod.Name == "" {
		return
	}
	k.events.Eventf(&corev1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: r.Pod.Namespace, Name: r.Pod.Name, UID: types.UID(r.Pod.UID),
	}, corev1.EventTypeWarning, reasonFailed, "interface %s: %v", r.IfName, err)
}
