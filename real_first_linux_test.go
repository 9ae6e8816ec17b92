package cni_test

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
	"github.com/embedcni/cni/internal/scripted"
)

// eachIPTables runs a test with each variant of iptables by the plain name.
func eachIPTables(t *testing.T, test func(t *testing.T, h *realHost, variant string)) {
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) {
			bin := t.TempDir()
			for _, family := range []string{"iptables", "ip6tables"} {
				tool, err := exec.LookPath(family + "-" + variant)
				wantNil(t, err)
				wantNil(t, os.Symlink(tool, bin+"/"+family))
			}
			t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
			test(t, newRealHost(t), variant)
		})
	}
}

func (h *realHost) sh(script string) {
	h.t.Helper()
	if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
		h.t.Fatalf("%s\n%v: %s", script, err, out)
	}
}

// flushes are what administrators, firewalld and docker do.
func flushes() []string {
	return []string{
		"$f -F; $f -t nat -F",
		"$f -F; $f -X; $f -t nat -F; $f -t nat -X",
		"$f -F FORWARD; $f -t nat -F POSTROUTING; $f -t nat -F OUTPUT",
	}
}

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
	h.t.Helper()
	calls := make([]crowdCall, 1)
	for i := range containers {
		id := fmt.Sprint(name, "-", i)
		calls[0].Members = append(calls[0].Members, crowdMember{id, h.container(id), int32(10000 + i)})
	}
	addresses, took := h.inCrowd("ADD", calls)
	h.wantNoneTwice(nil, addresses)
	h.inCrowd("DEL", calls)
	h.t.Logf("%s: %d containers at once: attached in %v", name, len(addresses), took)
}

// wrapped makes a plugin directory in which some of the reference plugins are
// scripts that run them, so that nobody knows what they are. The ADD of the
// containers whose names begin with "hangs" waits at the gate.
func (h *realHost) wrapped(gate string, types ...string) (dir string) {
	h.t.Helper()
	dir = h.path("wrapped")
	wantNil(h.t, os.MkdirAll(dir, 0o755))
	for _, name := range []string{"bridge", "firewall", "portmap", "host-local"} {
		real := referencePlugins(h.t) + "/" + name
		if !slices.Contains(types, name) {
			wantNil(h.t, os.Symlink(real, dir+"/"+name))
			continue
		}
		script := fmt.Sprintf("#!/bin/sh\ncase $CNI_COMMAND$CNI_CONTAINERID in ADDhangs*) : >%s.there; cat %s >/dev/null;; esac\nexec %s\n", gate, gate, real)
		wantNil(h.t, os.WriteFile(dir+"/"+name, []byte(script), 0o755))
	}
	return dir
}

// hanging attaches a container of such a name, which does not end before its gate is
// opened, and returns how to open it.
func (h *realHost) hanging(r *cni.Runtime, id, gate string, opts ...cni.NamespaceOpts) (letGo func()) {
	h.t.Helper()
	wantNil(h.t, syscall.Mkfifo(gate, 0o600))
	path := h.container(id)
	done := begin(func() error {
		_, err := r.Setup(context.Background(), id, path, opts...)
		return err
	})
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(gate + ".there"); err == nil {
			break
		} else if time.Now().After(end) {
			h.t.Fatalf("nobody stands at %s: %v", gate, err)
		}
	}
	return func() {
		h.t.Helper()
		wantNil(h.t, os.WriteFile(gate, nil, 0o600))
		wantNil(h.t, await(h.t, "the one that hung", done))
	}
}

// crowdAround attaches a crowd on r while the first ADD hangs, or without one
// that does, and wants none of it to fail or to be there twice.
func (h *realHost) crowdAround(r *cni.Runtime, name string, containers int) time.Duration {
	h.t.Helper()
	paths := make([]string, containers)
	for i := range paths {
		paths[i] = h.container(fmt.Sprint(name, i))
	}
	addresses := make([]string, containers)
	start := time.Now()
	err := inParallel(containers, func(i int) error {
		result, err := r.Setup(context.Background(), fmt.Sprint(name, i), paths[i], realPort(int32(20000+i)))
		if err == nil {
			addresses[i] = result.IPv4().Prefix.String()
		}
		return err
	})
	took := time.Since(start)
	if err != nil {
		h.t.Error(err)
	}
	h.wantNoneTwice(nil, addresses)
	wantNil(h.t, inParallel(containers, func(i int) error {
		return r.Remove(context.Background(), fmt.Sprint(name, i), paths[i])
	}))
	return took
}

func realPort(port int32) cni.NamespaceOpts {
	return cni.WithCapabilityPortMap([]cni.PortMapping{{HostPort: port, ContainerPort: 80, Protocol: "tcp"}})
}

