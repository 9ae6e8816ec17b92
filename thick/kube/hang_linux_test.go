package kube_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/thick/kube"
)

// TestRunEndsBesideAnAPIServerThatHangs: while it waits for a list, for the begin of a watch, and
// for as long as an overloaded server asks it to.
func TestRunEndsBesideAnAPIServerThatHangs(t *testing.T) {
	for _, hangs := range []string{"list", "watch", "overloaded watch"} {
		t.Run(hangs, func(t *testing.T) {
			asked := make(chan struct{}, 1)
			api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if hangs == "list" || r.URL.Query().Get("watch") != "" {
					select {
					case asked <- struct{}{}:
					default:
					}
					if hangs == "overloaded watch" {
						overloaded(w)
						return
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
			if hangs == "overloaded watch" {
				expect.Eventually(t, "client-go sleeps", sleeps)
			}
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

// TestAnOverloadedAPIServer does not keep a lookup longer than its time, whatever pause it asks
// for.
func TestAnOverloadedAPIServer(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { overloaded(w) }))
	t.Cleanup(api.Close)
	client := expect.Value(corev1client.NewForConfig(&rest.Config{Host: api.URL}))(t)
	pods := expect.Value(kube.New(client, kube.Options{Node: node, Timeout: time.Second}))(t)
	begun := time.Now()
	_, err := pods.UID(t.Context(), web(""))
	wantCode(t, err, types.ErrTryAgainLater, "overloaded", "no answer within 1s")
	expect.That(t, time.Since(begun) < time.Minute, "it took %v", time.Since(begun))
}

// sleeps reports whether a goroutine of client-go does.
func sleeps() bool {
	stacks := make([]byte, 1<<20)
	return strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "rest.(*NoBackoff).Sleep")
}

func overloaded(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "120")
	w.WriteHeader(http.StatusTooManyRequests)
}
