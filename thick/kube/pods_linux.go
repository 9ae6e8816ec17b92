package kube

import (
	"cmp"
	"context"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/embedcni/cni/thick/multinet"
	"github.com/embedcni/cni/thick/server"
)

// mirrorAnnotation is on the pod that stands in the API for a static pod of the kubelet. Its
// value is the UID that the kubelet, and so the runtime, knows.
const mirrorAnnotation = corev1.MirrorPodAnnotationKey

// UID returns the UID of a pod, for server.Options.PodUID.
//
// It is the cache's, unless the pod there has ended or is being deleted: another of its name
// may have come. A cache that lags behind further than that gives the UID of the pod
// before; SetStatus then fails. Runtimes that send K8S_POD_UID do not depend on it.
func (p *Pods) UID(ctx context.Context, pod server.Pod) (string, error) {
	found, err := p.find(ctx, pod)
	if err != nil {
		return "", err
	}
	return uidOf(found), nil
}

// Networks returns the annotation of the request's pod that names its networks, for
// backend.Options.Networks. It is empty for a request without a pod. Of two pods with one
// name, it is that of the pod with the UID in the request.
func (p *Pods) Networks(ctx context.Context, r *server.Request) (string, error) {
	return p.annotation(ctx, r, multinet.Annotation)
}

// DefaultNetwork returns the annotation that names another default network, as Networks does,
// for backend.Options.DefaultNetwork.
func (p *Pods) DefaultNetwork(ctx context.Context, r *server.Request) (string, error) {
	return p.annotation(ctx, r, multinet.DefaultAnnotation)
}

func (p *Pods) annotation(ctx context.Context, r *server.Request, name string) (string, error) {
	if r.Pod.Name == "" {
		return "", nil
	}
	found, err := p.find(ctx, r.Pod)
	if err != nil {
		return "", err
	}
	return found.Annotations[name], nil
}

// find returns the pod that a runtime means.
func (p *Pods) find(ctx context.Context, pod server.Pod) (*corev1.Pod, error) {
	found, err := persist(ctx, p.timeout, func(ctx context.Context) (*corev1.Pod, error) {
		if found := p.cached(pod); found != nil {
			return found, nil
		}
		found, err := p.client.Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return found, p.refuse(found, pod)
	})
	switch {
	case err == nil:
		return found, nil
	case apierrors.IsNotFound(err):
		// A static pod starts before its mirror exists.
		err = types.NewError(types.ErrTryAgainLater, fmt.Sprintf("there is no pod %s/%s", pod.Namespace, pod.Name), "")
	default:
		err = explained(err, "get", "pods", pod.Namespace+"/"+pod.Name)
	}
	return nil, err
}

// cached returns the pod in the cache, or nil if the API server must be asked: there is
// none, or it may be another of that name.
func (p *Pods) cached(pod server.Pod) *corev1.Pod {
	item, ok, err := p.pods.GetByKey(pod.Namespace + "/" + pod.Name)
	if !ok || err != nil {
		return nil
	}
	found, ok := item.(*corev1.Pod)
	switch {
	case !ok || p.refuse(found, pod) != nil:
		return nil
	case pod.UID == "" && (found.DeletionTimestamp != nil || found.Status.Phase == corev1.PodSucceeded || found.Status.Phase == corev1.PodFailed):
		return nil
	}
	return found
}

// refuse returns an error if a pod of that name is not the one that a runtime means.
func (p *Pods) refuse(found *corev1.Pod, pod server.Pod) error {
	switch {
	case pod.UID != "" && pod.UID != uidOf(found) && pod.UID != string(found.UID):
		return replaced(pod, uidOf(found))
	case found.Spec.NodeName != p.node:
		return types.NewError(types.ErrInvalidEnvironmentVariables, "the pod is of another node",
			fmt.Sprintf("pod %s/%s is on node %q, and this daemon serves %q; if that is this node, Options.Node must have the name in spec.nodeName", pod.Namespace, pod.Name, found.Spec.NodeName, p.node))
	}
	return nil
}

// uidOf returns the UID by which the kubelet knows a pod.
func uidOf(pod *corev1.Pod) string {
	return cmp.Or(pod.Annotations[mirrorAnnotation], string(pod.UID))
}

// replaced is the error for a pod that exists no more, though another has its name.
func replaced(pod server.Pod, by string) error {
	text := fmt.Sprintf("pod %s/%s with UID %s is gone", pod.Namespace, pod.Name, pod.UID)
	if by != "" {
		text += fmt.Sprintf(": one with UID %s has its name", by)
	}
	return types.NewError(types.ErrUnknownContainer, text, "")
}
