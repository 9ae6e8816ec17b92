package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/netns"
)

// macvlanConf is that of Multus' quickstart guide, to the letter.
const macvlanConf = `{
      "cniVersion": "0.3.0",
      "type": "macvlan",
      "master": "eth0",
      "mode": "bridge",
      "ipam": {
        "type": "host-local",
        "subnet": "192.168.1.0/24",
        "rangeStart": "192.168.1.200",
        "rangeEnd": "192.168.1.216",
        "routes": [
          { "dst": "0.0.0.0/0" }
        ],
        "gateway": "192.168.1.1"
      }
    }`

// macvlanAddresses is where host-local keeps them if nothing else is configured.
const macvlanAddresses = "/var/lib/cni/networks/macvlan-conf"

// quickstart gives the cluster the definitions of the guide, and the site the plugins that
// they need and an interface eth0. A pod with these networks has four interfaces.
func (s *site) quickstart(c *cluster) (networks string) {
	s.t.Helper()
	plugins := expect.Value(refplugins.Dir(s.t.Context(), os.Stderr))(s.t)
	for _, name := range []string{"macvlan", "host-local"} {
		expect.NoError(s.t, os.Symlink(filepath.Join(plugins, name), filepath.Join(s.PluginDir, name)))
	}
	ip := func(args ...string) { s.t.Helper(); expect.NoError(s.t, s.Do(exec.Command("ip", args...).Run)) }
	ip("link", "add", "eth0", "up", "type", "veth", "peer", "name", "cable0")
	ip("link", "set", "cable0", "up")
	s.t.Cleanup(func() {
		ip("link", "delete", "eth0")
		expect.NoError(s.t, os.RemoveAll(macvlanAddresses)) // the plugin goes on after the last address
	})
	c.addDefinition("macvlan-conf", macvlanConf)
	c.addDefinition("backup", strings.ReplaceAll(fmt.Sprintf(storage, s.path("ipam")), "10.65.", "10.67."))
	c.addDefinition("storage", "") // a file of the node has it
	return "macvlan-conf,backup,storage"
}

// addresses returns name, interface and addresses of each network in a status.
func addresses(t *testing.T, status string) (all []string) {
	t.Helper()
	var parsed []struct {
		Name, Interface string
		IPs             []string
	}
	expect.NoError(t, json.Unmarshal([]byte(status), &parsed))
	for _, s := range parsed {
		all = append(all, fmt.Sprint(s.Name, " ", s.Interface, " ", s.IPs))
	}
	return all
}

// TestTheQuickstartPod of Multus gets its four interfaces, by definitions and a file of the
// node, and reaches another pod. Its status says so. After DEL nothing is left.
func TestTheQuickstartPod(t *testing.T) {
	s, ctx := newSite(t), t.Context()
	k := s.onCluster()
	networks := s.quickstart(k)
	p := s.start()
	expect.Eventually(t, "the cache", func() bool { return isSynced(t) })
	pod := s.pod("samplepod", k.addPod("samplepod", networks))
	expect.Value(s.add(ctx, pod))(t)
	expect.Same(t, "interfaces", interfaces(t, pod), []string{"lo", "eth0", "net1", "net2", "net3"})
	expect.Same(t, "status", addresses(t, k.status("samplepod")), []string{
		"podnet eth0 [10.64.0.2]", "shop/macvlan-conf net1 [192.168.1.200]", "shop/backup net2 [10.67.0.2]", "shop/storage net3 [10.65.0.2]",
	})
	k.addPod("other", "macvlan-conf")
	other := s.pod("other", "") // an older runtime sends no UID, and the cache may not have the pod yet
	expect.Value(s.add(ctx, other))(t)
	ns := expect.Value(netns.Open(pod.NetNS))(t)
	nettest.Serve(t, ns, 80)
	expect.NoError(t, ns.Close())
	for address, want := range map[string]string{"192.168.1.200:80": "192.168.1.201", "10.64.0.2:80": "10.64.0.3"} {
		expect.Same(t, "the client's address at "+address, ask(t, other.NetNS, address), want)
	}
	expect.NoError(t, s.cni.CheckNetworkList(ctx, s.list(), pod))

	// The kubelet deletes the sandbox, and then the pod; or somebody deletes the pod first.
	expect.NoError(t, s.del(ctx, pod))
	k.deletePod("samplepod")
	k.deletePod("other")
	expect.NoError(t, s.del(ctx, other))
	for _, c := range []string{pod.NetNS, other.NetNS} {
		pod.NetNS = c
		expect.Same(t, "interfaces after DEL", interfaces(t, pod), []string{"lo"})
	}
	expect.Empty(t, "addresses of the quickstart", expect.Value(filepath.Glob(macvlanAddresses+"/192.*"))(t))
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)
	expect.Lacks(t, "log", p.rest(), `"level":"WARN"`)
}

// ask returns the address of a client in a namespace as the server sees it.
func ask(t *testing.T, path, address string) (client string) {
	t.Helper()
	expect.NoError(t, netns.Do(path, func() error {
		c, err := net.DialTimeout("tcp", address, expect.Patience)
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := io.WriteString(c, "?"); err != nil {
			return err
		}
		_ = c.SetReadDeadline(time.Now().Add(expect.Patience))
		buffer := make([]byte, 64)
		n, err := c.Read(buffer)
		client, _, _ = strings.Cut(string(buffer[:n]), "\n")
		return err
	}))
	return client
}