// The first ADD of the network hangs in each of its plugins in turn, of which
// nobody knows what they are.
func TestFault_F31_RealCrowdBehindAHangingFirst(t *testing.T) {
	eachIPTables(t, func(t *testing.T, h *realHost, _ string) {
		containers, _ := crowd()
		for i, typ := range []string{"bridge", "firewall", "portmap"} {
			gate := h.path("gate-" + typ)
			wantNil(t, os.RemoveAll(h.path("wrapped")))
			r := h.runtime(cni.WithHostNetNS(h.path("netns", "host")), cni.WithPluginDir([]string{h.wrapped(gate, typ)}),
				cni.WithConfListBytes(h.crowdList()),
				cni.WithStateDir(h.path(fmt.Sprint("state", i)))) // in which there was no first ADD
			h.sh("for f in iptables ip6tables; do $f -F; $f -X; $f -t nat -F; $f -t nat -X; done")
			letGo := h.hanging(r, "hangs-"+typ, gate, realPort(9999))
			t.Logf("%d containers behind %s: %v", containers, typ, h.crowdAround(r, typ, containers))
			letGo()
			h.wantNoRuleTwice()
			wantNil(t, r.Remove(t.Context(), "hangs-"+typ, h.path("netns", "hangs-"+typ)))
		}
	})
}

// Nobody waits behind executables that are known, whatever hangs beside them.
func TestFault_F31_RealNeighbourBehindAHangingFirst(t *testing.T) {
	eachIPTables(t, func(t *testing.T, h *realHost, _ string) {
		h.plugin(scripted.Script{Verbs: map[string]scripted.Action{"ADD": {Block: h.path("gate")}}}, "hang")
		hung := strings.Replace(string(h.crowdList()), `"plugins": [`, `"plugins": [{"type": "hang", "script": "`+h.path("script-hang")+`"}, `, 1)
		hung = strings.Replace(hung, `"podnet"`, `"hungnet"`, 1)
		wantNil(t, syscall.Mkfifo(h.path("gate"), 0o600))
		r := h.real(cni.WithHostNetNS(h.path("netns", "host")), cni.WithPluginDir([]string{referencePlugins(t), h.path("bin")}),
			cni.WithConfListBytes(h.crowdList()), cni.WithConfListBytes([]byte(hung)))
		ctx, cancel := context.WithCancel(t.Context())
		path := h.container("hangs")
		done := begin(func() error {
			_, err := r.Setup(ctx, "hangs", path, cni.WithNetwork("hungnet"), realPort(9999))
			return err
		})
		for end := time.Now().Add(patience); len(h.calls()) == 0 && time.Now().Before(end); {
			time.Sleep(time.Millisecond) // until the plugin hangs
		}
		start := time.Now()
		_, err := r.Setup(t.Context(), "c1", h.container("c1"), cni.WithNetwork("podnet"), realPort(8080))
		wantNil(t, err)
		t.Logf("the neighbour took %v", time.Since(start))
		cancel()
		if err := await(t, "the one that hung", done); err == nil {
			t.Error("the one that hung has succeeded")
		}
		h.wantNoRuleTwice()
	})
}

// wantNoRuleTwice wants no line of iptables-save to be there twice.
func (h *realHost) wantNoRuleTwice() {
	h.t.Helper()
	seen := map[string]bool{}
	for _, l := range h.audit() {
		if strings.HasPrefix(l, "ip") && seen[l] {
			h.t.Errorf("twice: %s", l)
		}
		seen[l] = true
	}
}

// What was made ahead of an ADD that failed goes, unless somebody uses it.
func TestFault_F31_RealNothingStaysOfAFailedFirst(t *testing.T) {
	eachIPTables(t, func(t *testing.T, h *realHost, _ string) {
		h.plugin(scripted.Script{Verbs: map[string]scripted.Action{"ADD": says(5, "no")}}, "fails")
		conf := strings.Replace(string(h.crowdList()), `"podnet"`, `"failing"`, 1)
		i := strings.LastIndex(conf, "]")
		conf = conf[:i] + `, {"type": "fails", "script": "` + h.path("script-fails") + `"}` + conf[i:]
		r := h.real(cni.WithHostNetNS(h.path("netns", "host")), cni.WithPluginDir([]string{referencePlugins(t), h.path("bin")}),
			cni.WithConfListBytes(h.crowdList()), cni.WithConfListBytes([]byte(conf)))
		h.wantFails(r, "f1")
		h.wantChains(false)
		_, err := r.Setup(t.Context(), "c1", h.container("c1"), cni.WithNetwork("podnet"), realPort(8080))
		wantNil(t, err)
		h.wantChains(true)
		h.wantFails(r, "f2")
		h.wantChains(true)
		wantNil(t, r.Check(t.Context(), "c1", h.path("netns", "c1"), cni.WithNetwork("podnet"), realPort(8080)))
		wantNil(t, r.Remove(t.Context(), "c1", h.path("netns", "c1")))
		h.wantChains(true) // as the plugins leave them
	})
}

