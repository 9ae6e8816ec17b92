package kube

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apitypes "k8s.io/apimachinery/pkg/types"

	"github.com/embedcni/cni/thick/multinet"
	"github.com/embedcni/cni/thick/server"
)

// SetStatus writes the network status to the annotation of the request's pod, for
// backend.Options.OnStatus. It does nothing for a request without a pod. It never writes to
// another pod of that name, and repeats a write that has met another one.
//
// The rest of the pod stays as it is, also what this version of client-go does not know.
func (p *Pods) SetStatus(ctx context.Context, r *server.Request, value string) error {
	if r.Pod.Name == "" {
		return nil
	}
	pod, err := p.find(ctx, r.Pod)
	if err != nil {
		return err
	}
	// The API server refuses a patch with another UID than the pod has.
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": pod.UID, "annotations": map[string]string{multinet.StatusAnnotation: value},
	}})
	if err != nil {
		return fmt.Errorf("encode the network status: %w", err)
	}
	_, err = persist(ctx, p.timeout, func(ctx context.Context) (none struct{}, err error) { return none, p.patch(ctx, r.Pod, pod, patch) })
	if err != nil {
		return explained(err, "patch", "pods/status", pod.Namespace+"/"+pod.Name)
	}
	return nil
}

// patch changes a pod, unless it was replaced.
func (p *Pods) patch(ctx context.Context, pod server.Pod, found *corev1.Pod, patch []byte) error {
	pods := p.client.Pods(found.Namespace)
	_, err := pods.Patch(ctx, found.Name, apitypes.MergePatchType, patch, metav1.PatchOptions{}, "status")
	switch {
	case apierrors.IsNotFound(err):
		return replaced(pod, "")
	case !apierrors.IsConflict(err) && !apierrors.IsInvalid(err):
		return err
	}
	// The pod is another one, or another writer was faster.
	now, gerr := pods.Get(ctx, found.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(gerr):
		return replaced(pod, "")
	case gerr != nil:
		return gerr
	case now.UID != found.UID:
		return replaced(pod, uidOf(now))
	}
	return err
}
