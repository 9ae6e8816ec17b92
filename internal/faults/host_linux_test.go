package faults_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/netns"
)

// host is a network namespace that represents a host, with its own directories.
// The goroutine that made it is locked to a thread inside.
type host struct {
	t    testing.TB
	dir  string
	real string // directory of the reference plugins
}

func newHost(t testing.TB) *host {
	t.Helper()
	real := expect.Value(refplugins.Dir(context.Background(), os.Stderr))(t)
	h := &host{t: t, dir: t.TempDir(), real: real}
	t.Cleanup(h.letGo)
	h.enter("host")
	h.link()
	return h
}

// enter makes a new host namespace and moves into it. The thread is never
// unlocked and ends with the goroutine.
func (h *host) enter(name string) {
	h.t.Helper()
	ns := expect.Value(netns.Create(h.netns(name)))(h.t)
	nettest.Enter(h.t, ns)
	nettest.SetUp(h.t, ns, "lo")
	expect.NoError(h.t, nettest.NoAddressDetection(), ns.Close())
}

// letGo unmounts the remaining namespaces, so that the directory can be
// deleted.
func (h *host) letGo() {
	for _, pattern := range []string{h.netns("*"), h.path("state", "embedcni", "attachments", "netns", "*"),
		h.path("state", "embedcni", "attachments", "pool", "*", "*")} {
		paths, err := filepath.Glob(pattern)
		expect.That(h.t, err == nil, "%v", err)
		for _, path := range paths {
			err := netns.Remove(path)
			if errors.Is(err, netns.ErrNotNetNS) { // nothing is mounted on it any more
				err = os.Remove(path)
			}
			expect.That(h.t, err == nil, "%v", err)
		}
	}
}

func (h *host) path(elem ...string) string {
	return filepath.Join(append([]string{h.dir}, elem...)...)
}

func (h *host) netns(name string) string { return h.path("netns", name) }

// container makes a container's namespace and returns its path.
func (h *host) container(name string) string {
	h.t.Helper()
	ns := expect.Value(netns.Create(h.netns(name)))(h.t)
	expect.NoError(h.t, errors.Join(ns.Do(nettest.NoAddressDetection), ns.Close()))
	return h.netns(name)
}

// link fills the plugin directory with the real plugins, except for those that
// are the fault plugin.
func (h *host) link(faulty ...string) {
	h.t.Helper()
	expect.NoError(h.t, os.MkdirAll(h.path("bin"), 0o755))
	for _, name := range refplugins.Names() {
		target := filepath.Join(h.real, name)
		if slices.Contains(faulty, name) {
			target = expect.Value(filepath.Abs(faultyPlugin))(h.t)
		}
		link := h.path("bin", name)
		if now, err := os.Readlink(link); err == nil && now == target {
			continue
		}
		// By rename, so that the plugin always exists.
		expect.NoError(h.t, os.Symlink(target, link+".new"))
		expect.NoError(h.t, os.Rename(link+".new", link))
	}
}

// spoil replaces the plugin by a fault plugin with that fault.
func (h *host) spoil(plugin string, f fault) { h.t.Helper(); h.spoilAll(f, plugin) }

func (h *host) spoilAll(f fault, plugins ...string) {
	h.t.Helper()
	for _, plugin := range plugins {
		f.Real = filepath.Join(h.real, plugin)
		expect.NoError(h.t, f.save(h.path("bin", plugin)))
	}
	h.link(plugins...)
}

// heal restores all real plugins.
func (h *host) heal() { h.t.Helper(); h.link() }

// chain returns the plugins of a network, in order. bridge runs host-local.
func chain() []string { return []string{"bridge", "firewall", "portmap"} }

