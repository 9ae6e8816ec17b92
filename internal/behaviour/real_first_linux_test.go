package behaviour_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
)

// eachIPTables runs a test with each variant of iptables as the plain name.
func eachIPTables(t *testing.T, test func(t *testing.T, h *realHost, variant string)) {
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) {
			bin := t.TempDir()
			for _, family := range []string{"iptables", "ip6tables"} {
				tool, err := exec.LookPath(family + "-" + variant)
				expect.NoError(t, err)
				expect.NoError(t, os.Symlink(tool, bin+"/"+family))
			}
			t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
			test(t, newRealHost(t), variant)
		})
	}
}

func (h *realHost) sh(script string) {
	h.T.Helper()
	if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
		h.T.Fatalf("%s\n%v: %s", script, err, out)
	}
}

// flushes lists the ways in which administrators, firewalld and docker flush
// rules.
func flushes() []string {
	return []string{
		"$f -F; $f -t nat -F",
		"$f -F; $f -X; $f -t nat -F; $f -t nat -X",
		"$f -F FORWARD; $f -t nat -F POSTROUTING; $f -t nat -F OUTPUT",
	}
}

// TestFault_F16_RealCrowdAfterAFlush: all are attached. The executables may make copies of
// the rules that they share, which do no more than one of them.
func TestFault_F16_RealCrowdAfterAFlush(t *testing.T) {
	eachIPTables(t, func(t *testing.T, h *realHost, _ string) {
		containers, _ := crowd()
		h.attachCrowd(1, 3)
		for i, flush := range flushes() {
			h.sh("for f in iptables ip6tables; do " + flush + "; done")
			h.attachNamed(fmt.Sprint("f", i), containers)
		}
	})
}

// attachNamed is attachCrowd with containers of another name, in this process.
func (h *realHost) attachNamed(name string, containers int) {
	h.T.Helper()
	calls := make([]crowdCall, 1)
	for i := range containers {
		id := fmt.Sprint(name, "-", i)
		calls[0].Members = append(calls[0].Members, crowdMember{id, h.Container(id), int32(10000 + i)})
	}
	addresses, took := h.inCrowd("ADD", calls)
	if once := slices.Compact(slices.Sorted(slices.Values(addresses))); len(once) != containers {
		h.T.Errorf("%d containers have the addresses %q", containers, addresses)
	}
	h.inCrowd("DEL", calls)
	h.T.Logf("%s: %d containers at once: attached in %v", name, len(addresses), took)
}

// wrapped makes a plugin directory in which some of the reference plugins are
// wrapped in scripts, so that nobody recognises them. The ADD of containers
// whose names begin with "hangs" waits at the gate.
func (h *realHost) wrapped(gate string, types ...string) (dir string) {
	h.T.Helper()
	dir = h.Path("wrapped")
	expect.NoError(h.T, os.MkdirAll(dir, 0o755))
	for _, name := range []string{"bridge", "firewall", "portmap", "host-local"} {
		real := testhost.ReferencePlugins(h.T) + "/" + name
		if !slices.Contains(types, name) {
			expect.NoError(h.T, os.Symlink(real, dir+"/"+name))
			continue
		}
		script := fmt.Sprintf("#!/bin/sh\ncase $CNI_COMMAND$CNI_CONTAINERID in ADDhangs*) : >%s.there; cat %s >/dev/null;; esac\nexec %s\n", gate, gate, real)
		expect.NoError(h.T, os.WriteFile(dir+"/"+name, []byte(script), 0o755))
	}
	return dir
}

// crowdAround attaches a crowd on r, with or without a first ADD that hangs. It
// checks that none of the crowd fails and that nothing is duplicated.
func (h *realHost) crowdAround(r *cni.Runtime, name string, containers int) time.Duration {
	h.T.Helper()
	paths := make([]string, containers)
	for i := range paths {
		paths[i] = h.Container(fmt.Sprint(name, i))
	}
	addresses := make([]string, containers)
	start := time.Now()
	err := testhost.InParallel(containers, func(i int) error {
		result, err := r.Setup(context.Background(), fmt.Sprint(name, i), paths[i], testhost.MapPort(int32(20000+i)))
		if err == nil {
			addresses[i] = result.IPv4().Prefix.String()
		}
		return err
	})
	took := time.Since(start)
	if err != nil {
		h.T.Error(err)
	}
	h.wantNoneTwice(nil, addresses)
	expect.NoError(h.T, testhost.InParallel(containers, func(i int) error {
		return r.Remove(context.Background(), fmt.Sprint(name, i), paths[i])
	}))
	return took
}

