package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	rbacclient "k8s.io/client-go/kubernetes/typed/rbac/v1"
	"k8s.io/client-go/rest"

	"github.com/embedcni/cni/internal/expect"
)

// apiServerVariable of the environment has the path of kube-apiserver, in make cluster.
const apiServerVariable = "EMBEDCNID_APISERVER"

// Addresses in the namespace of the tests.
const (
	etcdAt       = "http://127.0.0.1:2379"
	etcdPeersAt  = "http://127.0.0.1:2380"
	kubernetesAt = "https://127.0.0.1:6443"
)

// kubernetes is Kubernetes' API server with an etcd, both of one test, and with the manifests
// applied by kubectl.
type kubernetes struct {
	t       *testing.T
	dir     string
	program string
	process *exec.Cmd
	ca      []byte
	token   string // of the service account
}

func newKubernetes(s *site, program string) *kubernetes {
	s.t.Helper()
	k := &kubernetes{t: s.t, dir: s.t.TempDir(), program: program}
	etcd := k.run("etcd", "--data-dir="+k.path("etcd"), "--unsafe-no-fsync", "--listen-client-urls="+etcdAt, "--advertise-client-urls="+etcdAt,
		"--listen-peer-urls="+etcdPeersAt, "--initial-advertise-peer-urls="+etcdPeersAt, "--initial-cluster=default="+etcdPeersAt)
	s.t.Cleanup(func() { k.end(etcd) })
	key := expect.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(s.t)
	der := expect.Value(x509.MarshalECPrivateKey(key))(s.t)
	expect.NoError(s.t,
		os.WriteFile(k.path("accounts.key"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600),
		os.WriteFile(k.path("tokens"), []byte(administrator+",admin,admin,system:masters\n"), 0o600))
	k.begin()
	s.t.Cleanup(k.kill)
	core := expect.Value(corev1client.NewForConfig(k.client(true)))(s.t)
	expect.Value(core.Namespaces().Create(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: shop}}, metav1.CreateOptions{}))(s.t)
	k.apply(s)
	token, err := core.ServiceAccounts("kube-system").CreateToken(context.Background(), "embedcnid", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	expect.NoError(s.t, err)
	k.token = token.Status.Token
	k.allow(clusterRules(s.t))
	return k
}

func (k *kubernetes) path(name string) string { return filepath.Join(k.dir, name) }

// run starts a program, whose log the test shows if it fails.
func (k *kubernetes) run(program string, args ...string) *exec.Cmd {
	k.t.Helper()
	cmd := exec.Command(tool(k.t, program), args...)
	log := k.path(filepath.Base(program) + ".log")
	f := expect.Value(os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600))(k.t)
	cmd.Stdout, cmd.Stderr = f, f
	expect.NoError(k.t, cmd.Start(), f.Close())
	k.t.Cleanup(func() {
		if k.t.Failed() {
			text := expect.Value(os.ReadFile(log))(k.t)
			k.t.Logf("%s:\n%s", log, text[max(0, len(text)-4000):])
		}
	})
	return cmd
}

func (k *kubernetes) end(process *exec.Cmd) {
	k.t.Helper()
	expect.NoError(k.t, process.Process.Kill())
	expect.Fails(k.t, "it has ended by itself", process.Wait())
}

func (k *kubernetes) kill() { k.end(k.process) }

func (k *kubernetes) begin() {
	k.t.Helper()
	k.process = k.run(k.program, "--etcd-servers="+etcdAt, "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--secure-port=6443", "--cert-dir="+k.path("serving"),
		"--authorization-mode=RBAC", "--token-auth-file="+k.path("tokens"), "--allow-privileged", // for the DaemonSet, as kubeadm has it
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+k.path("accounts.key"), "--service-account-signing-key-file="+k.path("accounts.key"),
		"--service-cluster-ip-range=10.96.0.0/16", "--endpoint-reconciler-type=none",
		"--disable-admission-plugins=ServiceAccount") // nobody here makes the account of each namespace
	expect.Eventually(k.t, "the API server", func() bool {
		if k.ca == nil {
			k.ca, _ = os.ReadFile(k.path("serving/apiserver.crt")) // it is made at the first start
			return false
		}
		client := expect.Value(rest.HTTPClientFor(k.client(true)))(k.t)
		defer client.CloseIdleConnections()
		answer, err := client.Get(kubernetesAt + "/readyz")
		if err != nil {
			return false
		}
		return answer.Body.Close() == nil && answer.StatusCode == http.StatusOK
	})
}

func (k *kubernetes) client(admin bool) *rest.Config {
	c := &rest.Config{Host: kubernetesAt, TLSClientConfig: rest.TLSClientConfig{CAData: k.ca}, BearerToken: k.token, QPS: -1}
	if admin {
		c.BearerToken = administrator
	}
	return c
}

// apply applies the manifests as docs/operating.md says; the second time nothing changes. Then
// it waits for the kind that they define.
func (k *kubernetes) apply(s *site) {
	k.t.Helper()
	config := s.kubeconfig(k.client(true))
	kubectl := func(args ...string) string {
		cmd := exec.Command(tool(k.t, "kubectl"), args...)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+config, "HOME="+k.dir)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		expect.Must(k.t, err == nil && stderr.Len() == 0, "kubectl %s: %v\n%s", strings.Join(args, " "), err, &stderr)
		return string(out)
	}
	kustomization := filepath.Join(deploy, "kubernetes")
	expect.Same(k.t, "created objects", strings.Count(kubectl("apply", "--kustomize", kustomization), " created\n"), 8)
	expect.Same(k.t, "unchanged objects", strings.Count(kubectl("apply", "--kustomize", kustomization), " unchanged\n"), 8)
	kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd/network-attachment-definitions.k8s.cni.cncf.io")
}

// allow waits until the authorizer has heard of the rules.
func (k *kubernetes) allow(rules []rbacv1.PolicyRule) {
	k.t.Helper()
	ctx := context.Background()
	roles := expect.Value(rbacclient.NewForConfig(k.client(true)))(k.t).ClusterRoles()
	role := expect.Value(roles.Get(ctx, "embedcnid", metav1.GetOptions{}))(k.t)
	role.Rules = rules
	expect.Value(roles.Update(ctx, role, metav1.UpdateOptions{}))(k.t)
	reviews := expect.Value(authorizationclient.NewForConfig(k.client(true)))(k.t).SubjectAccessReviews()
	for _, r := range clusterRules(k.t) {
		resource, subresource, _ := strings.Cut(r.Resources[0], "/")
		for _, verb := range r.Verbs {
			want := slices.ContainsFunc(rules, func(now rbacv1.PolicyRule) bool {
				return slices.Equal(now.Resources, r.Resources) && slices.Contains(now.Verbs, verb)
			})
			expect.Eventually(k.t, fmt.Sprint("the authorizer of ", verb, " ", r.Resources), func() bool {
				review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: serviceAccount,
					ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Group: r.APIGroups[0], Resource: resource, Subresource: subresource, Namespace: shop}}}
				return expect.Value(reviews.Create(ctx, review, metav1.CreateOptions{}))(k.t).Status.Allowed == want
			})
		}
	}
}
