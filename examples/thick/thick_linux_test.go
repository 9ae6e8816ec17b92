// Package thick contains only tests, of the daemon and the shim in the directories below.
package thick

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/cnitest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/sandbox"
	"github.com/embedcni/cni/netns"
)

// builtVariable has the directory of the built programs.
const builtVariable = "THICK_BUILT"

const (
	socketDir = "/run/thick"
	queueDir  = "/var/lib/thick/dels"
)

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "thick")
	if err != nil {
		panic(err)
	}
	code := sandbox.Main(m, sandbox.Before(func() ([]string, error) {
		out, err := exec.Command("go", "build", "-o", dir, "./daemon", "./shim").CombinedOutput()
		if err != nil {
			err = fmt.Errorf("go build: %w\n%s", err, out)
		}
		return []string{builtVariable + "=" + dir}, err
	}))
	os.RemoveAll(dir)
	os.Exit(code)
}

// daemon is a running daemon.
type daemon struct {
	*exec.Cmd
	lines chan string
	dir   string // of the networks
}

// network is the configuration that the daemon loads.
func network() string {
	return fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "podnet", "plugins": [
		{"type": %q, "bridge": "thick0", "isDefaultGateway": true, "ipam": {"type": %q, "ranges": [[{"subnet": "10.64.0.0/24"}]]}},
		{"type": %q, "capabilities": {"portMappings": true}}]}`, known.Bridge, known.HostLocal, known.Portmap)
}

// start starts the daemon, and returns when it serves.
func start(t *testing.T) *daemon {
	t.Helper()
	d := &daemon{lines: make(chan string, 1000), dir: t.TempDir()}
	expect.NoError(t, os.WriteFile(filepath.Join(d.dir, "10-podnet.conflist"), []byte(network()), 0o600))
	d.Cmd = exec.Command(filepath.Join(os.Getenv(builtVariable), "daemon"), "-networks", d.dir)
	r, w, err := os.Pipe()
	expect.NoError(t, err)
	d.Stderr = w
	expect.NoError(t, d.Start())
	expect.NoError(t, w.Close())
	go func() {
		defer close(d.lines)
		defer r.Close()
		for s := bufio.NewScanner(r); s.Scan(); {
			d.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		if d.ProcessState == nil {
			d.end(t, unix.SIGKILL)
		}
	})
	return d
}

// until returns the lines up to one with these words.
func (d *daemon) until(t *testing.T, words string) (lines []string) {
	t.Helper()
	timeout := time.After(expect.Patience)
	for {
		select {
		case line, ok := <-d.lines:
			if !ok {
				t.Fatalf("the daemon has ended without %q: %q", words, lines)
			}
			t.Log(line)
			if lines = append(lines, line); strings.Contains(line, words) {
				return lines
			}
		case <-timeout:
			t.Fatalf("the daemon has not written %q: %q", words, lines)
		}
	}
}

// end sends a signal and returns the exit code.
func (d *daemon) end(t *testing.T, signal unix.Signal) int {
	t.Helper()
	expect.NoError(t, d.Process.Signal(signal))
	if err := d.Wait(); err != nil {
		t.Log(err)
	}
	return d.ProcessState.ExitCode()
}

// runtime is a container runtime: upstream's libcni, which executes the shim.
type runtime struct{ *libcni.CNIConfig }

func newRuntime(t *testing.T) *runtime {
	t.Helper()
	return &runtime{libcni.NewCNIConfigWithCacheDir([]string{os.Getenv(builtVariable)}, t.TempDir(), nil)}
}

// list is the runtime's configuration. Its plugin is the shim.
func list(t *testing.T, version string) *libcni.NetworkConfigList {
	t.Helper()
	text := fmt.Sprintf(`{"cniVersion": %q, "name": "podnet", "plugins": [
		{"type": "shim", "daemonSocketDir": %q, "capabilities": {"portMappings": true}}]}`, version, socketDir)
	return expect.Value(libcni.ConfListFromBytes([]byte(text)))(t)
}

// container is a namespace, in which a server answers.
type container struct {
	*libcni.RuntimeConf
	ns *netns.Handle
}

// newContainer makes a container whose port 80 is to be forwarded from a port of the host.
func newContainer(t *testing.T, id string, hostPort int) *container {
	t.Helper()
	path := cnitest.Container(t)
	c := &container{&libcni.RuntimeConf{
		ContainerID: id, NetNS: path, IfName: "eth0",
		CapabilityArgs: map[string]any{"portMappings": []map[string]any{{"hostPort": hostPort, "containerPort": 80, "protocol": "tcp"}}},
	}, expect.Value(netns.Open(path))(t)}
	t.Cleanup(func() { expect.NoError(t, c.ns.Close()) })
	var ln net.Listener
	expect.NoError(t, c.ns.Do(func() (err error) {
		ln, err = net.Listen("tcp", ":80")
		return err
	}))
	answers := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, id) })}
	go answers.Serve(ln)
	t.Cleanup(func() { expect.NoError(t, answers.Close()) })
	return c
}

// interfaces returns the names of the container's interfaces.
func (c *container) interfaces(t *testing.T) (names []string) {
	t.Helper()
	expect.NoError(t, c.ns.Do(func() error {
		all, err := net.Interfaces()
		for _, i := range all {
			names = append(names, i.Name)
		}
		return err
	}))
	return names
}

// wantTraffic checks that the container answers at its address and at the forwarded port.
func (c *container) wantTraffic(t *testing.T, address string, hostPort int) {
	t.Helper()
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for _, url := range []string{"http://" + address, fmt.Sprintf("http://10.64.0.1:%d", hostPort)} {
		response, err := client.Get(url)
		expect.NoError(t, err)
		text, err := io.ReadAll(response.Body)
		expect.NoError(t, err, response.Body.Close())
		expect.Same(t, url, string(text), c.ContainerID)
	}
}

// add attaches a container, and returns its address.
func (r *runtime) add(t *testing.T, version string, c *container) string {
	t.Helper()
	result, err := r.AddNetworkList(t.Context(), list(t, version), c.RuntimeConf)
	expect.NoError(t, err)
	expect.Same(t, "version", result.Version(), version)
	return expect.Value(types100.NewResultFromResult(result))(t).IPs[0].Address.IP.String()
}

// leavesNothing has the test fail if it leaves anything on the host.
func leavesNothing(t *testing.T) {
	t.Helper()
	before := expect.Value(cnitest.Audit(context.Background(), cnitest.Options{}))(t)
	t.Cleanup(func() {
		after, err := cnitest.Audit(context.Background(), cnitest.Options{})
		if err != nil {
			t.Error(err)
		}
		if leak := cnitest.Diff(before, after); leak != "" {
			t.Errorf("left:\n%s", leak)
		}
	})
}

// TestEveryVersion: libcni executes the shim for each verb, and a packet gets through.
func TestEveryVersion(t *testing.T) {
	leavesNothing(t)
	d, r, ctx := start(t), newRuntime(t), t.Context()
	d.until(t, "serving")
	for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		c, conf := newContainer(t, "c"+version, 8080), list(t, version)
		expect.Value(r.ValidateNetworkList(ctx, conf))(t)
		c.wantTraffic(t, r.add(t, version, c), 8080)
		if version != "0.3.1" {
			expect.NoError(t, r.CheckNetworkList(ctx, conf, c.RuntimeConf))
		}
		if version == "1.1.0" {
			expect.NoError(t, r.GetStatusNetworkList(ctx, conf))
			other := newContainer(t, "other", 8081)
			r.add(t, version, other)
			expect.NoError(t, r.GCNetworkList(ctx, conf, &libcni.GCArgs{
				ValidAttachments: []types.GCAttachment{{ContainerID: c.ContainerID, IfName: "eth0"}},
			}))
			expect.Same(t, "the container that is not valid", other.interfaces(t), []string{"lo"})
			expect.Same(t, "the other", c.interfaces(t), []string{"lo", "eth0"})
		}
		for range 2 { // a DEL is repeated
			expect.NoError(t, r.DelNetworkList(ctx, conf, c.RuntimeConf))
		}
		expect.Same(t, "after DEL", c.interfaces(t), []string{"lo"})
	}
	expect.Same(t, "exit code", d.end(t, unix.SIGTERM), 0)
}

// TestTheDaemonIsKilled, and another one goes on: a DEL meanwhile succeeds and is carried
// out, and an ADD waits. A DEL that turns up again ends no later ADD.
func TestTheDaemonIsKilled(t *testing.T) {
	leavesNothing(t)
	d, r, ctx, conf := start(t), newRuntime(t), t.Context(), list(t, "1.0.0")
	first, second := newContainer(t, "first", 8081), newContainer(t, "second", 8082)
	firstAddress := r.add(t, "1.0.0", first) // whether or not it serves yet
	d.end(t, unix.SIGKILL)
	first.wantTraffic(t, firstAddress, 8081)

	// The daemon is gone.
	expect.NoError(t, r.DelNetworkList(ctx, conf, first.RuntimeConf))
	expect.Same(t, "queued", first.interfaces(t), []string{"lo", "eth0"})
	entries := expect.Value(filepath.Glob(queueDir + "/*.del"))(t)
	expect.Same(t, "number of queued DELs", len(entries), 1)
	kept := expect.Value(os.ReadFile(entries[0]))(t)
	added := make(chan error, 1)
	go func() {
		_, err := r.AddNetworkList(ctx, conf, second.RuntimeConf)
		added <- err
	}()
	d = start(t)
	log := strings.Join(d.until(t, "serving"), "\n")
	if !strings.Contains(log, "outcome=ended container=first") {
		t.Errorf("not drained:\n%s", log)
	}
	expect.Same(t, "drained", first.interfaces(t), []string{"lo"})
	expect.NoError(t, expect.Await(t, "ADD", added))
	expect.NoError(t, r.CheckNetworkList(ctx, conf, second.RuntimeConf))

	// The container is attached again. The old DEL comes back, as by a backup.
	again := r.add(t, "1.0.0", first)
	d.end(t, unix.SIGKILL)
	expect.NoError(t, os.WriteFile(entries[0], kept, 0o600))
	d = start(t)
	log = strings.Join(d.until(t, "serving"), "\n")
	if !strings.Contains(log, "outcome=dropped container=first") || !strings.Contains(log, "adopted=2") {
		t.Errorf("not dropped:\n%s", log)
	}
	first.wantTraffic(t, again, 8081)
	for _, c := range []*container{first, second} {
		expect.NoError(t, r.DelNetworkList(ctx, conf, c.RuntimeConf))
		expect.Same(t, "after DEL", c.interfaces(t), []string{"lo"})
	}
	expect.Same(t, "exit code", d.end(t, unix.SIGTERM), 0)
}

// TestTheDaemonIsKilledAtAnyMoment of an ADD and of a DEL: the runtime repeats the DEL, and
// nothing is left.
func TestTheDaemonIsKilledAtAnyMoment(t *testing.T) {
	leavesNothing(t)
	r, ctx, conf := newRuntime(t), t.Context(), list(t, "1.1.0")
	c := newContainer(t, "c", 8080)
	die := func(d *daemon, round int) {
		timer := time.NewTimer(time.Duration(round) * 4 * time.Millisecond) // a moment to die, not a wait
		<-timer.C
		d.end(t, unix.SIGKILL)
	}
	for round := range 8 {
		d := start(t)
		if round%2 == 0 {
			d.until(t, "serving")
		}
		done := make(chan error, 1)
		go func() {
			_, err := r.AddNetworkList(ctx, conf, c.RuntimeConf)
			done <- err
		}()
		die(d, round)
		d = start(t)
		t.Logf("round %d: ADD: %v", round, expect.Await(t, "ADD", done))
		if round%4 < 2 {
			d.until(t, "serving")
		}
		go func() { done <- r.DelNetworkList(ctx, conf, c.RuntimeConf) }()
		die(d, round)
		t.Logf("round %d: DEL: %v", round, expect.Await(t, "DEL", done))
		d = start(t)
		d.until(t, "serving")
		expect.NoError(t, r.DelNetworkList(ctx, conf, c.RuntimeConf))
		expect.Same(t, "after DEL", c.interfaces(t), []string{"lo"})
		expect.Same(t, "exit code", d.end(t, unix.SIGTERM), 0)
	}
}
