package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/cnitest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

// nomads is the bridge network of a Nomad client: its plugins and their keys. The plugin
// behind portmap is there for a job with a transparent proxy.
const nomads = `{
	"cniVersion": "0.4.0",
	"name": "nomad",
	"plugins": [
		{"type": "loopback"},
		{"type": "bridge", "bridge": "nomad", "ipMasq": true, "isGateway": true, "forceAddress": true, "hairpinMode": true,
		 "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.72.64.0/20"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
		{"type": "firewall", "backend": "iptables", "iptablesAdminChainName": "NOMAD-ADMIN"},
		{"type": "portmap", "capabilities": {"portMappings": true}, "snat": true}%s
	]}`

// client is a host on which a Nomad client has prepared its network, and a machine beside it.
type client struct {
	*cnitest.TestHost
	t       *testing.T
	network string
	outside string // the other machine's namespace, at 192.0.2.2; the host is 192.0.2.1
}

// newClient makes the host. Like one with Docker it forwards nothing by itself; the client's
// chain accepts what comes for its jobs.
func newClient(t *testing.T, more string, opts ...cnitest.HostOption) *client {
	t.Helper()
	host := cnitest.Host(t, append(opts, cnitest.WithoutAudit())...)
	c := &client{host, t, fmt.Sprintf(nomads, more), cnitest.Container(t)}
	expect.NoError(t, c.Do(c.cable))
	expect.NoError(t, netns.Do(c.outside, func() error { return up("peer0", "192.0.2.2/24") }))
	c.iptables("-P FORWARD DROP")
	c.iptables("-N NOMAD-ADMIN")
	c.iptables("-A NOMAD-ADMIN -o nomad -d 10.72.64.0/20 -j ACCEPT")
	return c
}

// cable connects the host with the other machine.
func (c *client) cable() error {
	peer, err := os.Open(c.outside)
	if err != nil {
		return err
	}
	defer peer.Close()
	link := netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "peer0", PeerNamespace: netlink.NsFd(int(peer.Fd()))}
	link.Name = "up0"
	if err := netlink.LinkAdd(&link); err != nil {
		return err
	}
	return up("up0", "192.0.2.1/24")
}

