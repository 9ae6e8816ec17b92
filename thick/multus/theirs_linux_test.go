package multus

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/thick/server"
)

// TestMultusShimBeforeOurs: every verb of Multus' shim, in front of this library's server.
func TestMultusShimBeforeOurs(t *testing.T) {
	newPod(t)
	b := newScripted()
	serve(t, b)
	for _, verb := range verbs {
		stdout, stderr, err := podCall(verb).run(t, os.Getenv(shimVar))
		expect.NoError(t, err)
		expect.Same(t, "standard error of "+verb, stderr, "")
		if verb != "ADD" {
			expect.Same(t, "standard output of "+verb, string(stdout), "")
			continue
		}
		result := expect.Value(types100.GetResult(expect.Value(create.CreateFromBytes(stdout))(t)))(t)
		expect.Same(t, "address", result.IPs[0].Address.String(), "10.9.0.2/24")
		expect.Same(t, "interface", *result.Interfaces[0], types100.Interface{Name: "eth0", Mac: "02:00:00:00:00:01", Sandbox: podNetNS})
	}
	expect.Same(t, "calls", b.Verbs(), verbs)
	for i, verb := range verbs {
		want := server.Request{
			ContainerID: containerID, NetNS: podNetNS, IfName: "eth0",
			Args: map[string]string{
				"IgnoreUnknown": "1", "K8S_POD_NAMESPACE": podNamespace, "K8S_POD_NAME": podName,
				"K8S_POD_INFRA_CONTAINER_ID": containerID, "K8S_POD_UID": podUID,
			},
			Pod:    server.Pod{Namespace: podNamespace, Name: podName, InfraContainerID: containerID, UID: podUID},
			Config: podCall(verb).config, Network: "multus-cni-network", CNIVersion: "1.1.0",
		}
		if verb == "GC" || verb == "STATUS" {
			want = server.Request{Config: want.Config, Network: want.Network, CNIVersion: want.CNIVersion}
		}
		if verb == "GC" {
			want.Valid = []types.GCAttachment{{ContainerID: containerID, IfName: "eth0"}}
		}
		got := *b.Calls()[i].Request
		if (got.Began != "") != (verb == "ADD") {
			t.Errorf("%s began at %q", verb, got.Began)
		}
		got.Began = ""
		expect.Same(t, "request of "+verb, fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want))
	}
}

// TestMultusShimPrintsOurErrors: the code and the details are on the socket. Multus' shim
// prints the message and the details.
func TestMultusShimPrintsOurErrors(t *testing.T) {
	newPod(t)
	b := newScripted()
	serve(t, b)
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"object":  {types.NewError(51, "limited", "no pool"), "limited; no pool"},
		"wrapped": {fmt.Errorf("attach: %w", types.NewError(11, "later", "")), "later"},
		// Multus' shim adds the whole configuration to a text.
		"text": {errors.New("no network"), "CNI request failed with status 400: 'no network\n': StdinData: " + shimConf},
	} {
		t.Run(name, func(t *testing.T) {
			b.fail = func(context.Context, string) error { return c.err }
			for verb, shim := range map[string]string{"ADD": "CmdAdd", "CHECK": "CmdCheck", "STATUS": "CmdStatus"} {
				_, _, err := podCall(verb).run(t, os.Getenv(shimVar))
				expect.Same(t, "error of "+verb, cniError(t, err), types.Error{Code: types.ErrInternal, Msg: shim + " (shim): " + c.want})
			}
		})
	}
	t.Run("refused", func(t *testing.T) {
		call := podCall("ADD")
		call.args = "K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod1;broken"
		asked := len(b.Verbs())
		_, _, err := call.run(t, os.Getenv(shimVar))
		if said := cniError(t, err); said.Code != types.ErrInternal || !strings.Contains(said.Msg, `"broken" is not of the form KEY=VALUE`) {
			t.Errorf("%+v", said)
		}
		expect.Same(t, "calls of the backend", len(b.Verbs()), asked)
	})
}

// TestMultusShimWaitsForOurServer: the shim is there before the daemon.
func TestMultusShimWaitsForOurServer(t *testing.T) {
	newPod(t)
	expect.NoError(t, os.MkdirAll(runDir, 0o700))
	dying := expect.Value(net.Listen("unix", socket))(t)
	done := make(chan error, 1)
	call, shim := podCall("ADD"), os.Getenv(shimVar)
	go func() { _, _, err := call.run(t, shim); done <- err }()
	conn, err := dying.Accept() // the shim asks
	expect.NoError(t, err, conn.Close(), dying.Close())
	b := newScripted()
	serve(t, b)
	expect.NoError(t, expect.Await(t, "ADD", done))
	expect.Same(t, "calls", b.Verbs(), []string{"ADD"})
}

