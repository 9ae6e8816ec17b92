package backend_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/thick/backend"
	"github.com/embedcni/cni/thick/server"
)

// daemonEnv has the settings of a daemon, in a process that TestMain makes one.
const daemonEnv = "EMBEDCNI_TEST_BACKEND_DAEMON"

// settings are those of a daemon.
type settings struct {
	Socket, Queue, State, HostNetNS string
	Plugins                         string // their directory; empty: they run in process
}

// daemonMain is a daemon in production's order: it listens, reads the queue, recovers and serves.
// It does so until its input ends.
func daemonMain() {
	var c settings
	err := json.Unmarshal([]byte(os.Getenv(daemonEnv)), &c)
	if err == nil {
		err = c.serve()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "daemon:", err)
		os.Exit(1)
	}
}

func (c settings) serve() error {
	opts := []cni.Opt{cni.WithStateDir(c.State), cni.WithOwner("daemon"), cni.WithHostNetNS(c.HostNetNS), cni.WithPluginDir([]string{c.Plugins})}
	if c.Plugins == "" {
		opts = append(opts, cni.WithPluginDir(nil), cni.WithBuiltinPlugins())
	}
	runtime, err := cni.New(opts...)
	if err != nil {
		return err
	}
	s, err := server.New(backend.New(runtime, backend.Options{}), server.Options{})
	if err != nil {
		return err
	}
	l, err := s.Listen(c.Socket)
	if err != nil {
		return err
	}
	ctx := context.Background() // the test kills the process
	draining, err := s.Drain(ctx, c.Queue)
	if err != nil {
		return err
	}
	recovered, err := runtime.Recover(ctx)
	if err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	drained := <-draining
	for _, failed := range drained.Failed {
		err = errors.Join(err, failed.Err)
	}
	if err := errors.Join(err, recovered.Err(), drained.Unreadable); err != nil {
		return err
	}
	fmt.Println(len(drained.Ended), len(drained.Dropped))
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	if err := s.Shutdown(ctx); err != nil {
		return err
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// daemon is a process that serves.
type daemon struct {
	*exec.Cmd
	t              testing.TB
	stdin          io.Closer
	ended, dropped int // of the queue, at its start
}

// start starts a daemon, and waits until it has drained the queue.
func start(t testing.TB, c settings) *daemon {
	t.Helper()
	config := expect.Value(json.Marshal(c))(t)
	d := &daemon{Cmd: exec.Command("/proc/self/exe"), t: t}
	d.Env = append(os.Environ(), daemonEnv+"="+string(config))
	d.Stderr = os.Stderr
	d.stdin = expect.Value(d.StdinPipe())(t)
	stdout := bufio.NewReader(expect.Value(d.StdoutPipe())(t))
	expect.NoError(t, d.Start())
	t.Cleanup(func() { _ = d.Process.Kill() }) // a test that fails has not stopped it
	if _, err := fmt.Fscan(stdout, &d.ended, &d.dropped); err != nil {
		t.Fatalf("the daemon does not serve: %v: %v", err, d.Wait())
	}
	return d
}

// stop ends a daemon as its operator does.
func (d *daemon) stop() {
	d.t.Helper()
	expect.NoError(d.t, d.stdin.Close(), d.Wait())
}

// kill is kill -9.
func (d *daemon) kill() {
	d.t.Helper()
	expect.NoError(d.t, d.Process.Kill())
	if err := d.Wait(); err == nil {
		d.t.Fatal("the daemon has ended by itself")
	}
}

// size returns a size of a process in KiB, by its name in /proc/PID/status.
func size(pid int, name string) (kib int, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, after, found := strings.Cut(string(status), name+":")
	if !found {
		return 0, nil // it ends
	}
	_, err = fmt.Sscan(after, &kib)
	return kib, err
}

// site is a host with settings for daemons, one at a time.
type site struct {
	*testhost.RealHost
	settings
}

// newSite makes a site whose plugins run in process, or are executed.
func newSite(t *testing.T, executed bool) *site {
	h := testhost.NewReal(t)
	s := &site{h, settings{
		Socket: h.Path("run", "multus.sock"), Queue: h.Path("dels"), State: h.Path("state"), HostNetNS: h.Path("netns", "host"),
	}}
	if executed {
		s.Plugins = testhost.ReferencePlugins(t)
	}
	return s
}

// config is that of a container with a host port: bridge with host-local, and portmap.
func (s *site) config(port int) string {
	backend := "iptables"
	if s.Plugins == "" {
		backend = "nftables"
	}
	return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "node", "type": "shim",
		"runtimeConfig": {"portMappings": [{"hostPort": %d, "containerPort": 80, "protocol": "tcp"}]},
		"delegates": [{"cniVersion": "1.0.0", "name": "node", "plugins": [
			{"type": "bridge", "bridge": "crowd0", "isGateway": true, "isDefaultGateway": true,
			 "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.88.0.0/16"}]]}},
			{"type": "portmap", "backend": %q, "snat": false, "capabilities": {"portMappings": true}}]}]}`, port, s.Path("ipam"), backend)
}

// environment is that of a plugin.
func (s *site) environment(verb, id, path string) map[string]string {
	return map[string]string{"CNI_COMMAND": verb, "CNI_CONTAINERID": id, "CNI_NETNS": path, "CNI_IFNAME": "eth0", "CNI_PATH": "/opt/cni/bin"}
}

// post makes a call as a shim does.
func (s *site) post(env map[string]string, config string) (status int, text []byte, err error) {
	body, err := json.Marshal(map[string]any{"env": env, "config": json.RawMessage(config)})
	if err != nil {
		return 0, nil, err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", s.Socket)
		},
	}}
	answer, err := client.Post("http://daemon/cni", "application/json", bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	text, err = io.ReadAll(answer.Body)
	return answer.StatusCode, text, errors.Join(err, answer.Body.Close())
}

// call makes a call, and returns the address in the result of an ADD.
func (s *site) call(verb, id, path string, port int) (address string, err error) {
	status, text, err := s.post(s.environment(verb, id, path), s.config(port))
	if err != nil {
		return "", err
	}
	if status != http.StatusOK {
		return "", fmt.Errorf("%s of %s: status %d: %s", verb, id, status, text)
	}
	if verb != "ADD" {
		return "", nil
	}
	var said struct{ Result types100.Result }
	if err := json.Unmarshal(text, &said); err != nil || len(said.Result.IPs) != 1 {
		return "", fmt.Errorf("%s: %w", text, err)
	}
	return said.Result.IPs[0].Address.String(), nil
}