// up gives an interface an address, and sets it up.
func up(name, address string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	addr, err := netlink.ParseAddr(address)
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(link, addr); err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

// iptables returns the output of a command on the host.
func (c *client) iptables(command string) (out string) {
	c.t.Helper()
	expect.NoError(c.t, c.Do(func() error {
		text, err := exec.Command("iptables", append([]string{"-w"}, strings.Fields(command)...)...).CombinedOutput()
		if out = string(text); err != nil {
			err = fmt.Errorf("iptables %s: %w: %s", command, err, text)
		}
		return err
	}))
	return out
}

// restarted returns the Runtime of a client that has just begun.
func (c *client) restarted() *cni.Runtime {
	c.t.Helper()
	return c.Runtime(cni.WithOwner(owner), cni.WithStrictPorts(), cni.WithConfListBytes([]byte(c.network)))
}

// attached returns the only attachment.
func attached(t *testing.T, rt *cni.Runtime, id string) cni.Attachment {
	t.Helper()
	all := expect.Value(rt.Attachments(id))(t)
	expect.Must(t, len(all) == 1, "attachments of %s: %v", id, all)
	return all[0]
}

// begin starts a job as the example does. Its program does not outlive the test.
func begin(t *testing.T, rt *cni.Runtime, j job) {
	t.Helper()
	process := expect.Value(start(t.Context(), rt, j))(t)
	t.Cleanup(func() {
		if err := unix.PidfdSendSignal(int(process.Fd()), unix.SIGKILL, nil, 0); !errors.Is(err, unix.ESRCH) {
			expect.NoError(t, err)
		}
		expect.NoError(t, process.Close())
	})
}

// end ends a job as the example does after an interrupt.
func end(t *testing.T, rt *cni.Runtime, j job, process *os.File) {
	t.Helper()
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	expect.NoError(t, run(ctx, rt, j, process))
}

// left returns what an audit finds beyond an earlier one, but for the jump to the
// administrator's chain: it stays, as the chains for all containers do.
func (c *client) left(before []string) string {
	c.t.Helper()
	const jump = `-A CNI-FORWARD -m comment --comment "CNI firewall plugin admin overrides" -j NOMAD-ADMIN`
	var other strings.Builder
	for line := range strings.Lines(cnitest.Diff(before, c.Audit())) {
		if !strings.HasPrefix(line, "+ ") || !strings.HasSuffix(strings.TrimSpace(line), jump) {
			other.WriteString(line)
		}
	}
	return other.String()
}

// TestNomadsBridge: a job in the bridge network of a Nomad client is reached at its port, and
// reaches others. The administrator's chain drops the packets that it names, also after client
// and job have ended and begun again. That holds with built-in plugins and with executables.
func TestNomadsBridge(t *testing.T) {
	t.Run("built in", func(t *testing.T) { testNomadsBridge(t, newClient(t, "")) })
	t.Run("executables", func(t *testing.T) { testNomadsBridge(t, newClient(t, "", cnitest.WithReferencePlugins())) })
}

func testNomadsBridge(t *testing.T, c *client) {
	serveAt(t, c.outside, 7000, 7001)
	c.iptables("-I NOMAD-ADMIN -s 10.72.64.0/20 -p tcp --dport 7001 -j DROP")
	c.iptables("-I NOMAD-ADMIN -d 10.72.64.0/20 -p tcp --dport 81 -j DROP")
	chain, before := c.iptables("-S NOMAD-ADMIN"), c.Audit()
	t.Setenv(serveVariable, ":80 :81")
	web := job{ID: "web", Program: []string{expect.Value(os.Executable())(t)},
		Ports: []cni.Port{{Label: "HTTP", ContainerPort: 80}, {Label: "ADMIN", ContainerPort: 81}}}

	works := func(a cni.Attachment) {
		t.Helper()
		own := a.Addresses[0].IP().String()
		wantAnswer(t, c.outside, fmt.Sprint("192.0.2.1:", a.Requested[0].HostPort), own+":80 for 192.0.2.2")
		wantAnswer(t, c.NetNS, fmt.Sprint("192.0.2.1:", a.Requested[0].HostPort), own+":80 for 192.0.2.1")
		wantSilence(t, c.outside, fmt.Sprint("192.0.2.1:", a.Requested[1].HostPort))
		wantAnswer(t, a.NetNS, "192.0.2.2:7000", "192.0.2.2:7000 for 192.0.2.1")
		wantSilence(t, a.NetNS, "192.0.2.2:7001")
		expect.Same(t, "administrator's chain", c.iptables("-S NOMAD-ADMIN"), chain)
	}
	for range 2 {
		rt := c.restarted()
		begin(t, rt, web)
		works(attached(t, rt, "web"))

		next := c.restarted() // the job has gone on without a client
		running := expect.Value(adopt(t.Context(), next, []job{web}))(t)
		works(attached(t, next, "web"))
		end(t, next, web, running["web"])
		expect.Same(t, "left", c.left(before), "")
	}
	expect.Same(t, "administrator's chain", c.iptables("-S NOMAD-ADMIN"), chain)
}

// proxied are the arguments of a job with a proxy: those for one plugin are not known to others.
var proxied = map[string]string{"IgnoreUnknown": "1", proxyArg: `{"OutboundPort":15001}`}

// transparent adds the plugin for a transparent proxy to the network, and installs it.
func transparent(t *testing.T) *client {
	t.Helper()
	c := newClient(t, `, {"type": "`+proxyPlugin+`", "log_level": "debug"}`)
	expect.NoError(t, os.Symlink(expect.Value(os.Executable())(t), filepath.Join(c.PluginDir, proxyPlugin)))
	return c
}

// TestTransparentProxy: outbound connections of a job end at the proxy in its network, which
// the plugin behind those of the bridge network arranges, as the job's argument says. Another
// job's do not.
func TestTransparentProxy(t *testing.T) {
	c := transparent(t)
	serveAt(t, c.outside, 7000)
	before := c.Audit()
	t.Setenv(serveVariable, ":80 127.0.0.1:15001")
	program := []string{expect.Value(os.Executable())(t)}
	mesh := job{ID: "mesh", Program: program, Ports: []cni.Port{{Label: "HTTP", ContainerPort: 80}}, Args: proxied}
	plain := job{ID: "plain", Program: program}

	rt := c.restarted()
	for _, j := range []job{mesh, plain} {
		begin(t, rt, j)
	}
	works := func(rt *cni.Runtime) {
		t.Helper()
		a, p := attached(t, rt, "mesh"), attached(t, rt, "plain")
		own := a.Addresses[0].IP().String()
		wantAnswer(t, a.NetNS, "192.0.2.2:7000", "127.0.0.1:15001 for "+own)
		wantAnswer(t, a.NetNS, "198.51.100.9:443", "127.0.0.1:15001 for "+own) // whoever is meant
		wantAnswer(t, p.NetNS, "192.0.2.2:7000", "192.0.2.2:7000 for 192.0.2.1")
		wantAnswer(t, c.outside, fmt.Sprint("192.0.2.1:", a.Requested[0].HostPort), own+":80 for 192.0.2.2")
		expect.NoError(t, rt.Check(t.Context(), "mesh", a.NetNS), rt.Check(t.Context(), "plain", p.NetNS))
	}
	works(rt)
	next := c.restarted()
	running := expect.Value(adopt(t.Context(), next, []job{mesh, plain}))(t)
	works(next)
	for _, j := range []job{mesh, plain} {
		end(t, next, j, running[j.ID])
	}
	expect.Same(t, "left", c.left(before), "")
}

// TestTransparentProxyIsRemoved: of a container whose namespace stays, DEL takes the redirection
// away, with the arguments of the ADD, which only the record has.
func TestTransparentProxyIsRemoved(t *testing.T) {
	c := transparent(t)
	path, before := cnitest.Container(t), c.Audit()
	inside := func() (lines []string) {
		expect.NoError(t, netns.Do(path, func() (err error) {
			lines, err = cnitest.Audit(t.Context(), cnitest.Options{})
			return err
		}))
		return lines
	}
	empty := inside()
	expect.NoError(t, expect.Err(c.restarted().Setup(t.Context(), "pod", path, cni.WithLabels(proxied))))
	expect.Contains(t, "inside", strings.Join(inside(), "\n"), "redirect to :15001")
	expect.NoError(t, remove(t.Context(), c.restarted(), "pod"))
	// The kernel gives lo its address when it is first set up, for good.
	expect.Same(t, "left inside", cnitest.Diff(empty, inside()), "+ addr lo type loopback 127.0.0.1/8\n")
	expect.Same(t, "left", c.left(before), "")
}
