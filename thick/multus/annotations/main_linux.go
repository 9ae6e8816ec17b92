// Command annotations parses values of the annotation that names the networks of a pod as
// Multus does. It reads a JSON array of strings, and writes one of objects: the networks that
// Multus' parser returns, or its error. With the argument keys it writes the keys that Multus
// has in its configurations and in the elements of the annotation, with the kinds of their values.
package main

import (
	"encoding/json"
	"log"
	"os"

	"gopkg.in/k8snetworkplumbingwg/multus-cni.v4/pkg/k8sclient"
	"gopkg.in/k8snetworkplumbingwg/multus-cni.v4/pkg/types"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type parsed struct {
	Networks []*types.NetworkSelectionElement
	Error    string
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "keys" {
		writeKeys()
		return
	}
	var values []string
	if err := json.NewDecoder(os.Stdin).Decode(&values); err != nil {
		log.Fatal(err)
	}
	all := make([]parsed, len(values))
	for i, value := range values {
		all[i] = parse(value)
	}
	if err := json.NewEncoder(os.Stdout).Encode(all); err != nil {
		log.Fatal(err)
	}
}

// parse parses the annotation of a pod in the namespace "pods". Multus dereferences an
// element that is null.
func parse(value string) (p parsed) {
	defer func() {
		if recovered := recover(); recovered != nil {
			p = parsed{Error: "panic"}
		}
	}()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "pods", Annotations: map[string]string{"k8s.v1.cni.cncf.io/networks": value},
	}}
	networks, err := k8sclient.GetPodNetwork(pod)
	if err != nil {
		return parsed{Error: err.Error()}
	}
	return parsed{Networks: networks}
}
