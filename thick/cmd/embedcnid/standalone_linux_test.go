package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/expect"
)

// allReady is the answer of /readyz.
const allReady = "[+]listening\n[+]drained\n[+]recovered\n[+]configuration\n[+]networks\n"

// TestStandalone: a runtime without Kubernetes executes the shim for each verb.
func TestStandalone(t *testing.T) {
	s, ctx := newSite(t), t.Context()
	p := s.start("--log.level=debug")
	s.wantNotified(ready)
	c := s.container("web", "storage@net7")
	result := expect.Value(types100.NewResultFromResult(expect.Value(s.add(ctx, c))(t)))(t)
	expect.Same(t, "address", result.IPs[0].Address.String(), "10.64.0.2/24")
	expect.Same(t, "interfaces", interfaces(t, c), []string{"lo", "eth0", "net7"})
	expect.NoError(t, s.cni.CheckNetworkList(ctx, s.list(), c), s.cni.GetStatusNetworkList(ctx, s.list()))

	status, text := get(t, "/readyz")
	expect.Same(t, "/readyz", fmt.Sprint(status, " ", text), "200 "+allReady)
	status, text = get(t, "/healthz")
	expect.Same(t, "/healthz", fmt.Sprint(status, " ", text), "200 ok\n")
	_, text = get(t, "/metrics")
	expect.Contains(t, "/metrics", text, "\nembedcni_attached_containers 1\n", `embedcni_attachments{state="attached"} 2`, "\ngo_goroutines ", "\nprocess_open_fds ")
	status, _ = get(t, "/cni")
	expect.Same(t, "/cni at the TCP address", status, 404)

	// A GC that names nothing would end everything.
	expect.NoError(t, s.cni.GCNetworkList(ctx, s.list(), &libcni.GCArgs{}))
	p.find("a GC call was not carried out; see the key gc", `"network":"node"`)
	expect.NoError(t, s.del(ctx, c), s.del(ctx, c))
	expect.Same(t, "after DEL", interfaces(t, c), []string{"lo"})
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)
	s.wantNotified(stopping)
	log := p.rest()
	for _, call := range []string{"ADD", "CHECK", "STATUS", "GC", "DEL"} {
		expect.That(t, regexp.MustCompile(`"msg":"call",[^\n]*"verb":"`+call+`"`).MatchString(log), "%s is not in the log", call)
	}
	expect.That(t, regexp.MustCompile(`"level":"DEBUG"[^\n]*bridge[^\n]*"container":"web"|"container":"web"[^\n]*"level":"DEBUG"[^\n]*bridge`).MatchString(log), "no plugin call is in the log:\n%s", log)
	expect.Lacks(t, "log", log, `"level":"WARN"`)
	expect.Lacks(t, "log", log, "traces")
}

// TestARefusedCallIsNamed: by its container, network, verb, code and reason.
func TestARefusedCallIsNamed(t *testing.T) {
	s, ctx := newSite(t), t.Context()
	p := s.start()
	c := s.container("web", "none")
	_, err := s.add(ctx, c)
	expect.Fails(t, "an ADD of a network that does not exist", err)
	got := p.find("call refused")
	for _, varies := range []string{"time", "queued", "took"} {
		expect.That(t, got[varies] != nil, "no %s in %v", varies, got)
		delete(got, varies)
	}
	reason := fmt.Sprintf("network none: no file in %s has the network %q", s.ConfDir, "none")
	expect.That(t, strings.Contains(got["error"].(string), reason), "the reason is %q", got["error"])
	delete(got, "error")
	expect.Same(t, "line", got, entry{
		"level": "WARN", "msg": "call refused", "verb": "ADD", "container": "web", "interface": "eth0", "network": "node", "code": got["code"],
	})
	expect.That(t, got["code"].(float64) > 0, "the code is %v", got["code"])
	expect.Same(t, "interfaces", interfaces(t, c), []string{"lo"})
	expect.NoError(t, s.del(ctx, c))
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)
}

