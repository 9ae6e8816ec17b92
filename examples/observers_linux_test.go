package examples

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/cnitest"
	"github.com/embedcni/cni/internal/expect"
)

// Two networks, of a bridge and of pairs.
const (
	sharedNet = `{"cniVersion": "1.0.0", "name": "shared", "plugins": [
		{"type": "bridge", "bridge": "shared0", "isDefaultGateway": true,
		 "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.62.0.0/24"}]]}},
		{"type": "portmap", "capabilities": {"portMappings": true}}]}`
	pairsNet = `{"cniVersion": "1.0.0", "name": "pairs", "plugins": [
		{"type": "ptp", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.63.0.0/24"}]]}}]}`
)

// writeNetworks writes configurations to a directory.
func writeNetworks(t *testing.T, configs ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for i, c := range configs {
		expect.NoError(t, os.WriteFile(filepath.Join(dir, string(rune('1'+i))+"0.conflist"), []byte(c), 0o600))
	}
	return dir
}

// TestInspector: it prints what is there, and leaves it as it is.
func TestInspector(t *testing.T) {
	leavesNothing(t)
	networks := writeNetworks(t, sharedNet, pairsNet)
	rt, err := cni.New(cni.WithOwner("test"), cni.WithPluginConfDir(networks), cni.WithAllConf, cni.WithBuiltinPlugins())
	expect.NoError(t, err)
	ports := expect.Value(cni.ParsePorts("8080:80"))(t)
	for _, id := range []string{"web-1", "web-2"} {
		expect.NoError(t, expect.Err(rt.Setup(t.Context(), id, cnitest.Container(t), cni.WithPorts(ports...))))
		t.Cleanup(func() { expect.NoError(t, rt.Remove(t.Context(), id, "")) })
		ports = nil
	}
	inspect := func() (said string, code int) {
		before := trace(t)
		p := start(t, nil, "inspector", networks)
		code = p.exitCode(t)
		said = p.whole(t)
		expect.Same(t, "changed", cnitest.Diff(before, trace(t)), "")
		return said, code
	}
	said, code := inspect()
	expect.Same(t, "inspected", said, `NETWORK  KIND            GATEWAYS      PLUGINS
shared   shared bridge   10.62.0.1/24  bridge (built in), portmap (built in)
pairs    point to point  10.63.0.1/24  ptp (built in)

CONTAINER  NETWORK  INTERFACE  ADDRESSES     PORTS        OWNER  STATE
web-1      shared   eth0       10.62.0.2/24  8080:80/tcp  test   healthy
web-1      pairs    eth1       10.63.0.2/24               test   healthy
web-2      shared   eth0       10.62.0.3/24               test   healthy
web-2      pairs    eth1       10.63.0.3/24               test   healthy
`)
	expect.Same(t, "exit code", code, 0)

	expect.NoError(t, exec.Command("ip", "link", "del", "shared0").Run())
	said, code = inspect()
	expect.That(t, strings.Contains(said, "web-1: broken") && strings.Contains(said, "web-2: broken"), "no container is broken:\n%s", said)
	expect.Same(t, "exit code", code, 1)
}

// TestReconciler: containers are attached, repaired and removed as the file wants them.
func TestReconciler(t *testing.T) {
	leavesNothing(t)
	networks, wanted := t.TempDir(), filepath.Join(t.TempDir(), "wanted.json")
	want := func(containers map[string]string) {
		t.Helper()
		expect.NoError(t, os.WriteFile(wanted, expect.Value(json.Marshal(containers))(t), 0o600))
	}
	web, db := cnitest.Container(t), cnitest.Container(t)
	want(map[string]string{"web": web, "db": db})
	// Somebody else's container stays.
	other, err := cni.New(cni.WithOwner("other"), cni.WithConfListBytes([]byte(pairsNet)), cni.WithBuiltinPlugins())
	expect.NoError(t, err)
	expect.NoError(t, expect.Err(other.Setup(t.Context(), "foreign", cnitest.Container(t))))
	t.Cleanup(func() { expect.NoError(t, other.Remove(t.Context(), "foreign", "")) })

	p := start(t, nil, "reconciler", networks, wanted)
	p.find(t, `web: replace: .*no network`) // the administrator has configured none
	config := filepath.Join(networks, "10.conflist")
	expect.NoError(t, os.WriteFile(config+".new", []byte(sharedNet), 0o600), os.Rename(config+".new", config))
	p.find(t, `db: replace: done`)
	p.find(t, `web: replace: done`)

	expect.NoError(t, exec.Command("ip", "link", "del", "shared0").Run())
	p.find(t, `bridge shared0`) // the guard makes it again

	want(map[string]string{"web": web})
	expect.NoError(t, p.Process.Signal(unix.SIGHUP))
	p.find(t, `web: (healthy|repair: done)`) // the guard may be at work yet
	p.find(t, `db: removed`)
	want(map[string]string{})
	expect.NoError(t, p.Process.Signal(unix.SIGHUP))
	p.find(t, `web: removed`)
	expect.Same(t, "exit code", p.end(t, unix.SIGTERM), 0)
	attached := expect.Value(other.Attachments())(t)
	expect.Same(t, "attachments", len(attached), 1)
	expect.Same(t, "container", attached[0].ContainerID, "foreign")
}
