package examples

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/cnitest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/netns"
)

// Directories that the programs use if they are not told others.
const (
	socketDir = "/run/thick"
	stateDir  = "/var/lib/thick"
	queueDir  = stateDir + "/dels"
)

// networks writes the configurations that the daemon attaches to: the first one to every
// container, by plugins that are built in, the other one to those that ask for it, by the
// reference plugins.
func networks(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	podnet := fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "podnet", "plugins": [
		{"type": %q, "bridge": "thick0", "isDefaultGateway": true, "ipam": {"type": %q, "ranges": [[{"subnet": "10.64.0.0/24"}]]}},
		{"type": %q, "capabilities": {"portMappings": true}}]}`, conflist.Bridge, conflist.HostLocal, conflist.Portmap)
	storage := fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "storage", "plugins": [
		{"type": %q, "ipam": {"type": %q, "ranges": [[{"subnet": "10.65.0.0/24"}]]}}]}`, conflist.PTP, conflist.HostLocal)
	expect.NoError(t, os.WriteFile(filepath.Join(dir, "10-podnet.conflist"), []byte(podnet), 0o600),
		os.WriteFile(filepath.Join(dir, "20-storage.conflist"), []byte(storage), 0o600))
	return dir
}

// startDaemon starts the daemon.
func startDaemon(t *testing.T) *program {
	t.Helper()
	return start(t, nil, "daemon", "-networks", networks(t), "-plugins", expect.Value(refplugins.Dir(t.Context(), os.Stderr))(t),
		"-builtin", strings.Join([]string{conflist.Bridge, conflist.HostLocal, conflist.Portmap}, ","))
}

// runtime is a container runtime: upstream's libcni, which executes the shim.
type runtime struct{ *libcni.CNIConfig }

// newRuntime returns a runtime for concurrent use: without an Exec of its own, libcni
// makes one at the first call, unguarded.
func newRuntime(t *testing.T) *runtime {
	t.Helper()
	exec := &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: os.Stderr}}
	return &runtime{libcni.NewCNIConfigWithCacheDir([]string{os.Getenv(builtVariable)}, t.TempDir(), exec)}
}

// list is a configuration of the runtime, with further fields for its plugin, which is the shim.
func list(t *testing.T, version, name, fields string) *libcni.NetworkConfigList {
	t.Helper()
	text := fmt.Sprintf(`{"cniVersion": %q, "name": %q, "plugins": [
		{"type": "shim", "daemonSocketDir": %q, "capabilities": {"portMappings": true}%s}]}`, version, name, socketDir, fields)
	return expect.Value(libcni.ConfListFromBytes([]byte(text)))(t)
}

// node is the configuration for networks of the daemon.
func node(t *testing.T, version string) *libcni.NetworkConfigList {
	t.Helper()
	return list(t, version, "node", "")
}

// container is a namespace, in which a server answers. Its port 80 is forwarded from one of
// the host, and it is on both networks.
type container struct {
	*libcni.RuntimeConf
	ns       *netns.Handle
	hostPort int
}

// attached are the interfaces of a container.
var attached = []string{"lo", "eth0", "net7"}

func newContainer(t *testing.T, id string, hostPort int) *container {
	t.Helper()
	path := cnitest.Container(t)
	c := &container{&libcni.RuntimeConf{
		ContainerID: id, NetNS: path, IfName: "eth0", Args: [][2]string{{"NETWORKS", "storage@net7"}},
		CapabilityArgs: map[string]any{"portMappings": []map[string]any{{"hostPort": hostPort, "containerPort": 80, "protocol": "tcp"}}},
	}, expect.Value(netns.Open(path))(t), hostPort}
	t.Cleanup(func() { expect.NoError(t, c.ns.Close()) })
	var ln net.Listener
	expect.NoError(t, c.ns.Do(func() (err error) {
		ln, err = net.Listen("tcp", ":80")
		return err
	}))
	answers := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, id) })}
	go answers.Serve(ln)
	t.Cleanup(func() { expect.NoError(t, answers.Close()) })
	return c
}

// interfaces returns the names of the container's interfaces.
func (c *container) interfaces(t *testing.T) (names []string) {
	t.Helper()
	expect.NoError(t, c.ns.Do(func() error {
		all, err := net.Interfaces()
		for _, i := range all {
			names = append(names, i.Name)
		}
		return err
	}))
	return names
}

// address returns the IPv4 address of an interface in the container.
func (c *container) address(t *testing.T, ifName string) (address string) {
	t.Helper()
	expect.NoError(t, c.ns.Do(func() error {
		i, err := net.InterfaceByName(ifName)
		if err != nil {
			return err
		}
		all, err := i.Addrs()
		for _, a := range all {
			if prefix, ok := a.(*net.IPNet); ok && prefix.IP.To4() != nil {
				address = prefix.IP.String()
			}
		}
		return err
	}))
	return address
}

// servers returns the places at which the container answers: its addresses on both
// networks, and the forwarded port.
func (c *container) servers(t *testing.T) []string {
	t.Helper()
	return []string{c.address(t, "eth0") + ":80", c.address(t, "net7") + ":80", fmt.Sprintf("10.64.0.1:%d", c.hostPort)}
}

// wantTraffic checks that new connections reach the container.
func (c *container) wantTraffic(t *testing.T) {
	t.Helper()
	for _, server := range c.servers(t) {
		dial(t, server, c.ContainerID).wantAnswer(t)
	}
}

// connection is a connection to a container, for any number of questions.
type connection struct {
	net.Conn
	answers      *bufio.Reader
	server, name string
}

// dial connects to the server of the container with a name.
func dial(t *testing.T, server, name string) *connection {
	t.Helper()
	conn := expect.Value(net.DialTimeout("tcp", server, expect.Patience))(t)
	t.Cleanup(func() { conn.Close() })
	return &connection{conn, bufio.NewReader(conn), server, name}
}

// wantAnswer asks for the name of the container.
func (c *connection) wantAnswer(t *testing.T) {
	t.Helper()
	expect.NoError(t, c.SetDeadline(time.Now().Add(expect.Patience)))
	_, err := fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", c.name)
	expect.NoError(t, err)
	response := expect.Value(http.ReadResponse(c.answers, nil))(t)
	text, err := io.ReadAll(response.Body)
	expect.NoError(t, err, response.Body.Close())
	expect.Same(t, "the answer at "+c.server, string(text), c.name)
}

// add attaches a container, and checks the result, which is the first network's.
func (r *runtime) add(t *testing.T, version string, c *container) {
	t.Helper()
	result, err := r.AddNetworkList(t.Context(), node(t, version), c.RuntimeConf)
	expect.NoError(t, err)
	expect.Same(t, "version", result.Version(), version)
	ips := expect.Value(types100.NewResultFromResult(result))(t).IPs
	expect.Same(t, "address", ips[0].Address.IP.String(), c.address(t, "eth0"))
	expect.Same(t, "number of addresses", len(ips), 1)
	expect.Same(t, "interfaces", c.interfaces(t), attached)
}