// TestReload: the file and a conflist change while calls go on.
func TestReload(t *testing.T) {
	s := newSite(t)
	p := s.start()
	s.wantNotified(ready)
	stop := s.keepCalling()
	wantReady := func(configuration string) {
		t.Helper()
		status, text := get(t, "/readyz")
		expect.Same(t, "/readyz", fmt.Sprint(status, " ", text), "200 "+strings.Replace(allReady, "[+]configuration", configuration, 1))
	}

	s.config["log"] = map[string]any{"format": "json", "level": "debug"}
	s.write()
	p.find("configuration reloaded", `"changed":["log.level"]`)
	s.wantNotified(reloading, ready)
	p.find("call", `"verb":"DEL"`)
	wantReady("[+]configuration")

	// What needs a restart is said, and not used.
	socket := s.config["socket"]
	s.config["socket"], s.config["owner"] = "/elsewhere/multus.sock", "other"
	s.write()
	p.find("configuration changed; restart to use it", `"keys":["socket","owner"]`)
	wantReady("[!]configuration: restart to use socket, owner")

	// A mistake keeps the last good one.
	file := s.path("etc", "embedcnid.yaml")
	s.replace(file, "log: {levle: info}\n")
	p.find("configuration refused; the last good one is in use", "log.levle", "do you mean log.level?")
	wantReady("[!]configuration: refused, and the last good one is in use: " + file + ": log.levle: there is no such key; do you mean log.level?")
	s.config["builtinPlugins"] = []string{"bridge", "brigde"}
	s.write()
	p.find("configuration refused; the last good one is in use", `plugin \"brigde\" is not built in`)
	delete(s.config, "builtinPlugins")

	// Without the mistake nothing has changed, but the level.
	s.config["socket"], s.config["owner"] = socket, "embedcnid"
	s.config["log"] = map[string]any{"format": "json", "level": "info"}
	s.write()
	p.find("configuration reloaded", `"changed":["log.level"]`)
	s.wantNotified(reloading, ready)
	wantReady("[+]configuration")

	s.podnet("pods1", "10.66.0.0/24")
	p.find("watch of the configuration: loaded", `"changed":["podnet"]`)
	expect.NoError(t, p.Process.Signal(syscall.SIGHUP))
	p.find("configuration reloaded", `"changed":null`)
	s.wantNotified(reloading, ready)
	stop()
	_, text := get(t, "/metrics")
	for _, outcome := range []string{"failure", "success"} {
		expect.That(t, regexp.MustCompile(`(?m)^embedcnid_config_reloads_total{outcome="`+outcome+`"} [1-9]`).MatchString(text), "no %s is counted:\n%s", outcome, text)
	}
	c := s.container("late", "")
	result := expect.Value(types100.NewResultFromResult(expect.Value(s.add(t.Context(), c))(t)))(t)
	address := result.IPs[0].Address // the last of the others may have had the first one
	expect.Same(t, "subnet", (&net.IPNet{IP: address.IP.Mask(address.Mask), Mask: address.Mask}).String(), "10.66.0.0/24")
	expect.NoError(t, s.del(t.Context(), c))
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)
	s.wantNotified(stopping)
}

// TestAMountedConfigMap: the file is a link through a link, which is replaced.
func TestAMountedConfigMap(t *testing.T) {
	s := newSite(t)
	file := s.path("etc", "embedcnid.yaml")
	publish := func(version, level string) {
		t.Helper()
		s.config["log"] = map[string]any{"format": "json", "level": level}
		expect.NoError(t, os.Mkdir(s.path("etc", version), 0o755))
		s.replace(s.path("etc", version, "embedcnid.yaml"), string(expect.Value(json.Marshal(s.config))(t)))
		expect.NoError(t, os.Symlink(version, s.path("etc", "..next")), os.Rename(s.path("etc", "..next"), s.path("etc", "..data")))
	}
	publish("..1", "info")
	expect.NoError(t, os.Symlink("..data/embedcnid.yaml", s.path("etc", "next")), os.Rename(s.path("etc", "next"), file))
	p := s.start()
	s.wantNotified(ready)
	for version, level := range []string{"debug", "info", "debug"} {
		publish(fmt.Sprint("..", version+2), level)
		expect.NoError(t, os.RemoveAll(s.path("etc", fmt.Sprint("..", version+1))))
		p.find("configuration reloaded", `"changed":["log.level"]`)
		s.wantNotified(reloading, ready)
	}
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)
	s.wantNotified(stopping)
}