// TestFault_F31_RealCrowdBehindAHangingFirst: the network's first ADD hangs in
// each of its plugins in turn. No plugin is recognised.
func TestFault_F31_RealCrowdBehindAHangingFirst(t *testing.T) {
	eachIPTables(t, func(t *testing.T, h *realHost, _ string) {
		containers, _ := crowd()
		for i, typ := range []string{"bridge", "firewall", "portmap"} {
			gate := h.Path("gate-" + typ)
			expect.NoError(t, os.RemoveAll(h.Path("wrapped")))
			r := h.Runtime(cni.WithHostNetNS(h.Path("netns", "host")), cni.WithPluginDir([]string{h.wrapped(gate, typ)}),
				cni.WithConfListBytes(h.crowdList()),
				cni.WithStateDir(h.Path(fmt.Sprint("state", i)))) // where there was no first ADD
			h.sh("for f in iptables ip6tables; do $f -F; $f -X; $f -t nat -F; $f -t nat -X; done")
			letGo := h.Hanging(r, "hangs-"+typ, gate, testhost.MapPort(9999))
			t.Logf("%d containers behind %s: %v", containers, typ, h.crowdAround(r, typ, containers))
			letGo()
			h.wantNoRuleTwice()
			expect.NoError(t, r.Remove(t.Context(), "hangs-"+typ, h.Path("netns", "hangs-"+typ)))
		}
	})
}

// TestFault_F31_RealNeighbourBehindAHangingFirst: nobody waits for known
// executables, whatever hangs beside them.
func TestFault_F31_RealNeighbourBehindAHangingFirst(t *testing.T) {
	eachIPTables(t, func(t *testing.T, h *realHost, _ string) {
		h.Plugin(scripted.Script{Verbs: map[string]scripted.Action{"ADD": {Block: h.Path("gate")}}}, "hang")
		hung := strings.Replace(string(h.crowdList()), `"plugins": [`, `"plugins": [{"type": "hang", "script": "`+h.Path("script-hang")+`"}, `, 1)
		hung = strings.Replace(hung, `"podnet"`, `"hungnet"`, 1)
		expect.NoError(t, syscall.Mkfifo(h.Path("gate"), 0o600))
		r := h.Real(cni.WithHostNetNS(h.Path("netns", "host")), cni.WithPluginDir([]string{testhost.ReferencePlugins(t), h.Path("bin")}),
			cni.WithConfListBytes(h.crowdList()), cni.WithConfListBytes([]byte(hung)))
		ctx, cancel := context.WithCancel(t.Context())
		path := h.Container("hangs")
		done := testhost.Begin(func() error {
			_, err := r.Setup(ctx, "hangs", path, cni.WithNetwork("hungnet"), testhost.MapPort(9999))
			return err
		})
		expect.Eventually(t, "the plugin that hangs", func() bool { return len(h.Calls()) > 0 })
		start := time.Now()
		_, err := r.Setup(t.Context(), "c1", h.Container("c1"), cni.WithNetwork("podnet"), testhost.MapPort(8080))
		expect.NoError(t, err)
		t.Logf("the neighbour took %v", time.Since(start))
		cancel()
		if err := expect.Await(t, "the one that hung", done); err == nil {
			t.Error("the one that hung has succeeded")
		}
		h.wantNoRuleTwice()
	})
}

// wantNoRuleTwice checks that iptables-save has no duplicate line.
func (h *realHost) wantNoRuleTwice() {
	h.T.Helper()
	seen := map[string]bool{}
	for _, l := range h.Audit() {
		if strings.HasPrefix(l, "ip") && seen[l] {
			h.T.Errorf("twice: %s", l)
		}
		seen[l] = true
	}
}
