package multus

import (
	"bytes"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// podAnnotations returns the annotations of a pod in the protobuf form, in which the
// daemon writes. The daemon reads JSON as well, but has no choice of writing it.
func podAnnotations(body []byte) (map[string]string, error) {
	encoded, ok := bytes.CutPrefix(body, []byte("k8s\x00"))
	if !ok {
		return nil, fmt.Errorf("not protobuf of Kubernetes: %.20q", body)
	}
	var envelope runtime.Unknown
	var pod corev1.Pod
	err := envelope.Unmarshal(encoded)
	if err == nil {
		err = pod.Unmarshal(envelope.Raw)
	}
	return pod.Annotations, err
}
