package main

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/expect"
)

// TestTheGuardBegins with a change of the file, and ends with one.
func TestTheGuardBegins(t *testing.T) {
	s, ctx := newSite(t), t.Context()
	p := s.start()
	c := s.container("web", "")
	result := expect.Value(types100.NewResultFromResult(expect.Value(s.add(ctx, c))(t)))(t)
	port := result.Interfaces[1].Name
	expect.That(t, strings.HasPrefix(port, "veth"), "the interfaces are %v", result.Interfaces)
	s.config["guard"] = map[string]any{"classes": []string{"links"}}
	s.write()
	p.find("guard: begun")
	expect.NoError(t, s.Do(exec.Command("ip", "link", "set", port, "nomaster").Run))
	p.find("guard: repaired", `"container":"web"`)
	expect.NoError(t, s.cni.CheckNetworkList(ctx, s.list(), c))
	status, text := get(t, "/readyz")
	expect.Same(t, "status", status, 200)
	expect.Contains(t, "/readyz", text, "[+]guard\n")
	expect.Eventually(t, "the repair is counted", func() bool { // the log has it first
		_, text := get(t, "/metrics")
		return strings.Contains(text, "\nembedcni_guard_events_total{kind=\"repaired\"} 1\n")
	})
	expect.NoError(t, s.del(ctx, c))
	delete(s.config, "guard")
	s.write()
	p.find("configuration reloaded", `"changed":["guard.classes"]`)
	_, text = get(t, "/readyz")
	expect.Contains(t, "/readyz", text, "[+]guard: off\n")
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)
}

// TestHealthIsMeasured as often as the configuration says.
func TestHealthIsMeasured(t *testing.T) {
	s, ctx := newSite(t), t.Context()
	s.config["healthInterval"] = "50ms"
	s.write()
	p := s.start()
	c := s.container("web", "")
	result := expect.Value(types100.NewResultFromResult(expect.Value(s.add(ctx, c))(t)))(t)
	wants := func(verdict string) {
		t.Helper()
		expect.Eventually(t, "a container that is "+verdict, func() bool {
			_, text := get(t, "/metrics")
			return strings.Contains(text, `embedcni_containers{verdict="`+verdict+`"} 1`)
		})
	}
	wants("healthy")
	expect.NoError(t, s.Do(exec.Command("ip", "link", "set", result.Interfaces[1].Name, "nomaster").Run))
	wants("broken")
	expect.NoError(t, s.del(ctx, c))
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)
}

// TestANewDirectoryOfNetworks is used without a restart, with all networks in it.
func TestANewDirectoryOfNetworks(t *testing.T) {
	s, ctx := newSite(t), t.Context()
	p := s.start()
	before := s.container("before", "")
	expect.Value(s.add(ctx, before))(t)
	other := s.path("other.d")
	expect.NoError(t, os.Rename(s.ConfDir, other))
	s.config["confDir"], s.config["networks"] = other, "all"
	s.write()
	p.find("configuration reloaded", `"changed":["confDir","networks"]`)
	after := s.container("after", "")
	expect.Value(s.add(ctx, after))(t)
	expect.Same(t, "interfaces before", interfaces(t, before), []string{"lo", "eth0"})
	expect.Same(t, "interfaces after", interfaces(t, after), []string{"lo", "eth0", "net1"})
	expect.NoError(t, s.cni.CheckNetworkList(ctx, s.list(), before), s.del(ctx, before), s.del(ctx, after))
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)
}

// TestAShutdownEndsACall that takes longer than the grace: it is undone, and the exit code
// says so.
func TestAShutdownEndsACall(t *testing.T) {
	s, ctx := newSite(t), t.Context()
	started := s.path("started")
	s.plugin("slow", `[ "$CNI_COMMAND" != ADD ] || { : >`+started+`; exec sleep 1000; }`)
	s.config["shutdownGrace"] = "10ms"
	s.write()
	p := s.start()
	c := s.container("web", "slow")
	added := make(chan error, 1)
	go func() {
		_, err := s.add(ctx, c)
		added <- err
	}()
	expect.Eventually(t, "the plugin", func() bool { return expect.Exists(t, started) })
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 1)
	expect.Fails(t, "the ADD succeeds", expect.Await(t, "the end of the ADD", added))
	expect.Contains(t, "log", p.rest(), "embedcnid: 1 calls were cancelled, 0 of them have not ended")
	expect.Same(t, "interfaces", interfaces(t, c), []string{"lo"})
	p = s.start()
	expect.NoError(t, s.del(ctx, c))
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)
}
