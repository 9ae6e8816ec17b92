package multus

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/netns"
)

// The pod of the requests in testdata.
const (
	containerID  = "4f6b0c1d2e3f"
	podNamespace = "default"
	podName      = "pod1"
	podUID       = "0b8f6d2e-7f6c-4a53-9d0e-5f2f0a1f3c11"
	podNetNS     = "/run/netns/pod1"
	podArgs      = "IgnoreUnknown=1;K8S_POD_NAMESPACE=" + podNamespace + ";K8S_POD_NAME=" + podName +
		";K8S_POD_INFRA_CONTAINER_ID=" + containerID + ";K8S_POD_UID=" + podUID
)

// shimConf is a configuration whose bytes show whether they arrive unchanged.
const shimConf = `{ "cniVersion": "1.1.0",
  "name": "multus-cni-network", "type": "multus-shim",
  "clusterNetwork": "/etc/cni/net.d/10-primary.conflist",
  "capabilities": {"portMappings": true}, "note": "a<b>&c é 10000000000000000001" }
`

// validAttachments begins a configuration of GC.
const validAttachments = `{"cni.dev/valid-attachments": [{"containerID": "` + containerID + `", "ifname": "eth0"}]`

// podCall returns the call of a runtime for the pod.
func podCall(verb string) call {
	c := call{verb: verb, ifName: "eth0", args: podArgs, netns: podNetNS, config: []byte(shimConf)}
	if verb == "GC" {
		c.config = bytes.Replace(c.config, []byte("{"), []byte(validAttachments+", "), 1)
	}
	return c
}

// newPod makes the pod's namespace, whose path is the same in every run.
func newPod(t testing.TB) *netns.Handle {
	t.Helper()
	expect.NoError(t, os.MkdirAll(filepath.Dir(podNetNS), 0o755))
	return nettest.At(t, podNetNS)
}

// golden compares data with a file of the version's directory in testdata.
func golden(t *testing.T, version, name string, data []byte) {
	t.Helper()
	path := filepath.Join("testdata", version, name)
	if *update {
		expect.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, 0o644))
	}
	want := readData(t, version, name)
	if !bytes.Equal(data, want) {
		t.Errorf("%s:\n got %q\nwant %q", path, data, want)
	}
}

// readData returns a file of the version's directory in testdata.
func readData(t *testing.T, version, name string) []byte {
	t.Helper()
	return expect.Value(os.ReadFile(filepath.Join("testdata", version, name)))(t)
}

var verbs = []string{"ADD", "CHECK", "DEL", "GC", "STATUS"}

// TestRequests keeps the requests of Multus' shim to the byte.
func TestRequests(t *testing.T) {
	shim := os.Getenv(shimVar)
	v := version(t, shim)
	newPod(t)
	for _, verb := range verbs {
		t.Run(verb, func(t *testing.T) {
			r := record(t, func(path string, _ int) (int, string) {
				if path == "/cni" && verb == "ADD" {
					return http.StatusOK, `{"Result": {"cniVersion": "1.0.0"}}`
				}
				return http.StatusOK, ""
			})
			_, _, err := podCall(verb).run(t, shim)
			expect.NoError(t, err)
			expect.Same(t, "requests", r.paths(), []string{"/healthz", "/cni"})
			golden(t, v, strings.ToLower(verb)+".request", r.last(t, "/cni"))
			golden(t, v, "readiness.request", r.last(t, "/healthz"))
		})
	}
}

// TestRequestCarriesTheWholeEnvironment: a runtime's other variables reach the daemon too.
func TestRequestCarriesTheWholeEnvironment(t *testing.T) {
	newPod(t)
	r := record(t, func(string, int) (int, string) { return http.StatusOK, "" })
	c := podCall("DEL")
	c.env = []string{"SECRET=a=b\n<c>", "EMPTY=", "CNI_NETNS_OVERRIDE=0"}
	_, _, err := c.run(t, os.Getenv(shimVar))
	expect.NoError(t, err)
	_, body, _ := bytes.Cut(r.last(t, "/cni"), []byte("\r\n\r\n"))
	var request struct {
		Env    map[string]string
		Config []byte
	}
	expect.NoError(t, strictJSON(body, &request))
	var got []string
	for name, value := range request.Env {
		got = append(got, name+"="+value)
	}
	slices.Sort(got)
	expect.Same(t, "environment", got, slices.Sorted(slices.Values(c.environ())))
	expect.Same(t, "configuration", string(request.Config), shimConf)
}

