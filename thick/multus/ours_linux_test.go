package multus

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/netns"
)

// ourCall is a call of this library's shim for the pod, with the configuration that
// Multus' daemon wrote for its own.
func ourCall(t *testing.T, d *daemon, verb string) (c call, shim string) {
	t.Helper()
	c = podCall(verb)
	c.config = d.shimConfig(t)
	if verb == "GC" {
		c.config = bytes.Replace(c.config, []byte("{"), []byte(validAttachments+", "), 1)
	}
	return c, os.Getenv(oursVar)
}

// TestOurShimBeforeMultus: every verb of this library's shim, in front of Multus' daemon.
func TestOurShimBeforeMultus(t *testing.T) {
	newPod(t)
	c := newCluster(t)
	c.addPod(nil)
	d := startDaemon(t, c, "", nil)
	d.script(t, nil)
	for _, verb := range []string{"STATUS", "ADD", "CHECK", "GC", "DEL", "DEL"} {
		call, shim := ourCall(t, d, verb)
		stdout, stderr, err := call.run(t, shim)
		expect.NoError(t, err)
		expect.Same(t, "standard error of "+verb, stderr, "")
		if verb == "ADD" {
			result := expect.Value(create.CreateFromBytes(stdout))(t)
			expect.Same(t, "address", expect.Value(types100.GetResult(result))(t).IPs[0].Address.String(), "10.9.0.2/24")
		} else {
			expect.Same(t, "standard output of "+verb, string(stdout), "")
		}
	}
	// Multus' CHECK succeeds and calls no plugin if the primary network has a name or a file.
	expect.Same(t, "calls of the plugin", d.calls(t), []string{"STATUS", "ADD", "GC", "DEL", "DEL"})
}

// TestOurShimKeepsTheError: an error object of Multus' daemon reaches the runtime with its
// code and details, and a text with the code of other errors.
func TestOurShimKeepsTheError(t *testing.T) {
	newPod(t)
	c := newCluster(t)
	c.addPod(nil)
	d := startDaemon(t, c, "", nil)
	d.script(t, map[string]scripted.Action{
		"STATUS": fails(`{"cniVersion": "1.1.0", "code": 51, "msg": "limited", "details": "no pool"}`),
		"ADD":    fails(`{"cniVersion": "1.1.0", "code": 11, "msg": "later"}`),
	})
	call, shim := ourCall(t, d, "STATUS")
	_, _, err := call.run(t, shim)
	expect.Same(t, "error of STATUS", cniError(t, err), types.Error{Code: 51, Msg: "limited", Details: "no pool"})

	call, shim = ourCall(t, d, "ADD")
	_, _, err = call.run(t, shim)
	// Multus turns the errors of ADD into text.
	if said := cniError(t, err); said.Code != types.ErrInternal || !strings.HasSuffix(said.Msg, "failed (add): later") {
		t.Errorf("error of ADD: %+v", said)
	}

	call, shim = ourCall(t, d, "DEL")
	call.args = "A=1"
	_, _, err = call.run(t, shim)
	want := "could not extract the kubernetes runtime args: missing K8S_POD_NAMESPACE"
	if said := cniError(t, err); said.Code != types.ErrInternal || said.Msg != want {
		t.Errorf("error of DEL: %+v, want %q", said, want)
	}
}

// network returns a network of real interfaces, in the n-th subnet.
func network(t *testing.T, n int) string {
	t.Helper()
	return string(expect.Value(json.Marshal(object{
		"cniVersion": "1.0.0", "name": fmt.Sprintf("net-%d", n), "type": conflist.Bridge, "bridge": fmt.Sprintf("mtest%d", n),
		"isGateway": true, "ipam": object{
			"type": conflist.HostLocal, "dataDir": t.TempDir(),
			"ranges": [][]object{{{"subnet": fmt.Sprintf("10.88.%d.0/24", n)}}},
		},
	}))(t))
}

// addresses returns the IPv4 addresses of a namespace, by interface.
func addresses(t *testing.T, ns *netns.Handle) map[string]string {
	t.Helper()
	found := map[string]string{}
	nettest.Inside(t, ns, func(nl *netlink.Handle) error {
		links, err := nl.LinkList()
		if err != nil {
			return err
		}
		for _, link := range links {
			addrs, err := nl.AddrList(link, netlink.FAMILY_V4)
			if err != nil {
				return err
			}
			for _, addr := range addrs {
				if link.Attrs().Name == "lo" {
					continue
				}
				found[link.Attrs().Name] += addr.IPNet.String()
			}
		}
		return nil
	})
	return found
}