// TestMultusShimDuringOurShutdown: a call that runs is finished and answered, DEL is
// served, and ADD is refused with a code that has runtimes try again.
func TestMultusShimDuringOurShutdown(t *testing.T) {
	newPod(t)
	running, finish := make(chan struct{}), make(chan struct{})
	b := newScripted()
	b.fail = func(_ context.Context, verb string) error {
		if verb == "ADD" {
			close(running)
			<-finish
		}
		return nil
	}
	s := serve(t, b)
	done := make(chan error, 1)
	call, shim := podCall("ADD"), os.Getenv(shimVar)
	go func() { _, _, err := call.run(t, shim); done <- err }()
	expect.Await(t, "ADD in the backend", running)
	down := make(chan error, 1)
	go func() { down <- s.Shutdown(context.Background()) }()
	readiness := readData(t, version(t, shim), "readiness.request")
	// Later versions of the shim ask for /readyz before ADD, and for /healthz before DEL.
	expect.Eventually(t, "a server that is not ready", func() bool {
		return status(t, exchange(t, bytes.Replace(readiness, []byte("/healthz"), []byte("/readyz"), 1))) == http.StatusInternalServerError
	})
	expect.Same(t, "status of /healthz", status(t, exchange(t, readiness)), http.StatusOK)
	_, _, err := podCall("ADD").run(t, shim)
	if said := cniError(t, err); !strings.HasPrefix(said.Msg, "CmdAdd (shim): ") {
		t.Errorf("error of ADD: %+v", said)
	}
	_, _, err = podCall("DEL").run(t, shim)
	expect.NoError(t, err)
	expect.Same(t, "calls", b.Verbs(), []string{"ADD", "DEL"})
	close(finish)
	expect.NoError(t, expect.Await(t, "ADD", done), expect.Await(t, "the end of the shutdown", down))
}

// status returns the status of an answer.
func status(t *testing.T, answer []byte) int {
	t.Helper()
	return response(t, answer).StatusCode
}

func response(t *testing.T, answer []byte) *http.Response {
	t.Helper()
	r, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(answer)), nil)
	if err != nil {
		t.Fatalf("%v: %q", err, answer)
	}
	body := expect.Value(io.ReadAll(r.Body))(t)
	r.Body = io.NopCloser(bytes.NewReader(body))
	return r
}

// TestOursAnswersLikeMultus sends this library's server the requests of TestAnswers. It
// answers with the same status, and with the same body if that is a result or an error
// object. Multus' other errors are text; here they are error objects with a code.
func TestOursAnswersLikeMultus(t *testing.T) {
	v := version(t, os.Getenv(daemonVar))
	var verb map[string]error
	b := newScripted()
	b.fail = func(_ context.Context, name string) error { return verb[name] }
	serve(t, b)
	codes := map[string]uint{
		"add-fails": 11, "status-fails": 51, "no-body": types.ErrDecodingFailure,
		"no-command": types.ErrInvalidEnvironmentVariables, "unknown-command": types.ErrInvalidEnvironmentVariables,
		"no-arguments": types.ErrInvalidEnvironmentVariables, "no-pod": types.ErrInvalidEnvironmentVariables,
		"no-namespace": types.ErrInvalidEnvironmentVariables,
	}
	for _, e := range answers(t, v) {
		t.Run(e.name, func(t *testing.T) {
			verb = map[string]error{}
			for name, action := range e.verbs {
				said := new(types.Error)
				expect.NoError(t, json.Unmarshal([]byte(*action.Stdout), said))
				verb[name] = said
			}
			theirs := response(t, readData(t, v, e.name+".answer"))
			got := response(t, exchange(t, e.request))
			if e.name == "readyz" { // which only later versions of Multus have
				theirs.StatusCode, theirs.Close = http.StatusOK, true
			}
			expect.Same(t, "status", got.StatusCode, theirs.StatusCode)
			expect.Same(t, "end of the connection", got.Close, theirs.Close)
			body, want := expect.Value(io.ReadAll(got.Body))(t), expect.Value(io.ReadAll(theirs.Body))(t)
			code, fails := codes[e.name]
			if fails != (got.StatusCode == http.StatusBadRequest) {
				t.Fatalf("status %d: %s", got.StatusCode, body)
			}
			if got.StatusCode == http.StatusOK || json.Valid(want) {
				expect.Same(t, "body", string(body), string(want))
			}
			if fails {
				var said types.Error
				expect.NoError(t, strictJSON(body, &said))
				expect.Same(t, "code", said.Code, code)
				expect.Same(t, "type of the body", got.Header.Get("Content-Type"), "application/json")
			}
		})
	}
}