// network returns a network of those plugins, with its own bridge and subnet.
func (h *host) network(n int) []byte {
	return fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "net%d", "plugins": [
		{"type": "bridge", "bridge": "br%d", "isGateway": true, "isDefaultGateway": %v, "ipMasq": true,
		 "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.%d.0.0/16"}]]}},
		{"type": "firewall", "backend": "iptables"},
		{"type": "portmap", "backend": "iptables", "snat": true, "capabilities": {"portMappings": true}}]}`,
		n, n, n == 0, h.path("ipam"), 70+n)
}

// inProcess returns settings with the built-in plugins, and one network with a
// packet filter backend: iptables, which is the executables', or unnamed.
func (h *host) inProcess(backend string) settings {
	conf := string(h.network(0))
	named := ""
	if backend != "" {
		named = fmt.Sprintf(`, "backend": %q`, backend)
		conf = strings.Replace(conf, `"ipMasq": true`, fmt.Sprintf(`"ipMasq": true, "ipMasqBackend": %q`, backend), 1)
	}
	conf = strings.Replace(conf, `{"type": "portmap", "backend": "iptables"`, `{"type": "portmap"`+named, 1)
	return settings{StateDir: h.path("state"), HostNetNS: h.netns("host"), BuiltIn: true, Confs: [][]byte{[]byte(conf)}}
}

// flannel returns flannel's configuration with a lease of the first network's subnet, and the
// lease's file.
func (h *host) flannel() (conf, lease string) {
	h.t.Helper()
	lease = h.path("subnet.env")
	expect.NoError(h.t, os.WriteFile(lease, []byte("FLANNEL_NETWORK=10.64.0.0/10\nFLANNEL_SUBNET=10.70.0.1/16\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n"), 0o644))
	return fmt.Sprintf(`{"type": "flannel", "subnetFile": %q, "dataDir": %q, "ipam": {"dataDir": %q}, "delegate": {"bridge": "br0", "isDefaultGateway": true}}`,
		lease, h.path("ipam", "flannel"), h.path("ipam")), lease
}

// overFlannel returns the settings of inProcess with flannel, whose delegate is the bridge.
func (h *host) overFlannel() settings {
	h.t.Helper()
	s, bridge := h.inProcess(""), regexp.MustCompile(`(?s)\{"type": "bridge".*?\]\]\}\}`)
	flannel, _ := h.flannel()
	s.Confs[0] = bridge.ReplaceAllLiteral(s.Confs[0], []byte(flannel))
	return s
}

func (h *host) settings(networks int) settings {
	s := settings{StateDir: h.path("state"), HostNetNS: h.netns("host"), PluginDirs: []string{h.path("bin")}}
	for n := range networks {
		s.Confs = append(s.Confs, h.network(n))
	}
	return s
}

func (h *host) runtime(s settings) *cni.Runtime {
	h.t.Helper()
	return expect.Value(s.runtime())(h.t)
}

// audit lists the parts of this host that belong to containers.
func (h *host) audit() audit.Lines {
	h.t.Helper()
	lines, err := audit.Snapshot(context.Background(), audit.Options{
		StateDirs: []string{h.path("state"), h.path("ipam")}, WithoutProcess: true, Complete: true}) // the process is checked elsewhere
	expect.NoError(h.t, err)
	return lines.Without(audit.Shared).Without(func(line string) bool {
		own := h.path("state", "embedcni") // locks and marks belong to the host
		return strings.HasPrefix(line, "dir ") || strings.Contains(line, own+"/locks") || strings.Contains(line, own+"/alive") || strings.Contains(line, own+"/networks/")
	})
}

// left returns a container's additions since before, the contents of its
// namespace if that exists, and the processes that work on it.
func (h *host) left(before audit.Lines, id string) audit.Lines {
	h.t.Helper()
	left, gone := audit.Diff(before, h.audit())
	for _, line := range gone {
		left = append(left, "gone: "+line)
	}
	left = append(left, h.inside(id)...)
	for _, pid := range processesOf(h.t, id) {
		left = append(left, fmt.Sprintf("process %s", pid))
	}
	return left
}

// inside returns the interfaces in the container, except lo, which always
// exists.
func (h *host) inside(id string) (links audit.Lines) {
	h.t.Helper()
	err := netns.Do(h.netns(id), func() error {
		all, err := audit.Dump(netlink.LinkList)
		for _, l := range all {
			if l.Attrs().Name != "lo" {
				links = append(links, "in the container: "+l.Attrs().Name)
			}
		}
		return err
	})
	if !errors.Is(err, os.ErrNotExist) { // else there is no such namespace
		expect.NoError(h.t, err)
	}
	return links
}

// killed matches the status of a process with a pending SIGKILL, signal 9
// (proc_pid_status(5)).
var killed = regexp.MustCompile(`(?m)^(Sig|Shd)Pnd:\s[0-9a-f]*[13579bdf][0-9a-f]{2}$`)

// processesOf returns the running processes that were started for the
// container.
func processesOf(t testing.TB, id string) []string {
	t.Helper()
	files := expect.Value(filepath.Glob("/proc/[0-9]*/environ"))(t)
	variable := []byte("CNI_CONTAINERID=" + id + "\x00")
	var found []string
	for _, file := range files {
		// A zombie has no environment, and a process that has just ended has no
		// file. A killed one does nothing more, however late it gets to its end.
		env, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(env, variable) {
			continue
		}
		status, err := os.ReadFile(filepath.Join(filepath.Dir(file), "status"))
		if err == nil && !killed.Match(status) {
			found = append(found, filepath.Base(filepath.Dir(file)))
		}
	}
	return found
}
