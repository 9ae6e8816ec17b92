package multus

import (
	"bytes"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// inJSON returns a pod or an Event from the protobuf form, in which the daemon writes. The
// daemon reads JSON as well, but has no choice of writing it.
func inJSON(body []byte) ([]byte, error) {
	var envelope runtime.Unknown
	if err := envelope.Unmarshal(bytes.TrimPrefix(body, []byte("k8s\x00"))); err != nil {
		return nil, err
	}
	o := map[string]interface{ Unmarshal([]byte) error }{"Pod": new(corev1.Pod), "Event": new(corev1.Event)}[envelope.Kind]
	if o == nil {
		return nil, fmt.Errorf("no pod or Event: %s", envelope.Kind)
	}
	if err := o.Unmarshal(envelope.Raw); err != nil {
		return nil, err
	}
	return json.Marshal(o)
}
