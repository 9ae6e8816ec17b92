package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/cri-o/ocicni/pkg/ocicni"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

// crio returns the library by which CRI-O asks plugins, with a cache of its own: of what others
// attach by the shim it has no entry, as a runtime that has lost its own.
func (s *site) crio(version string) ocicni.CNIPlugin {
	s.t.Helper()
	dir := s.path("crio", version)
	expect.NoError(s.t, os.MkdirAll(filepath.Join(dir, "net.d"), 0o755))
	text := strings.Replace(string(s.list().Bytes), "1.1.0", version, 1)
	expect.NoError(s.t, os.WriteFile(filepath.Join(dir, "net.d", "00-node.conflist"), []byte(text), 0o644))
	return expect.Value(ocicni.InitCNINoInotify("", filepath.Join(dir, "net.d"), filepath.Join(dir, "cache"), s.cni.Path...))(s.t)
}

// pod returns a pod of CRI-O, which asks for the networks in its conflist.
func pod(c *libcni.RuntimeConf) *ocicni.PodNetwork {
	return &ocicni.PodNetwork{Name: c.ContainerID, Namespace: "default", ID: c.ContainerID, UID: "uid-" + c.ContainerID, NetNS: c.NetNS}
}

// collection is a host on which a GC is due.
type collection struct {
	*site
	crio                                 ocicni.CNIPlugin
	stays, goes, lost, elsewhere, others *libcni.RuntimeConf
}

// newCollection attaches by CRI-O a pod that stays and one that goes; of the same network one
// that CRI-O has lost, and one that died; and of other networks, and of another owner, one each.
func (s *site) newCollection(version string) *collection {
	s.t.Helper()
	t, ctx := s.t, s.t.Context()
	c := &collection{
		s, s.crio(version), s.container("stays", ""), s.container("goes", ""), s.container("lost", ""),
		s.container("elsewhere", ""), s.container("others", ""),
	}
	for _, mine := range []*libcni.RuntimeConf{c.stays, c.goes} {
		expect.Value(c.crio.SetUpPod(*pod(mine)))(t)
	}
	dead := s.container("dead", "")
	dead.NetNS = s.path("dead")
	expect.NoError(t, expect.Value(netns.Create(dead.NetNS))(t).Close())
	for _, lost := range []*libcni.RuntimeConf{c.lost, dead} {
		expect.Value(s.add(ctx, lost))(t)
	}
	expect.NoError(t, netns.Remove(dead.NetNS))
	other := expect.Value(libcni.ConfListFromBytes([]byte(strings.Replace(string(s.list().Bytes), `"node"`, `"other"`, 1))))(t)
	expect.Value(s.cni.AddNetworkList(ctx, other, c.elsewhere))(t)
	owner := s.Runtime(cni.WithOwner("other"), cni.WithDefaultConf)
	expect.Value(owner.Setup(ctx, "others", c.others.NetNS))(t)
	t.Cleanup(func() { expect.NoError(t, owner.Remove(context.WithoutCancel(ctx), "others", "")) })
	return c
}

// wantLeft compares what the containers have after a GC, and waits until the dead one is gone.
func (c *collection) wantLeft(what string, lost bool) {
	c.t.Helper()
	got := map[string]bool{}
	for _, one := range []*libcni.RuntimeConf{c.stays, c.goes, c.lost, c.elsewhere, c.others} {
		got[one.ContainerID] = len(interfaces(c.t, one)) > 1
	}
	expect.Same(c.t, what, got, map[string]bool{"stays": true, "goes": false, "lost": lost, "elsewhere": true, "others": true})
	daemons := c.Runtime(cni.WithOwner("embedcnid"))
	expect.Eventually(c.t, what+": the end of the dead one", func() bool {
		return len(expect.Value(daemons.Attachments("dead"))(c.t)) == 0
	})
}

func (c *collection) end(p *process) {
	c.t.Helper()
	for _, one := range []*libcni.RuntimeConf{c.stays, c.goes} {
		expect.NoError(c.t, c.crio.TearDownPod(*pod(one)))
	}
	expect.NoError(c.t, c.del(c.t.Context(), c.lost))
	other := expect.Value(libcni.ConfListFromBytes([]byte(strings.Replace(string(c.list().Bytes), `"node"`, `"other"`, 1))))(c.t)
	expect.NoError(c.t, c.cni.DelNetworkList(c.t.Context(), other, c.elsewhere))
	expect.Same(c.t, "exit code", p.end(syscall.SIGTERM), 0)
}

// TestGCFromCRIO: CRI-O names the pods that are valid. What it has attached otherwise ends by
// DELs, from its cache. What it has lost ends if the configuration says so; what died ends in
// any case. An ADD that is under way meanwhile is nobody's garbage.
func TestGCFromCRIO(t *testing.T) {
	for _, carriedOut := range []bool{false, true} {
		t.Run(fmt.Sprint("gc: ", carriedOut), func(t *testing.T) {
			s := newSite(t)
			s.config["gc"] = carriedOut
			s.write()
			p := s.start()
			c := s.newCollection("1.1.0")
			expect.NoError(t, c.crio.Status())
			slow, goOn, added := s.addSlowly()
			if carriedOut { // it waits for ADDs under way, as long as its caller does
				soon, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
				defer cancel()
				expect.Fails(t, "a GC beside an ADD", c.crio.GC(soon, []*ocicni.PodNetwork{pod(c.stays)}))
			} else {
				expect.NoError(t, c.crio.GC(t.Context(), []*ocicni.PodNetwork{pod(c.stays)}))
			}
			goOn()
			expect.NoError(t, expect.Await(t, "the ADD that was under way", added))
			expect.Same(t, "interfaces of the one that was under way", interfaces(t, slow), []string{"lo", "eth0"})
			expect.NoError(t, s.cni.CheckNetworkList(t.Context(), s.list(), slow), s.del(t.Context(), slow))
			expect.NoError(t, c.crio.GC(t.Context(), []*ocicni.PodNetwork{pod(c.stays)}))
			c.wantLeft("after GC", !carriedOut)

			// A list without a pod is written as null. It is no mistake.
			expect.NoError(t, c.crio.GC(t.Context(), nil))
			expect.Same(t, "after GC without a pod", len(interfaces(t, c.stays)) > 1, false)
			c.end(p)
		})
	}
}