// TestShimConvertsTheResult: the answer is of the latest version, and the shim prints the
// one of the configuration.
func TestShimConvertsTheResult(t *testing.T) {
	newPod(t)
	record(t, func(path string, _ int) (int, string) {
		if path != "/cni" {
			return http.StatusOK, ""
		}
		return http.StatusOK, `{"Result": {"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": "/run/netns/pod1"}],
			"ips": [{"interface": 0, "address": "10.9.0.2/24", "gateway": "10.9.0.1"}]}}`
	})
	for _, version := range []string{"0.2.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		c := podCall("ADD")
		c.config = fmt.Appendf(nil, `{"cniVersion": %q, "name": "multus-cni-network", "type": "multus-shim"}`, version)
		stdout, _, err := c.run(t, os.Getenv(shimVar))
		expect.NoError(t, err)
		expect.Same(t, "version", expect.Value(create.DecodeVersion(stdout))(t), version)
		if _, err := create.CreateFromBytes(stdout); err != nil || !bytes.Contains(stdout, []byte(`"10.9.0.2/24"`)) {
			t.Errorf("printed %s: %v", stdout, err)
		}
	}
}

// TestShimWaitsUntilReady: the shim polls before ADD, and does not before DEL.
func TestShimWaitsUntilReady(t *testing.T) {
	newPod(t)
	const refusals = 3
	r := record(t, func(path string, n int) (int, string) {
		switch {
		case path == "/healthz" && n <= refusals:
			return http.StatusInternalServerError, ""
		case path == "/cni":
			return http.StatusOK, `{"Result": {"cniVersion": "1.0.0"}}`
		}
		return http.StatusOK, ""
	})
	_, _, err := podCall("ADD").run(t, os.Getenv(shimVar))
	expect.NoError(t, err)
	expect.Same(t, "requests of ADD", r.paths(), []string{"/healthz", "/healthz", "/healthz", "/healthz", "/cni"})
}

// TestShimNeverFailsDEL: whatever the daemon answers, and without a daemon.
func TestShimNeverFailsDEL(t *testing.T) {
	newPod(t)
	_, _, err := podCall("DEL").run(t, os.Getenv(shimVar))
	expect.NoError(t, err)
	for _, failing := range []string{"/healthz", "/cni"} {
		t.Run(failing, func(t *testing.T) {
			r := record(t, func(path string, _ int) (int, string) {
				if path == failing {
					return http.StatusBadRequest, `{"code": 11, "msg": "try again later"}`
				}
				return http.StatusOK, ""
			})
			_, _, err := podCall("DEL").run(t, os.Getenv(shimVar))
			expect.NoError(t, err)
			want := []string{"/healthz", "/cni"}
			if failing == "/healthz" {
				want = want[:1]
			}
			expect.Same(t, "requests of DEL", r.paths(), want)
		})
	}
}

// TestShimLosesTheCode: Multus' shim prints every error with code 999, and puts the
// message and the details of an error object into its message.
func TestShimLosesTheCode(t *testing.T) {
	newPod(t)
	for name, c := range map[string]struct{ body, want string }{
		"object": {`{"code": 51, "msg": "limited", "details": "no pool"}`, "CmdStatus (shim): limited; no pool"},
		"text":   {"no network\n", "CmdStatus (shim): CNI request failed with status 400: 'no network\n': StdinData: " + shimConf},
	} {
		t.Run(name, func(t *testing.T) {
			record(t, func(path string, _ int) (int, string) {
				if path == "/cni" {
					return http.StatusBadRequest, c.body
				}
				return http.StatusOK, ""
			})
			_, _, err := podCall("STATUS").run(t, os.Getenv(shimVar))
			expect.Same(t, "error", cniError(t, err), types.Error{Code: types.ErrInternal, Msg: c.want})
		})
	}
}

func cniError(t *testing.T, err error) types.Error {
	t.Helper()
	var said *types.Error
	if !errors.As(err, &said) {
		t.Fatalf("error %v, want a CNI error object", err)
	}
	return *said
}

// strictJSON decodes one value that has no other fields than v, and nothing behind it.
func strictJSON(data []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("more than one value: %w", err)
	}
	return nil
}