// TestADirectoryThatIsGoneForAMoment: the configuration in the one after it is read.
func TestADirectoryThatIsGoneForAMoment(t *testing.T) {
	s := newSite(t)
	p := s.start()
	expect.NoError(t, os.Rename(s.path("etc"), s.path("old")))
	p.find("configuration refused; the last good one is in use", "no such file")
	s.config["log"] = map[string]any{"format": "json", "level": "debug"}
	expect.NoError(t, os.Mkdir(s.path("etc"), 0o755))
	s.write()
	p.find("configuration reloaded", `"changed":["log.level"]`)
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)
}

// keepCalling adds and removes a container until it is stopped. No call may fail.
func (s *site) keepCalling() (stop func()) {
	s.t.Helper()
	c := s.container("busy", "storage")
	var enough atomic.Bool
	ended := make(chan error, 1)
	go func() {
		ctx, rounds := context.Background(), 0
		for ; !enough.Load(); rounds++ {
			if _, err := s.add(ctx, c); err != nil {
				ended <- err
				return
			}
			if err := s.del(ctx, c); err != nil {
				ended <- err
				return
			}
		}
		s.t.Logf("%d ADDs and DELs", rounds)
		ended <- nil
	}()
	return func() {
		s.t.Helper()
		enough.Store(true)
		expect.NoError(s.t, expect.Await(s.t, "the last calls", ended))
	}
}

// TestTheProbesMove with their address, and end.
func TestTheProbesMove(t *testing.T) {
	s := newSite(t)
	s.config["http"] = map[string]any{"address": "127.0.0.1:9419"}
	s.write()
	p := s.start()
	status, _ := get(t, "/healthz")
	expect.Same(t, "status at the other address", status, 0)
	s.config["http"] = map[string]any{"address": probesAt}
	s.write()
	p.find("configuration reloaded", "http.address")
	status, _ = get(t, "/healthz")
	expect.Same(t, "status", status, 200)
	for _, address := range []string{"0.0.0.0:9418", probesAt} { // each is in the other's way
		s.config["http"] = map[string]any{"address": address}
		s.write()
		p.find("configuration reloaded", "http.address")
		status, _ = get(t, "/healthz")
		expect.Same(t, "status at "+address, status, 200)
	}
	other := expect.Value(net.Listen("tcp", "127.0.0.2:9418"))(t)
	s.config["http"] = map[string]any{"address": "0.0.0.0:9418"}
	s.write()
	p.find("configuration refused; the last good one is in use", "address already in use")
	status, _ = get(t, "/healthz")
	expect.Same(t, "status at the address before", status, 200)
	expect.NoError(t, other.Close())
	s.config["http"] = map[string]any{"address": "192.0.2.1:80"} // nobody's
	s.write()
	p.find("configuration refused; the last good one is in use", "http.address")
	status, text := get(t, "/readyz")
	expect.Same(t, "status", status, 200)
	expect.Contains(t, "/readyz", text, "[!]configuration: ", "192.0.2.1:80")
	s.config["http"] = map[string]any{"address": ""}
	s.write()
	p.find("configuration reloaded", "http.address")
	status, _ = get(t, "/healthz")
	expect.Same(t, "status without an address", status, 0)
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)
}

// TestNetworksThatCannotBeLoaded: the daemon serves, is not ready, and says why. It is when
// they can.
func TestNetworksThatCannotBeLoaded(t *testing.T) {
	s := newSite(t)
	file := s.path("net.d", "10-podnet.conflist")
	expect.NoError(t, os.Remove(s.path("net.d", "20-storage.conflist")))
	s.replace(file, "{")
	p := s.start()
	expect.Contains(t, "log", p.log.String(), `"msg":"networks are not loaded"`)
	want := func(code int, parts ...string) { // the log has it first
		t.Helper()
		expect.Eventually(t, fmt.Sprint("/readyz with ", parts), func() bool {
			status, text := get(t, "/readyz")
			return status == code && !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, part) })
		})
	}
	want(503, "[-]networks: ", file)
	_, text := get(t, "/metrics")
	expect.Contains(t, "/metrics", text, `embedcnid_condition{condition="networks",state="unmet"} 1`, `embedcnid_condition{condition="networks",state="met"} 0`)
	c := s.container("web", "")
	_, err := s.add(t.Context(), c)
	expect.Fails(t, "an ADD without a network", err)
	s.podnet("pods0", "10.64.0.0/24")
	p.find("watch of the configuration: loaded", `"added":["podnet"]`)
	want(200, allReady)
	s.replace(file, "{")
	p.find("watch of the configuration: kept")
	want(200, "[!]networks: earlier ones are in use: ", file)
	expect.NoError(t, os.Remove(file))
	p.find("watch of the configuration: unloaded", `"removed":["podnet"]`)
	want(503, "[-]networks: ", s.ConfDir)
	s.podnet("pods0", "10.64.0.0/24")
	p.find("watch of the configuration: loaded", `"added":["podnet"]`)
	want(200, allReady)
	expect.NoError(t, s.del(t.Context(), c))
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)
}

