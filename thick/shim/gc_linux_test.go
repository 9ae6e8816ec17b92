package shim_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/expect"
)

// pairs returns the attachments of the node, as "container/interface network".
func (n *node) pairs(t *testing.T) (all []string) {
	t.Helper()
	for _, a := range expect.Value(n.Attachments(t.Context()))(t) {
		all = append(all, fmt.Sprintf("%s/%s %s", a.ContainerID, a.IfName, a.Network))
	}
	slices.Sort(all)
	return all
}

// TestLibcniCollectsPairs of a container and an interface: a container is not kept, nor
// another of its interfaces detached, because of one pair.
func TestLibcniCollectsPairs(t *testing.T) {
	n := newNode(t)
	n.start(t)
	podnet, ctx := n.list(t, "1.1.0", "10.1.0.7/16"), t.Context()
	other := expect.Value(libcni.ConfListFromBytes(bytes.Replace(podnet.Bytes, []byte("podnet"), []byte("other"), 1)))(t)
	for _, a := range []struct {
		network    *libcni.NetworkConfigList
		id, ifName string
	}{{podnet, "c1", "eth0"}, {podnet, "c1", "eth1"}, {other, "c1", "eth2"}, {podnet, "c2", "eth0"}, {podnet, "c2", "eth1"}} {
		c := container(a.id)
		c.IfName = a.ifName
		expect.Value(n.cni.AddNetworkList(ctx, a.network, c))(t)
	}
	n.take()

	// A libcni that has attached nothing repeats no DEL: the daemon alone collects.
	collector := libcni.NewCNIConfigWithCacheDir(n.cni.Path, t.TempDir(), nil)
	expect.NoError(t, collector.GCNetworkList(ctx, podnet, &libcni.GCArgs{ValidAttachments: []types.GCAttachment{
		{ContainerID: "c1", IfName: "eth0"}, {ContainerID: "c1", IfName: "eth2"}, {ContainerID: "c2", IfName: "eth1"},
	}}))
	asked, _ := n.take()
	expect.Same(t, "asked", asked, []string{"GC   podnet"})
	expect.Same(t, "attached", n.pairs(t), []string{"c1/eth0 podnet", "c1/eth2 other", "c2/eth1 podnet"})
	expect.NoError(t, collector.GCNetworkList(ctx, podnet, &libcni.GCArgs{}))
	expect.Same(t, "none is valid", n.pairs(t), []string{"c1/eth2 other"})
}

// TestCnitoolCollects: cnitool removes its own attachments, each by a DEL, and no others.
// Its GC lists no valid attachments, and the daemon refuses to guess them.
func TestCnitoolCollects(t *testing.T) {
	n := newNode(t)
	n.start(t)
	confs := filepath.Join(n.dir, "net.d")
	podnet := n.list(t, "1.1.0", "10.1.0.7/16")
	expect.NoError(t, os.Mkdir(confs, 0o755),
		os.WriteFile(filepath.Join(confs, "10-podnet.conflist"), podnet.Bytes, 0o644),
		os.WriteFile(filepath.Join(confs, "20-other.conflist"), bytes.Replace(podnet.Bytes, []byte("podnet"), []byte("other"), 1), 0o644))
	run := func(verb, network, ifName string) (out string, code int) {
		t.Helper()
		cmd := exec.Command(os.Getenv(toolVariable), verb, network, "/run/netns/c1")
		cmd.Env = append(os.Environ(), "CNI_PATH="+filepath.Join(n.dir, "bin"), "NETCONFPATH="+confs, "CNI_IFNAME="+ifName)
		text, err := cmd.CombinedOutput()
		t.Logf("cnitool %s %s %s: %v\n%s", verb, network, ifName, err, text)
		return string(text), cmd.ProcessState.ExitCode()
	}
	for _, a := range [][2]string{{"podnet", "eth0"}, {"podnet", "eth1"}, {"other", "eth2"}} {
		_, code := run("add", a[0], a[1])
		expect.Same(t, "exit code", code, 0)
	}
	expect.Value(n.cni.AddNetworkList(t.Context(), podnet, container("c2")))(t) // another client's
	id := n.attached[0].ContainerID                                             // cnitool makes one of the namespace's path
	n.take()
	out, code := run("gc", "podnet", "eth0")
	if code != 1 || !strings.Contains(out, "cni.dev/valid-attachments") {
		t.Errorf("gc: exit code %d: %s", code, out)
	}
	asked, _ := n.take()
	slices.Sort(asked)
	expect.Same(t, "asked", asked, []string{"DEL " + id + " eth0 podnet", "DEL " + id + " eth1 podnet"})
	expect.Same(t, "attached", n.pairs(t), []string{"c2/eth0 podnet", id + "/eth2 other"})
	_, code = run("del", "other", "eth2")
	expect.Same(t, "exit code", code, 0)
}
