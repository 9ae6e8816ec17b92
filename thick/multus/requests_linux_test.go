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
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

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
			r := record(t, func(path string) (int, string) {
				if path == "/cni" && verb == "ADD" {
					return http.StatusOK, `{"Result": {"cniVersion": "1.0.0"}}`
				}
				return http.StatusOK, ""
			})
			_, _, err := podCall(verb).run(t, shim)
			expect.NoError(t, err)
			asked := r.Asked("")
			if len(asked) != 2 || asked[0].Path != "/healthz" || asked[1].Path != "/cni" {
				t.Fatalf("requests %+v", asked)
			}
			golden(t, v, strings.ToLower(verb)+".request", asked[1].Raw)
			golden(t, v, "readiness.request", asked[0].Raw)
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
