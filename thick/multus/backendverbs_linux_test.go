package multus

import (
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/thick/backend"
)

// portConf is the configuration of a request for a port.
var portConf = []byte(strings.Replace(shimConf, `"note"`, `"runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}, "note"`, 1))

// TestMultusShimBeforeOurBackend: every verb of Multus' shim, in front of a Runtime whose
// plugins attach the pod to a network with traffic.
func TestMultusShimBeforeOurBackend(t *testing.T) {
	for name, opts := range map[string][]cni.Opt{"executed": nil, "in process": {cni.WithBuiltinPlugins()}} {
		t.Run(name, func(t *testing.T) {
			ns, s := newPod(t), newSite(t)
			runtime := startOurs(t, backend.Options{}, s.primary, references(t), opts...)
			host := &testhost.RealHost{Host: &testhost.Host{T: t}}
			host.Serve(podNetNS, 80)
			run := func(verb string) (string, error) {
				c := podCall(verb)
				if verb == "ADD" {
					c.config = portConf
				}
				stdout, _, err := c.run(t, os.Getenv(shimVar))
				return string(stdout), err
			}
			must := func(verb string) string {
				t.Helper()
				return expect.Value(run(verb))(t)
			}
			works := func() {
				t.Helper()
				host.WantAnswers([]testhost.Question{
					{From: "", Network: "tcp", To: "10.244.1.2:80", Want: "10.244.1.1"},
					{From: "", Network: "tcp", To: "10.244.1.1:8080", Want: "10.244.1.1"}, // the port of the host
				})
			}
			must("STATUS")
			if result := must("ADD"); !strings.Contains(result, `"10.244.1.2/24"`) {
				t.Errorf("printed %s", result)
			}
			works()
			must("CHECK")
			if _, err := run("ADD"); err == nil || !strings.HasPrefix(cniError(t, err).Msg, "CmdAdd (shim): ") {
				t.Errorf("a second ADD: %v", err)
			}
			works()
			must("GC") // the pod is valid
			works()

			// CHECK finds the loss in the pod.
			nettest.Change(t, ns, "eth0", func(nl *netlink.Handle, link netlink.Link) error {
				addr := expect.Value(netlink.ParseAddr("10.244.1.2/24"))(t)
				return nl.AddrDel(link, addr)
			})
			if _, err := run("CHECK"); err == nil || !strings.HasPrefix(cniError(t, err).Msg, "CmdCheck (shim): ") {
				t.Errorf("CHECK of a pod without its address: %v", err)
			}
			must("DEL")
			must("DEL")
			expect.Same(t, "addresses after DEL", addresses(t, ns), map[string]string{})
			expect.Same(t, "reservations after DEL", s.reserved(t), nil)
			expect.Fails(t, "CHECK of a pod that is detached succeeds", expect.Err(run("CHECK")))

			must("ADD")
			gone := podCall("GC")
			gone.config = []byte(strings.Replace(string(gone.config), containerID, "another", 1))
			_, _, err := gone.run(t, os.Getenv(shimVar))
			expect.NoError(t, err)
			expect.Same(t, "addresses after GC", addresses(t, ns), map[string]string{})
			expect.Same(t, "reservations after GC", s.reserved(t), nil)
			left, err := runtime.Attachments()
			expect.NoError(t, err)
			expect.Same(t, "attachments on record", len(left), 0)
		})
	}
}

// TestMultusShimBeforeOurBackendThatIsNotReady: STATUS and ADD name the missing plugin, and ADD
// leaves nothing behind.
func TestMultusShimBeforeOurBackendThatIsNotReady(t *testing.T) {
	ns, s := newPod(t), newSite(t)
	runtime := startOurs(t, backend.Options{}, s.primary, t.TempDir()) // no plugins
	for _, verb := range []string{"STATUS", "ADD"} {
		_, _, err := podCall(verb).run(t, os.Getenv(shimVar))
		expect.Says(t, verb, err, `failed to find plugin "bridge"`)
	}
	expect.Same(t, "addresses", addresses(t, ns), map[string]string{})
	left, err := runtime.Attachments()
	expect.NoError(t, err)
	expect.Same(t, "attachments on record", len(left), 0)
	_, _, err = podCall("DEL").run(t, os.Getenv(shimVar))
	expect.NoError(t, err)
}
