package faults_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/guard"
	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/thread"
	"github.com/embedcni/cni/internal/testhost"
)

// ruleForm is a form of containers' rules, and who makes it.
type ruleForm struct {
	name        string
	variant     string // of iptables
	backend     string // of the plugins; "": the one that they choose
	executables bool
}

func ruleForms() []ruleForm {
	return []ruleForm{
		{"own table", "nft", "", false},
		{"own table, iptables-legacy", "legacy", "", false},
		{"executables, iptables-nft", "nft", "iptables", true},
		{"executables, nftables", "nft", "nftables", true},
	}
}

// ruleHost is a host that forwards nothing by itself, with attached containers.
type ruleHost struct {
	*testhost.RealHost
	t       *testing.T
	form    ruleForm
	r       *cni.Runtime
	outside string
	homes   []ruleHome

	mu     sync.Mutex
	events []string // of the guard
}

type ruleHome struct {
	id, path string
	port     int
}

func newRuleHost(t *testing.T, f ruleForm, containers int) *ruleHost {
	t.Helper()
	plugintest.UseIPTables(t, f.variant)
	h := &ruleHost{RealHost: testhost.NewReal(t), t: t, form: f}
	h.outside = h.Outside()
	h.Serve(h.outside, 7)
	h.run("", "iptables", "-w", "-P", "FORWARD", "DROP")
	h.run("", "ip6tables", "-w", "-P", "FORWARD", "DROP")
	named := func(key string) string {
		if f.backend == "" {
			return ""
		}
		return fmt.Sprintf(`"%s": %q, `, key, f.backend)
	}
	conf := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "net", "plugins": [
		{"type": "bridge", "bridge": "br0", "isGateway": true, "isDefaultGateway": true, "hairpinMode": true, %s"ipMasq": true,
		 "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.77.0.0/16"}], [{"subnet": "fd77::/64"}]]}},
		{"type": "portmap", %s"snat": true, "capabilities": {"portMappings": true}},
		{"type": "firewall", "backend": "iptables"}]}`, named("ipMasqBackend"), h.Path("ipam"), named("backend"))
	opts := []cni.Opt{cni.WithConfListBytes([]byte(conf)), cni.WithHostNetNS(h.Path("netns", "host"))}
	if f.executables {
		opts = append(opts, cni.WithPluginDir([]string{testhost.ReferencePlugins(t)}))
	} else {
		opts = append(opts, cni.WithBuiltinPlugins())
	}
	h.r = h.Runtime(opts...)
	for i := range containers {
		c := ruleHome{id: fmt.Sprintf("c%d", i), port: 8000 + i}
		c.path = h.RealHost.Container(c.id)
		expect.Value(h.r.Setup(t.Context(), c.id, c.path, testhost.MapPort(int32(c.port))))(t)
		h.Serve(c.path, 80)
		h.homes = append(h.homes, c)
	}
	return h
}

// run runs a program on the host, and returns its output.
func (h *ruleHost) run(stdin, name string, args ...string) string {
	h.t.Helper()
	cmd := exec.CommandContext(h.t.Context(), name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	expect.Must(h.t, err == nil, "%s %q: %v: %s\n%s", name, args, err, stderr.Bytes(), stdin)
	return string(out)
}

// question is a way that packets take: from a namespace to an address, and the client's
// address as the server sees it, if it matters.
type question struct{ from, network, to, want string }

// ask asks once, for a moment: a lost packet is only sent again after a second.
func (h *ruleHost) ask(q question) error {
	const moment = 30 * time.Millisecond
	got, err := h.Ask(q.from, q.network, q.to, moment)
	if err == nil && q.want != "" && got != q.want {
		err = fmt.Errorf("answered %q, want %q", got, q.want)
	}
	if err != nil {
		return fmt.Errorf("from %q to %s: %w", q.from, q.to, err)
	}
	return nil
}

// reaches reports whether a container reaches the outside under the host's address, and
// whether its port is reached from the host and from itself. From the outside it is not:
// the plugin firewall forwards only what a container has begun.
func (h *ruleHost) reaches(c ruleHome) error {
	for _, q := range []question{
		{c.path, "udp", "192.0.2.2:7", "192.0.2.1"},
		{c.path, "udp", "[2001:db8::2]:7", "2001:db8::1"},
		{h.Path("netns", "host"), "tcp", fmt.Sprintf("127.0.0.1:%d", c.port), ""},
		{c.path, "tcp", fmt.Sprintf("192.0.2.1:%d", c.port), ""},
		{c.path, "tcp", fmt.Sprintf("[2001:db8::1]:%d", c.port), ""},
	} {
		if err := h.ask(q); err != nil {
			return fmt.Errorf("container %s, port %d: %w", c.id, c.port, err)
		}
	}
	return nil
}

// back waits until these containers have their traffic and all are healthy, and returns
// how long each took. It gives up after the time that a test is patient.
func (h *ruleHost) back(homes []ruleHome) (traffic, health time.Duration, err error) {
	begun := time.Now()
	late := func() bool { return time.Since(begun) > expect.Patience }
	errs := make([]error, len(homes))
	// Asking a hundred containers in turn takes a third of a second, which would count as time
	// without traffic.
	thread.Each(len(homes), 4, func(i int) {
		for errs[i] = h.reaches(homes[i]); errs[i] != nil && !late(); {
			errs[i] = h.reaches(homes[i])
		}
	})
	if err := errors.Join(errs...); err != nil {
		return 0, 0, err
	}
	traffic = time.Since(begun)
	for {
		report, err := h.r.Health(context.Background(), cni.HealthOptions{WithoutCheck: true})
		switch {
		case err != nil:
			return 0, 0, err
		case testhost.Healthy(report) == len(h.homes):
			return traffic, time.Since(begun), nil
		case late():
			return 0, 0, fmt.Errorf("traffic is back after %v, and Health says\n%v", traffic, report)
		}
	}
}

// guard runs a guard until the returned function is called, and waits until it has looked
// at all containers: once, and again when it has read the legacy tables for the first time.
func (h *ruleHost) guard() (end func()) {
	h.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	looked, ended := make(chan error), make(chan error, 1)
	h.events = nil
	o, looks := guard.Options{}, 1
	if h.form.variant == "legacy" {
		o.LegacyInterval, looks = 100*time.Millisecond, 2
	}
	o.Report = func(e guard.Event) {
		h.mu.Lock()
		h.events = append(h.events, e.String())
		h.mu.Unlock()
		if e.Kind == guard.Looked {
			if looks--; looks == 0 {
				close(looked)
			}
		}
	}
	go func() { ended <- guard.Run(ctx, h.r, o) }()
	expect.NoError(h.t, expect.Await(h.t, "the guard's first look", looked))
	return func() {
		cancel()
		expect.NoError(h.t, expect.Await(h.t, "the guard's end", ended))
	}
}

// story returns what the guard has said.
func (h *ruleHost) story() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.events[:min(len(h.events), 30)], "\n")
}
