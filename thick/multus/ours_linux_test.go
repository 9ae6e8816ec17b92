package multus

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/scripted"
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
	c.addPod(podNamespace, podName, podUID, "")
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
	c.addPod(podNamespace, podName, podUID, "")
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
		"cniVersion": "1.0.0", "name": fmt.Sprintf("net-%d", n), "type": known.Bridge, "bridge": fmt.Sprintf("mtest%d", n),
		"isGateway": true, "ipam": object{
			"type": known.HostLocal, "dataDir": t.TempDir(),
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

// TestOurShimAttachesThreeNetworks: a pod with two networks in its annotation, as Multus'
// quickstart has it, through this library's shim.
func TestOurShimAttachesThreeNetworks(t *testing.T) {
	ns := newPod(t)
	dir := expect.Value(refplugins.Dir(context.Background(), io.Discard))(t)
	c := newCluster(t)
	c.addPod(podNamespace, podName, podUID, "net-2,default/net-3@eth7")
	c.addNetwork("kube-system", "net-1", network(t, 1))
	c.addNetwork(podNamespace, "net-2", network(t, 2))
	c.addNetwork(podNamespace, "net-3", network(t, 3))
	d := startDaemon(t, c, "net-1", map[string]string{
		known.Bridge: filepath.Join(dir, known.Bridge), known.HostLocal: filepath.Join(dir, known.HostLocal),
	})
	t.Cleanup(func() { removeLinks(t) })
	call, shim := ourCall(t, d, "ADD")
	stdout, _, err := call.run(t, shim)
	expect.NoError(t, err)
	result := expect.Value(types100.GetResult(expect.Value(create.CreateFromBytes(stdout))(t)))(t)
	expect.Same(t, "address in the result", result.IPs[0].Address.String(), "10.88.1.2/24")
	expect.Same(t, "number of addresses in the result, which is the primary network's", len(result.IPs), 1)
	expect.Same(t, "addresses", addresses(t, ns), map[string]string{
		"eth0": "10.88.1.2/24", "net1": "10.88.2.2/24", "eth7": "10.88.3.2/24",
	})
	var status []struct {
		Name, Interface string
		IPs             []string
		Default         bool
	}
	expect.NoError(t, json.Unmarshal([]byte(c.networkStatus(t, podNamespace, podName)), &status))
	expect.Same(t, "network status", fmt.Sprint(status),
		"[{kube-system/net-1 eth0 [10.88.1.2] true} {default/net-2 net1 [10.88.2.2] false} {default/net-3 eth7 [10.88.3.2] false}]")

	call, shim = ourCall(t, d, "DEL")
	_, _, err = call.run(t, shim)
	expect.NoError(t, err)
	expect.Same(t, "addresses after DEL", addresses(t, ns), map[string]string{})
}