func (h *realHost) wantFails(r *cni.Runtime, id string) {
	h.t.Helper()
	if _, err := r.Setup(h.t.Context(), id, h.container(id), cni.WithNetwork("failing"), realPort(8081)); err == nil {
		h.t.Fatalf("%s was attached", id)
	}
}

// wantChains wants the chains that containers share to be there, or none.
func (h *realHost) wantChains(want bool) {
	h.t.Helper()
	lines := h.audit().Without(func(l string) bool { return !strings.HasPrefix(l, "ip") || !strings.Contains(l, "CNI-") })
	if (len(lines) > 0) != want {
		h.t.Errorf("want chains that are shared: %t, got:\n%s", want, strings.Join(lines, "\n"))
	}
}

// What an executable of which nothing is known makes twice, as one that another
// has overtaken between its look and its work, is there once when its ADD ends.
func TestFault_F31_RealDuplicatesOfUnknownExecutablesAreRemoved(t *testing.T) {
	eachIPTables(t, func(t *testing.T, h *realHost, _ string) {
		dir := h.wrapped(h.path("gate"))
		for name, again := range map[string]string{
			"portmap":  `iptables -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT`,
			"firewall": `iptables -I FORWARD -m comment --comment "CNI firewall plugin rules" -j CNI-FORWARD`,
		} {
			wantNil(t, os.Remove(dir+"/"+name))
			script := fmt.Sprintf("#!/bin/sh\n%s/%s || exit\nif [ $CNI_COMMAND = ADD ]; then %s; fi\n", referencePlugins(t), name, again)
			wantNil(t, os.WriteFile(dir+"/"+name, []byte(script), 0o755))
		}
		r := h.runtime(cni.WithPluginDir([]string{dir}), cni.WithConfListBytes(h.crowdList()))
		// An administrator's own stay.
		h.sh("for i in 1 2; do iptables -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j RETURN; done")
		_, err := r.Setup(t.Context(), "c1", h.container("c1"), realPort(8080))
		wantNil(t, err)
		counts := map[string]int{}
		for _, l := range h.audit() {
			if strings.HasPrefix(l, "ip") && strings.Contains(l, " -A ") {
				counts[l[strings.Index(l, " -A "):]]++
			}
		}
		for rule, n := range counts {
			if want := 1 + strings.Count(rule, "--dst-type LOCAL -j RETURN"); n != want {
				t.Errorf("%d times %s, want %d", n, rule, want)
			}
		}
		wantNil(t, r.Remove(t.Context(), "c1", h.path("netns", "c1")))
	})
}

// A plugin of the name of a reference plugin that makes nothing of what that
// makes is looked at once, and then has no turn of its own.
func TestFault_F31_RealPluginsThatShareNothingAreNotHeldUp(t *testing.T) {
	h := newRealHost(t)
	gate := h.path("gate")
	dir := h.path("wrapped")
	wantNil(t, os.MkdirAll(dir, 0o755))
	wantNil(t, os.Symlink(referencePlugins(t)+"/bridge", dir+"/bridge"))
	wantNil(t, os.Symlink(referencePlugins(t)+"/host-local", dir+"/host-local"))
	script := "#!/bin/sh\nin=$(cat)\ncase $CNI_COMMAND$CNI_CONTAINERID in ADDhangs*) : >" + gate + ".there; cat " + gate + " >/dev/null;; esac\n" +
		"if [ $CNI_COMMAND = ADD ]; then printf '%s' \"$in\" | sed 's/.*\"prevResult\"://; s/,\"runtimeConfig.*//; s/,\"type\":\"portmap\".*//'; fi\n"
	wantNil(t, os.WriteFile(dir+"/portmap", []byte(script), 0o755))
	c := realCase{plugins: []string{bridgeConf(hostLocal(v4Range)), `{"type": "portmap", "capabilities": {"portMappings": true}}`}}
	r := h.runtime(cni.WithHostNetNS(h.path("netns", "host")), cni.WithPluginDir([]string{dir}), cni.WithConfListBytes(c.conf("podnet", "1.0.0", h.path("ipam"))))
	_, err := r.Setup(t.Context(), "c1", h.container("c1"), realPort(8080))
	wantNil(t, err)
	letGo := h.hanging(r.Patiently(), "hangs", gate, realPort(8081))
	wantSoon(t, "another", func() error {
		_, err := r.Setup(t.Context(), "c2", h.container("c2"), realPort(8082))
		return err
	})
	letGo()
}
