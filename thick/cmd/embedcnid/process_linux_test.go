package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/cnitest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/sandbox"
	"github.com/embedcni/cni/netns"
)

// Variables of the environment. The first makes the test binary the daemon. The second has the
// directory of the built shim.
const (
	programVariable = "EMBEDCNID_PROGRAM"
	shimVariable    = "EMBEDCNID_SHIM"
)

func TestMain(m *testing.M) {
	if os.Getenv(programVariable) != "" {
		main()
	}
	dir, err := os.MkdirTemp("", "embedcnid")
	if err != nil {
		panic(err)
	}
	code := refplugins.Main(m, sandbox.Before(func() ([]string, error) {
		build := exec.Command("go", "build", "-o", dir, "github.com/embedcni/cni/thick/cmd/embedcni-shim")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		out, err := build.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("go build: %w\n%s", err, out)
		}
		return []string{shimVariable + "=" + dir}, err
	}))
	os.RemoveAll(dir)
	os.Exit(code)
}

// probesAt is the address of probes and metrics in the namespace of the tests.
const probesAt = "127.0.0.1:9418"

// site is a host with the files of a daemon, of which one runs at a time.
type site struct {
	*cnitest.TestHost
	t        *testing.T
	config   map[string]any // as the file has it
	notified chan string    // to the service manager
	cni      *libcni.CNIConfig
}

// podnet is the network of every container, with a bridge of a name.
const podnet = `{"cniVersion": "1.1.0", "name": "podnet", "plugins": [
	{"type": "bridge", "bridge": %q, "isGateway": true, "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": %q}]]}},
	{"type": "portmap", "capabilities": {"portMappings": true}}]}`

// storage is the network of those that name it.
const storage = `{"cniVersion": "1.1.0", "name": "storage", "plugins": [
	{"type": "ptp", "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.65.0.0/24"}]]}}]}`

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{TestHost: cnitest.Host(t, cnitest.AuditOnly()), t: t}
	s.podnet("pods0", "10.64.0.0/24")
	s.WriteConf("20-storage.conflist", fmt.Sprintf(storage, s.path("ipam")))
	s.config = map[string]any{
		"socket": s.path("run", "multus.sock"), "queueDir": "/var/lib/embedcni/dels", "stateDir": s.StateDir, "hostNetNS": s.NetNS,
		"confDir": s.ConfDir, "pluginDirs": []string{s.PluginDir}, "http": map[string]any{"address": probesAt},
		"log": map[string]any{"format": "json"}, "shutdownGrace": "1m",
	}
	expect.NoError(t, os.Mkdir(s.path("etc"), 0o755))
	s.write()
	address := &net.UnixAddr{Name: s.path("notify"), Net: "unixgram"}
	s.listen(expect.Value(net.ListenUnixgram("unixgram", address))(t))
	runner := &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: os.Stderr}}
	s.cni = libcni.NewCNIConfigWithCacheDir([]string{os.Getenv(shimVariable)}, s.path("cache"), runner)
	return s
}

// listen takes messages to the service manager. A daemon waits where nobody does.
func (s *site) listen(l *net.UnixConn) {
	s.notified = make(chan string, 100000)
	s.t.Cleanup(func() { expect.NoError(s.t, l.Close()) })
	go func() {
		for buffer := make([]byte, 4096); ; {
			n, err := l.Read(buffer)
			if err != nil {
				return // closed
			}
			s.notified <- string(buffer[:n])
		}
	}()
}

func (s *site) path(elements ...string) string {
	return filepath.Join(append([]string{s.Dir}, elements...)...)
}

// podnet writes the first network.
func (s *site) podnet(bridge, subnet string) {
	s.t.Helper()
	s.replace(filepath.Join(s.ConfDir, "10-podnet.conflist"), fmt.Sprintf(podnet, bridge, s.path("ipam"), subnet))
}

// replace writes a file in one step.
func (s *site) replace(path, content string) {
	s.t.Helper()
	aside := s.path("aside")
	expect.NoError(s.t, os.WriteFile(aside, []byte(content), 0o644), os.Rename(aside, path))
}

// write writes the configuration.
func (s *site) write() {
	s.t.Helper()
	s.replace(s.path("etc", "embedcnid.yaml"), string(expect.Value(json.Marshal(s.config))(s.t)))
}

// process is a daemon that runs. Its log is in JSON.
type process struct {
	*exec.Cmd
	t     *testing.T
	lines chan entry
	log   strings.Builder // of the lines that were read
}

// entry is a line of the log.
type entry map[string]any

// command returns a process of the program.
func (s *site) command(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", append([]string{"--config", s.path("etc", "embedcnid.yaml")}, args...)...)
	cmd.Env = append(os.Environ(), programVariable+"=1", "NOTIFY_SOCKET="+s.path("notify"))
	return cmd
}

// start starts a daemon, and waits until it serves.
func (s *site) start(args ...string) *process {
	s.t.Helper()
	return s.startAs(s.command(args...))
}

func (s *site) startAs(cmd *exec.Cmd) *process {
	s.t.Helper()
	p := &process{Cmd: cmd, t: s.t, lines: make(chan entry, 100000)}
	r, w, err := os.Pipe()
	expect.NoError(s.t, err)
	p.Stderr = w
	expect.NoError(s.t, p.Start(), w.Close())
	go func() {
		defer close(p.lines)
		defer r.Close()
		for lines := bufio.NewScanner(r); lines.Scan(); {
			var e entry
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				e = entry{"msg": lines.Text()} // before the log, and after it
			}
			p.lines <- e
		}
	}()
	s.t.Cleanup(func() {
		if p.ProcessState == nil {
			p.end(syscall.SIGKILL)
		}
		if s.t.Failed() {
			s.t.Logf("log:\n%s", p.rest())
		}
	})
	p.find("serving")
	return p
}

