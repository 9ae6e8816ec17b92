// Package kubelet asks the kubelet of a node which devices it has given to pods, and keeps the
// files that describe them, for backend.Options.Devices. Networks with the annotation
// k8s.v1.cni.cncf.io/resourceName need it, such as those of SR-IOV.
//
// A daemon in a container needs the directories /var/lib/kubelet/pod-resources and
// /var/run/k8s.cni.cncf.io of its host, at the same paths. The package is for Linux.
package kubelet
