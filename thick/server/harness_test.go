package server_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost/servertest"
	"github.com/embedcni/cni/thick/internal/wire"
	"github.com/embedcni/cni/thick/server"
)

type backend = servertest.Backend

func addressed(cidr string) *types100.Result {
	return servertest.Addressed("eth0", "/run/netns/c1", cidr)
}

// answered is addressed("10.1.0.7/16") as Multus answers it.
const answered = `{"Result":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/run/netns/c1"}],"ips":[{"address":"10.1.0.7/16","interface":0}]}}`

const config = `{"cniVersion":"1.1.0","name":"podnet","type":"multus-shim"}`

// request returns the body of a request for a container.
func request(verb, id string, changes ...func(*wire.Request)) []byte {
	r := &wire.Request{
		Env: map[string]string{
			"CNI_COMMAND": verb, "CNI_CONTAINERID": id, "CNI_NETNS": "/run/netns/" + id, "CNI_IFNAME": "eth0",
			"CNI_PATH": "/opt/cni/bin",
			"CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=" + id,
		},
		Config: wire.Config(config),
	}
	for _, change := range changes {
		change(r)
	}
	body, err := json.Marshal(r)
	if err != nil {
		panic(err)
	}
	return body
}

func variable(name, value string) func(*wire.Request) {
	return func(r *wire.Request) {
		if r.Env[name] = value; value == "" {
			delete(r.Env, name)
		}
	}
}

func configured(format string, args ...any) func(*wire.Request) {
	return func(r *wire.Request) { r.Config = wire.Config(fmt.Sprintf(format, args...)) }
}

func newServer(t testing.TB, b server.Backend, o server.Options) *server.Server {
	t.Helper()
	return expect.Value(server.New(b, o))(t)
}

// post asks a handler without a connection.
func post(h http.Handler, path string, body []byte) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, bytes.NewReader(body)))
	return w
}

// refused checks that an answer is an error object, and returns its message and details.
func refused(t testing.TB, w *httptest.ResponseRecorder, status int, code uint) string {
	t.Helper()
	var said types.Error
	if err := json.Unmarshal(w.Body.Bytes(), &said); err != nil || w.Code != status || said.Code != code {
		t.Errorf("status %d: %s; want status %d and an error of code %d", w.Code, w.Body, status, code)
	}
	return said.Error()
}

// success checks that an answer has status 200 and this body.
func success(t testing.TB, w *httptest.ResponseRecorder, body string) {
	t.Helper()
	if w.Code != http.StatusOK || w.Body.String() != body {
		t.Errorf("status %d: %s; want 200 with %q", w.Code, w.Body, body)
	}
}