// find returns the next line with a message and these values.
func (p *process) find(message string, with ...string) entry {
	p.t.Helper()
	return p.findLine(fmt.Sprintf("%q %v", message, with), func(e entry, line string) bool {
		return e["msg"] == message && containsAll(line, with...)
	})
}

// findText returns the next line with a text in its message or its error.
func (p *process) findText(text string) entry {
	p.t.Helper()
	return p.findLine(text, func(e entry, _ string) bool {
		return strings.Contains(fmt.Sprint(e["msg"], e["error"], e["err"]), text)
	})
}

func (p *process) findLine(what string, is func(e entry, line string) bool) entry {
	p.t.Helper()
	timer := time.NewTimer(expect.Patience)
	defer timer.Stop()
	for {
		select {
		case e, ok := <-p.lines:
			if !ok {
				p.t.Fatalf("the daemon has ended without %s:\n%s", what, p.log.String())
			}
			line := string(expect.Value(json.Marshal(e))(p.t))
			p.log.WriteString(line + "\n")
			if is(e, line) {
				return e
			}
		case <-timer.C:
			p.t.Fatalf("waited for %s:\n%s", what, p.log.String())
		}
	}
}

// logged waits for a line that may have been read already.
func (p *process) logged(message string, with ...string) {
	p.t.Helper()
	for line := range strings.Lines(p.log.String()) {
		if containsAll(line, append(with, `"msg":"`+message+`"`)...) {
			return
		}
	}
	p.find(message, with...)
}

func containsAll(text string, parts ...string) bool {
	return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, part) })
}

// rest returns the whole log of a daemon that has ended.
func (p *process) rest() string {
	for e := range p.lines {
		text, _ := json.Marshal(e)
		p.log.Write(append(text, '\n'))
	}
	return p.log.String()
}

// end sends a signal, waits, and returns the exit code; -1 if the signal has killed it.
func (p *process) end(signal syscall.Signal) int {
	p.t.Helper()
	expect.NoError(p.t, p.Process.Signal(signal))
	if err := p.Wait(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		p.t.Fatal(err)
	}
	return p.ProcessState.ExitCode()
}

// wantNotified compares the next messages to the service manager. Of RELOADING only the
// beginning counts.
func (s *site) wantNotified(want ...string) {
	s.t.Helper()
	var got []string
	for range want {
		got = append(got, strings.TrimRight(expect.Await(s.t, "a message to the service manager", s.notified), "0123456789"))
	}
	expect.Same(s.t, "messages to the service manager", got, want)
}

// Messages to the service manager, without the numbers at their ends.
const (
	ready     = "READY="
	reloading = "RELOADING=1\nMONOTONIC_USEC="
	stopping  = "STOPPING="
	watchdog  = "WATCHDOG="
)

// get returns what the daemon answers to a probe.
func get(t *testing.T, path string) (status int, text string) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: expect.Patience}
	answer, err := client.Get("http://" + probesAt + path)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return 0, ""
	}
	expect.NoError(t, err)
	body, err := io.ReadAll(answer.Body)
	expect.NoError(t, err, answer.Body.Close())
	return answer.StatusCode, string(body)
}

// list is a configuration of the runtime, whose plugin is the shim.
func (s *site) list() *libcni.NetworkConfigList {
	s.t.Helper()
	text := fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "node", "plugins": [
		{"type": "embedcni-shim", "daemonSocketDir": %q, "capabilities": {"portMappings": true}}]}`, s.path("run"))
	return expect.Value(libcni.ConfListFromBytes([]byte(text)))(s.t)
}

// plugin installs a shell script as a plugin, and makes a network of it with the same name.
func (s *site) plugin(name, script string) {
	s.t.Helper()
	expect.NoError(s.t, os.WriteFile(filepath.Join(s.PluginDir, name), []byte("#!/bin/sh\n"+script), 0o755))
	s.WriteConf("30-"+name+".conflist", fmt.Sprintf(`{"cniVersion": "1.0.0", "name": %q, "plugins": [{"type": %q}]}`, name, name))
}

// container returns a container that asks for networks in CNI_ARGS.
func (s *site) container(id, networks string) *libcni.RuntimeConf {
	s.t.Helper()
	c := &libcni.RuntimeConf{ContainerID: id, NetNS: cnitest.Container(s.t), IfName: "eth0", Args: [][2]string{{"IgnoreUnknown", "1"}}}
	if networks != "" {
		c.Args = append(c.Args, [2]string{"NETWORKS", networks})
	}
	return c
}

func (s *site) add(ctx context.Context, c *libcni.RuntimeConf) (types.Result, error) {
	return s.cni.AddNetworkList(ctx, s.list(), c)
}

func (s *site) del(ctx context.Context, c *libcni.RuntimeConf) error {
	return s.cni.DelNetworkList(ctx, s.list(), c)
}

// interfaces returns the names of those in a container.
func interfaces(t *testing.T, c *libcni.RuntimeConf) (names []string) {
	t.Helper()
	expect.NoError(t, netns.Do(c.NetNS, func() error {
		all, err := net.Interfaces()
		for _, i := range all {
			names = append(names, i.Name)
		}
		return err
	}))
	return names
}
