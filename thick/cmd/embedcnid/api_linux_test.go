package main

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/rest"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost/kubeapi"
)

// object is one of the API.
type object = kubeapi.Object

// api is the tests' own API server. It allows the daemon what rules do, and the administrator
// everything.
type api struct {
	*kubeapi.Endpoint
	t      *testing.T
	server *kubeapi.Server

	mu    sync.Mutex
	rules []rbacv1.PolicyRule
}

func newAPI(t *testing.T) *api {
	t.Helper()
	a := &api{t: t, server: kubeapi.New(t, kubeapi.Pod, kubeapi.Definition, kubeapi.Event), rules: clusterRules(t)}
	a.server.Refuse = a.refuse
	a.listen("127.0.0.1:0")
	t.Cleanup(a.kill)
	return a
}

// administrator is the token of who may do everything.
const administrator = "administrator"

func (a *api) client(admin bool) *rest.Config {
	c := &rest.Config{
		Host: "https://" + a.Address(), BearerToken: "daemon", ContentConfig: rest.ContentConfig{ContentType: "application/json"},
		TLSClientConfig: rest.TLSClientConfig{CAData: a.CA()},
	}
	if admin {
		c.BearerToken = administrator
	}
	return c
}

func (a *api) allow(rules []rbacv1.PolicyRule) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rules = rules
}

func (a *api) kill() { a.Stop() }

// begin serves at the address of the first time.
func (a *api) begin() { a.listen(a.Address()) }

func (a *api) listen(address string) {
	a.Endpoint = kubeapi.Listen(expect.Value(net.Listen("tcp", address))(a.t), a.server)
}

// refuse says why a request is forbidden, as the API server's authorizer does. Of pods the
// daemon must ask for its node's.
func (a *api) refuse(r *http.Request, verb, group, resource string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	isAllowed := slices.ContainsFunc(a.rules, func(r rbacv1.PolicyRule) bool {
		return slices.Contains(r.Verbs, verb) && slices.Contains(r.APIGroups, group) && slices.Contains(r.Resources, resource)
	})
	if selector := r.URL.Query().Get("fieldSelector"); resource == "pods" && (verb == "list" || verb == "watch") && selector != "spec.nodeName=node-1" {
		resource, isAllowed = fmt.Sprintf("pods of %q", selector), false
	}
	if isAllowed || r.Header.Get("Authorization") == "Bearer "+administrator {
		return ""
	}
	return fmt.Sprintf("User %q cannot %s resource %q in API group %q", serviceAccount, verb, resource, group)
}
