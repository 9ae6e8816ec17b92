// Package kube answers, by the API server of Kubernetes, the questions that packages server
// and server/backend leave to a daemon: the UID of a pod, the networks in its annotation,
// and their configurations. It writes the network status back to the pod. It is a module of
// its own, so that the library's importers do not require client-go. It is for Linux.
//
//	pods, err := kube.New(clientset.CoreV1(), kube.Options{Node: os.Getenv("NODE_NAME"), Networks: dynamicClient})
//	go pods.Run(ctx)
//	b := backend.New(runtime, backend.Options{
//		Networks: pods.Networks, DefaultNetwork: pods.DefaultNetwork, Lookup: pods.Configuration, OnStatus: pods.SetStatus,
//		Devices: kubelet.Devices{}, // of package kubelet, for networks with a resource
//	})
//	s, err := server.New(b, server.Options{Kubernetes: true, PodUID: pods.UID})
//
// The daemon's service account needs the verbs
//
//	get, list, watch  of pods
//	patch             of pods/status                                            (SetStatus)
//	get, list, watch  of network-attachment-definitions in k8s.cni.cncf.io      (Configuration)
//
// A pod that is not in the cache yet costs a request, and a status does. client-go lets
// five through each second unless rest.Config.QPS says otherwise, which is too few for a
// node that starts many pods at once.
package kube
