package kube_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/thick/kube"
)

// TestRunEndsBesideAnAPIServerThatHangs: while it waits for a list, and for the begin of a watch.
func TestRunEndsBesideAnAPIServerThatHangs(t *testing.T) {
	for _, hangs := range []string{"list", "watch"} {
		t.Run(hangs, func(t *testing.T) {
			asked := make(chan struct{}, 1)
			api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if hangs == "list" || r.URL.Query().Get("watch") != "" {
					select {
					case asked <- struct{}{}:
					default:
					}
					<-r.Context().Done()
					return
				}
				w.Header().Set("Content-Type", "application/json")
				_, _ = w.Write([]byte(`{"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}`))
			}))
			t.Cleanup(api.Close)
			client := expect.Value(corev1client.NewForConfig(&rest.Config{Host: api.URL}))(t)
			pods := expect.Value(kube.New(client, kube.Options{Node: node}))(t)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { defer close(done); pods.Run(ctx) }()
			<-asked
			cancel()
			select {
			case <-done:
			case <-time.After(30 * time.Second):
				t.Error("Run does not return")
				api.CloseClientConnections()
			}
		})
	}
}
