package cli

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/cmd/embedcni/internal/conf"
	"github.com/embedcni/cni/cnitest"
	"github.com/embedcni/cni/internal/expect"
)

// Whatever conf new bridge prints, conf check accepts, and containers are attached to it
// without executables.
func TestConfNewBridge(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	vlans := canFilterVLANs(t)
	for n := range 8 {
		args := []string{"conf", "new", "bridge", "--name", fmt.Sprint("net-", n)}
		families := 1 + r.IntN(3)
		if families&1 != 0 {
			args = append(args, "--subnet", fmt.Sprintf("10.%d.0.0/24", n+1))
		}
		if families&2 != 0 {
			args = append(args, "--subnet6", fmt.Sprintf("fd00:%x::/64", n+1))
		}
		for _, flag := range []string{"--ports", "--firewall", "--bandwidth", "--no-masquerade", "--hairpin", "--isolate=same-bridge", "--isolate=isolated", "--mtu=1400", "--cni-version=1.1.0"} {
			if r.IntN(2) == 0 {
				args = append(args, flag)
			}
		}
		if vlans && r.IntN(2) == 0 {
			args = append(args, "--vlan", fmt.Sprint(1+r.IntN(4094)))
		}
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Log(strings.Join(args, " "))
			s := newSession(t)
			expect.NoError(t, os.Remove(filepath.Join(s.host.ConfDir, "10-pods.conflist")))
			stdout, stderr := s.want(exitOK, append(args, "--data-dir", s.host.Dir+"/ipam")...)
			expect.Same(t, "stderr", stderr, "")
			s.host.WriteConf("10-net.conflist", stdout)
			checked, _ := s.want(exitOK, "conf", "check")
			expect.Same(t, "conf check", checked, "1 file checked: no mistake found\n")
			rt := s.host.Runtime(cni.WithDefaultConf)
			result, err := rt.Setup(t.Context(), "web", cnitest.Container(t))
			expect.NoError(t, err)
			expect.Same(t, "has an IPv4 address", result.IPv4().IsValid(), families&1 != 0)
			expect.Same(t, "has an IPv6 address", result.IPv6().IsValid(), families&2 != 0)
			expect.Same(t, "interfaces that an executable made", rt.GetConfig().Networks[0].Config.Plugins[0].Kind, "built in")
			health, err := rt.Health(t.Context(), cni.HealthOptions{})
			expect.NoError(t, err)
			expect.Same(t, "health", fmt.Sprint(health), "[web: healthy]")
		})
	}
}

// canFilterVLANs reports whether the kernel has bridges with VLANs.
func canFilterVLANs(t *testing.T) bool {
	t.Helper()
	yes := true
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "vlans0"}, VlanFiltering: &yes}
	host := cnitest.Host(t, cnitest.WithoutAudit())
	err := host.Do(func() error { return netlink.LinkAdd(bridge) })
	t.Logf("a bridge with VLANs: %v", err)
	return err == nil
}

func TestConfNewBridgeRefuses(t *testing.T) {
	s := newSession(t)
	for _, c := range []struct{ args, want string }{
		{"", "--name is missing"},
		{"--name pods", "--subnet and --subnet6 are missing: name one of them"},
		{"--name pods --subnet x", `--subnet: netip.ParsePrefix("x"): no '/'`},
		{"--name pods --subnet fd00::/64", "--subnet fd00::/64 is of the other family"},
		{"--name pods --subnet 10.1.0.1/24", "10.1.0.1/24"},
		{"--name a-name-that-is-long --subnet 10.1.0.0/24", "a-name-that-is-long0"},
		{"--name pods --subnet 10.1.0.0/24 --isolate none", "none"},
		{"--name pods --subnet 10.1.0.0/24 --cni-version 2", "2"},
	} {
		stdout, stderr := s.want(exitUsage, append([]string{"conf", "new", "bridge"}, strings.Fields(c.args)...)...)
		expect.Contains(t, c.args, stderr, c.want)
		expect.Same(t, "stdout", stdout, "")
	}
}

func TestConfCheck(t *testing.T) {
	s := newSession(t)
	file := filepath.Join(s.host.ConfDir, "20-bad.conflist")
	s.host.WriteConf("20-bad.conflist", `{"cniVersion": "1.0.0", "name": "pods",
 "plugins": [{"type": "brigde"}]}`)
	stdout, stderr := s.want(exitBad, "conf", "check", "--json")
	expect.Same(t, "stderr", stderr, "")
	var got []conf.Finding
	expect.NoError(t, json.Unmarshal([]byte(stdout), &got))
	expect.Same(t, "findings", got, []conf.Finding{
		{File: file, Line: 1, Column: 33, Message: `network "pods" is in ` + filepath.Join(s.host.ConfDir, "10-pods.conflist") + " too", Mend: "rename one of them, or delete a file"},
		{File: file, Line: 2, Column: 23, Message: `there is no plugin "brigde": it is neither built in nor installed`, Mend: `write "bridge", or install it in ` + s.host.PluginDir},
	})
	stdout, _ = s.want(exitBad, "conf", "check", file)
	expect.Same(t, "text", stdout, file+`:2:23: there is no plugin "brigde": it is neither built in nor installed
  write "bridge", or install it in `+s.host.PluginDir+`
1 file checked: 1 mistake found
`)
	stdout, _ = s.want(exitOK, "conf", "check", filepath.Join(s.host.ConfDir, "10-pods.conflist"), "--json")
	expect.Same(t, "nothing found", stdout, "[]\n")
	_, stderr = s.want(exitFailed, "conf", "check", "/nowhere")
	expect.Contains(t, "error", stderr, "/nowhere: no such file or directory")
}