// addSlowly begins an ADD whose plugin waits, after the first network is attached.
func (s *site) addSlowly() (c *libcni.RuntimeConf, goOn func(), added <-chan error) {
	s.t.Helper()
	started, wait := s.path("started"), s.path("wait")
	expect.NoError(s.t, syscall.Mkfifo(wait, 0o600))
	plugin := fmt.Sprintf("#!/bin/sh\n[ \"$CNI_COMMAND\" = ADD ] || exit 0\n: >%s; cat %s; echo '{\"cniVersion\": \"1.0.0\"}'\n", started, wait)
	expect.NoError(s.t, os.WriteFile(filepath.Join(s.PluginDir, "slow"), []byte(plugin), 0o755))
	s.WriteConf("30-slow.conflist", `{"cniVersion": "1.0.0", "name": "slow", "plugins": [{"type": "slow"}]}`)
	c = s.container("slow", "slow")
	ended := make(chan error, 1)
	go func() {
		_, err := s.add(context.WithoutCancel(s.t.Context()), c)
		ended <- err
	}()
	expect.Eventually(s.t, "the plugin", func() bool { return expect.Exists(s.t, started) })
	return c, func() {
		fifo := expect.Value(os.OpenFile(wait, os.O_WRONLY|syscall.O_NONBLOCK, 0))(s.t) // fails if the plugin has ended
		expect.NoError(s.t, fifo.Close())
	}, ended
}

// TestGCWithoutADaemon waits for one, as long as its caller does. Its DELs are queued.
func TestGCWithoutADaemon(t *testing.T) {
	s := newSite(t)
	s.config["gc"] = true
	s.write()
	p := s.start()
	c := s.newCollection("1.1.0")
	expect.Same(t, "exit code", p.end(syscall.SIGKILL), -1)
	expect.Fails(t, "STATUS without a daemon", c.crio.Status())
	soon, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	expect.Fails(t, "a GC without a daemon", c.crio.GC(soon, []*ocicni.PodNetwork{pod(c.stays)}))
	collected := make(chan error, 1)
	go func() { collected <- c.crio.GC(t.Context(), []*ocicni.PodNetwork{pod(c.stays)}) }()
	p = s.start()
	expect.NoError(t, expect.Await(t, "GC", collected))
	c.wantLeft("after GC", false)
	c.end(p)
}

// TestGCOfAnEarlierVersion: 1.0.0 has neither GC nor STATUS. The library asks for the DELs alone,
// and takes a node without a daemon for ready.
func TestGCOfAnEarlierVersion(t *testing.T) {
	s := newSite(t)
	s.config["gc"] = true
	s.write()
	p := s.start("--log.level=debug")
	c := s.newCollection("1.0.0")
	expect.NoError(t, c.crio.GC(t.Context(), []*ocicni.PodNetwork{pod(c.stays)}))
	c.wantLeft("after GC", true)
	c.end(p)
	expect.NoError(t, c.crio.Status())
	log := p.rest()
	for _, verb := range []string{"GC", "STATUS"} {
		expect.Lacks(t, "log", log, `"verb":"`+verb+`"`)
	}
}

// TestGCOfACrowdedNode: 2,000 attachments are valid, of which the daemon has one.
func TestGCOfACrowdedNode(t *testing.T) {
	s, ctx := newSite(t), t.Context()
	s.config["gc"] = true
	s.write()
	p := s.start("--log.level=debug")
	stays, goes := s.container(rand.Text(), ""), s.container(rand.Text(), "")
	for _, c := range []*libcni.RuntimeConf{stays, goes} {
		expect.Value(s.add(ctx, c))(t)
	}
	valid := []types.GCAttachment{{ContainerID: stays.ContainerID, IfName: "eth0"}}
	for i := range 1999 {
		valid = append(valid, types.GCAttachment{ContainerID: fmt.Sprintf("%064x", i), IfName: "eth0"})
	}
	other := libcni.NewCNIConfigWithCacheDir(s.cni.Path, t.TempDir(), nil) // its cache repeats no DEL
	expect.NoError(t, other.GCNetworkList(ctx, s.list(), &libcni.GCArgs{ValidAttachments: valid}))
	t.Logf("GC: %v", p.find("call", `"verb":"GC"`))
	expect.Same(t, "interfaces", [][]string{interfaces(t, stays), interfaces(t, goes)}, [][]string{{"lo", "eth0"}, {"lo"}})
	expect.NoError(t, s.del(ctx, stays), s.del(ctx, goes))
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)
}