// TestAPodLearnsWhyItFails by an Event, again and again by one that counts, and the log
// names it.
func TestAPodLearnsWhyItFails(t *testing.T) {
	s, ctx := newSite(t), t.Context()
	k := s.onCluster()
	uid := k.addPod("web", "missing")
	p := s.start()
	c := s.pod("web", uid)
	for range 2 {
		_, err := s.add(ctx, c)
		expect.Says(t, "ADD", err, "there is no NetworkAttachmentDefinition shop/missing")
		p.find("call refused", `"verb":"ADD"`, `"container":"sandbox-of-web"`, `"pod":"shop/web"`, `"network":"node"`, `"code":7`, "shop/missing")
	}
	event := k.event("web", 2)
	expect.Same(t, "the pod", expect.JSON(t, expect.Value(json.Marshal(event.InvolvedObject))(t)),
		`{"apiVersion":"v1","kind":"Pod","name":"web","namespace":"shop","uid":"`+uid+`"}`)
	expect.Same(t, "type and reason", fmt.Sprint(event.Type, " ", event.Reason, " ", event.Source), "Warning NetworkAttachmentFailed {embedcnid node-1}")
	expect.Contains(t, "message", event.Message, "interface eth0: ", "there is no NetworkAttachmentDefinition shop/missing")
	expect.NoError(t, s.del(ctx, c))
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)
}

// TestEachRightIsNeeded: without one verb of the manifest, the log names it.
func TestEachRightIsNeeded(t *testing.T) {
	s, ctx := newSite(t), t.Context()
	k := s.onCluster()
	k.addDefinition("backup", strings.ReplaceAll(fmt.Sprintf(storage, s.path("ipam")), "10.65.", "10.67."))
	rules := clusterRules(t)
	for _, r := range rules {
		for _, verb := range r.Verbs {
			right := verb + "-" + strings.ReplaceAll(r.Resources[0], "/", "-")
			k.allow(without(rules, verb, r.Resources[0]))
			p := s.start()
			fine, bad, none := s.pod("fine-"+right, k.addPod("fine-"+right, "backup")), s.pod("bad-"+right, k.addPod("bad-"+right, "missing")), s.pod("none", "")
			for range 2 { // the second Event of one kind is a patch
				_, err := s.add(ctx, bad)
				expect.Fails(t, "an ADD with a missing network", err)
			}
			_, err := s.add(ctx, none)
			expect.Fails(t, "an ADD of a pod that does not exist", err)
			_, err = s.add(ctx, fine)
			if right == "patch-pods-status" {
				expect.Says(t, "ADD", err, "the daemon's service account needs the verb patch on pods/status")
			} else {
				expect.NoError(t, err)
			}
			p.findText(fmt.Sprintf(`cannot %s resource "%s" in API group "%s"`, verb, r.Resources[0], r.APIGroups[0]))
			expect.NoError(t, s.del(ctx, fine), s.del(ctx, bad), s.del(ctx, none))
			expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)
		}
	}
}

// TestAnAPIServerThatIsKilled: what needs the server waits, what does not goes on, and the log
// says why. A daemon that starts meanwhile is not ready until the server is back.
func TestAnAPIServerThatIsKilled(t *testing.T) {
	s, ctx := newSite(t), t.Context()
	k := s.onCluster()
	networks := s.quickstart(k)
	first, second := s.pod("first", k.addPod("first", networks)), s.pod("second", k.addPod("second", networks))
	p := s.start()
	expect.Eventually(t, "the cache", func() bool { return isSynced(t) })
	expect.Value(s.add(ctx, first))(t)
	k.kill()
	p.find("watch the API server", `"level":"WARN"`)
	expect.Eventually(t, "/readyz to be 200 and to say so", func() bool {
		status, text := get(t, "/readyz")
		return status == 200 && strings.Contains(text, "[!]kubernetes: ") && strings.Contains(text, " have not been watched since 2")
	})
	expect.NoError(t, s.del(ctx, first))
	added := make(chan error, 1)
	go func() { added <- expect.Err(s.add(ctx, second)) }()
	expect.Eventually(t, "interfaces from the cache", func() bool { return len(interfaces(t, second)) == 5 })
	k.begin()
	expect.NoError(t, expect.Await(t, "the ADD, whose status waits for the server", added))
	expect.Eventually(t, "the watch", func() bool { return isSynced(t) })
	expect.Same(t, "number of networks in the status", len(addresses(t, k.status("second"))), 4)

	expect.Same(t, "exit code", p.end(syscall.SIGKILL), -1)
	k.kill()
	p = s.start()
	status, text := get(t, "/readyz")
	expect.Same(t, "status", status, 503)
	expect.Contains(t, "/readyz", text, "[-]kubernetes: pods and definitions have not been listed yet\n", "[+]listening\n")
	expect.NoError(t, s.del(ctx, second))
	expect.Same(t, "interfaces", interfaces(t, second), []string{"lo"})
	k.begin()
	expect.Eventually(t, "the cache", func() bool {
		status, _ := get(t, "/readyz")
		return status == 200
	})
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)
}