// TestTheDaemonIsKilled: the next one carries out a DEL that came meanwhile, and keeps a
// container that lives.
func TestTheDaemonIsKilled(t *testing.T) {
	s, ctx := newSite(t), t.Context()
	p := s.start()
	lives, ends := s.container("lives", "storage"), s.container("ends", "storage")
	for _, c := range []*libcni.RuntimeConf{lives, ends} {
		expect.Value(s.add(ctx, c))(t)
	}
	expect.Same(t, "exit code", p.end(syscall.SIGKILL), -1)
	expect.NoError(t, s.del(ctx, ends))
	expect.Same(t, "interfaces before", interfaces(t, ends), []string{"lo", "eth0", "net1"})
	p = s.start()
	p.logged("queued DEL", `"outcome":"ended"`, `"container":"ends"`)
	expect.Same(t, "interfaces after", [][]string{interfaces(t, lives), interfaces(t, ends)}, [][]string{{"lo", "eth0", "net1"}, {"lo"}})
	expect.Eventually(t, "the queued DEL is counted", func() bool {
		_, text := get(t, "/metrics")
		return strings.Contains(text, "\nembedcni_server_queued_dels_total{outcome=\"ended\"} 1\n")
	})
	expect.NoError(t, s.cni.CheckNetworkList(ctx, s.list(), lives), s.del(ctx, lives))
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)
}

// TestTheWatchdogIsFed as often as the unit wants.
func TestTheWatchdogIsFed(t *testing.T) {
	s := newSite(t)
	cmd := s.command()
	cmd.Env = append(cmd.Env, fmt.Sprintf("WATCHDOG_USEC=%d", (100*time.Millisecond).Microseconds()))
	p := s.startAs(cmd)
	s.wantNotified(ready, watchdog, watchdog, watchdog)
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)
}

// TestASecondDaemon at the same socket ends, and the first goes on.
func TestASecondDaemon(t *testing.T) {
	s := newSite(t)
	p := s.start()
	out, err := s.command("--http.address=").CombinedOutput()
	expect.Fails(t, "a second daemon runs", err)
	expect.Contains(t, "the second one", string(out), "embedcnid: server: listen at "+s.path("run", "multus.sock"))
	c := s.container("web", "")
	expect.Value(s.add(t.Context(), c))(t)
	expect.NoError(t, s.del(t.Context(), c))
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)
}

// TestASocketThatIsGone: nobody reaches the daemon any more, and it is not ready.
func TestASocketThatIsGone(t *testing.T) {
	s := newSite(t)
	p := s.start()
	expect.NoError(t, os.Rename(s.path("run"), s.path("moved")))
	for _, what := range []string{"no socket", "another's socket"} {
		status, text := get(t, "/readyz")
		expect.Same(t, "status with "+what, status, 503)
		expect.Contains(t, "/readyz", text, "[-]listening: ", s.path("run", "multus.sock"))
		if what == "no socket" {
			expect.NoError(t, os.Mkdir(s.path("run"), 0o700))
			other := expect.Value(net.Listen("unix", s.path("run", "multus.sock")))(t)
			t.Cleanup(func() { expect.NoError(t, other.Close()) })
		}
	}
	expect.NoError(t, os.RemoveAll(s.path("run")), os.Rename(s.path("moved"), s.path("run")))
	status, _ := get(t, "/readyz")
	expect.Same(t, "status", status, 200)
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)
}
