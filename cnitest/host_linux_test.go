package cnitest_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/cnitest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

const bridgeConf = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
	{"type": "bridge", "bridge": "br7", "isDefaultGateway": true, "ipMasq": true,
	 "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.7.0.0/24"}], [{"subnet": "fd07::/64"}]]}},
	{"type": "portmap", "capabilities": {"portMappings": true}}]}`

// recorder is a test whose failures are the subject of another one. Its cleanups run
// when end is called.
type recorder struct {
	testing.TB
	cleanups []func()
	said     []string
}

func (r *recorder) Helper()                   {}
func (r *recorder) Cleanup(f func())          { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Error(args ...any)         { r.said = append(r.said, fmt.Sprint(args...)) }
func (r *recorder) Errorf(f string, a ...any) { r.said = append(r.said, fmt.Sprintf(f, a...)) }

func (r *recorder) end() {
	for _, f := range slices.Backward(r.cleanups) {
		f()
	}
}

func TestHostHasBuiltInPlugins(t *testing.T) {
	h := cnitest.Host(t)
	h.WriteConf("10-pods.conflist", bridgeConf)
	rt, path := h.Runtime(), cnitest.Container(t)
	expect.NoError(t, rt.Load(cni.WithDefaultConf))
	result := expect.Value(rt.Setup(context.Background(), "c1", path))(t)
	expect.That(t, netip.MustParsePrefix("10.7.0.0/24").Contains(result.IPv4().IP()), "address %v", result.IPv4()) // tests share the file of the last one
	expect.Same(t, "kind", rt.GetConfig().Networks[0].Config.Plugins[0].Kind, "built in")
	expect.NoError(t, rt.Remove(context.Background(), "c1", path))
}

func TestHostHasReferencePlugins(t *testing.T) {
	h := cnitest.Host(t, cnitest.WithReferencePlugins())
	rt, path := h.Runtime(cni.WithConfListBytes([]byte(bridgeConf))), cnitest.Container(t)
	expect.Value(rt.Setup(context.Background(), "c1", path))(t)
	expect.Same(t, "kind", rt.GetConfig().Networks[0].Config.Plugins[0].Kind, "executable")
	expect.NoError(t, rt.Remove(context.Background(), "c1", path))
}

func TestHostReportsWhatIsLeft(t *testing.T) {
	for name, leave := range map[string]struct {
		do   func(h *cnitest.TestHost, rt *cni.Runtime, path string) error
		want []string
	}{
		"a container that is attached": {
			func(_ *cnitest.TestHost, rt *cni.Runtime, path string) error {
				_, err := rt.Setup(context.Background(), "c1", path)
				return err
			},
			[]string{"+ file /var/lib/cni/networks/pods/10.7.0.", "+ mount nsfs ", "/state/embedcni/attachments/"},
		},
		"an interface": {
			func(h *cnitest.TestHost, _ *cni.Runtime, _ string) error {
				return h.Do(func() error { return addLink("left0") })
			},
			[]string{"+ link left0 "},
		},
		"nothing": {
			func(_ *cnitest.TestHost, rt *cni.Runtime, path string) error {
				_, err := rt.Setup(context.Background(), "c1", path)
				return errors.Join(err, rt.Remove(context.Background(), "c1", path))
			}, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := &recorder{TB: t}
			h := cnitest.Host(r)
			expect.NoError(t, leave.do(h, h.Runtime(cni.WithoutReaping(), cni.WithConfListBytes([]byte(bridgeConf))), cnitest.Container(r)))
			r.end()
			said := strings.Join(r.said, "\n")
			expect.Same(t, "the test says something", said != "", leave.want != nil)
			for _, want := range leave.want {
				expect.Contains(t, "the test", said, want)
			}
			expect.NoError(t, os.RemoveAll("/var/lib/cni"))
		})
	}
}

func TestHostAuditsOnlyGivenDirectories(t *testing.T) {
	r := &recorder{TB: t}
	h := cnitest.Host(r, cnitest.AuditOnly(t.TempDir()))
	expect.NoError(t, os.MkdirAll("/var/lib/cni/networks/other", 0o755))
	r.end()
	expect.NoError(t, os.RemoveAll("/var/lib/cni"))
	expect.Same(t, "said", r.said, nil)
	expect.Same(t, "a directory", h.Dir != "", true)
}

// TestHostsInParallel: each has a directory for addresses.
func TestHostsInParallel(t *testing.T) {
	for range 3 {
		t.Run("one", func(t *testing.T) {
			t.Parallel()
			h := cnitest.Host(t, cnitest.AuditOnly())
			conf := strings.Replace(bridgeConf, `"host-local",`, `"host-local", "dataDir": "`+h.Dir+`/state/networks",`, 1)
			rt, path := h.Runtime(cni.WithConfListBytes([]byte(conf))), cnitest.Container(t)
			result, err := rt.Setup(t.Context(), "c1", path, cni.WithCapabilityPortMap([]cni.PortMapping{{HostPort: 8080, ContainerPort: 80}}))
			expect.NoError(t, err)
			expect.Same(t, "address", result.IPv4().IP().String(), "10.7.0.2")
			expect.NoError(t, rt.Remove(t.Context(), "c1", path))
		})
	}
}

func TestHostWithoutAuditReportsNothing(t *testing.T) {
	r := &recorder{TB: t}
	h := cnitest.Host(r, cnitest.WithoutAudit())
	expect.NoError(t, h.Do(func() error { return addLink("left0") }))
	r.end()
	expect.Same(t, "said", r.said, nil)
}

func TestContainerLivesUntilItIsRemoved(t *testing.T) {
	path := cnitest.Container(t)
	ns := expect.Value(netns.Open(path))(t)
	expect.NoError(t, ns.Close(), netns.Remove(path))
	expect.Is(t, expect.Err(netns.Open(path)), os.ErrNotExist)
}

const scriptedConf = `{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "mine"}]}`

func TestPluginFollowsItsScript(t *testing.T) {
	h := cnitest.Host(t)
	rt := h.Runtime(cni.WithConfListBytes([]byte(scriptedConf)))
	path := cnitest.Container(t)
	for name, c := range map[string]struct {
		script cnitest.Script
		want   func(err error) bool
	}{
		"succeeds": {nil, func(err error) bool { return err == nil }},
		"answers": {cnitest.Script{"ADD": {Result: `{"cniVersion": "1.0.0", "ips": [{"address": "10.1.2.3/24"}]}`}},
			func(err error) bool { return err == nil }},
		"fails": {cnitest.Script{"ADD": {Stderr: "oh", Err: &types.Error{Code: 123, Msg: "no"}}}, func(err error) bool {
			var e *cni.Error
			return errors.As(err, &e) && e.Code == 123 && e.Msg == "no" && e.Stderr == "oh"
		}},
		"hangs":     {cnitest.Script{"ADD": {Hang: true}}, func(err error) bool { return errors.Is(err, context.Canceled) }},
		"is killed": {cnitest.Script{"ADD": {Killed: true}}, func(err error) bool { return err != nil }},
	} {
		h.Plugin("mine", c.script)
		before, done := len(h.Calls()), make(chan error, 1)
		ctx, cancel := context.WithCancel(context.Background())
		go func() {
			_, err := rt.Setup(ctx, "c1", path)
			done <- err
		}()
		if c.script["ADD"].Hang {
			expect.Eventually(t, "the plugin to be called", func() bool { return len(h.Calls()) > before })
			cancel()
		}
		if err := expect.Await(t, name, done); !c.want(err) {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
		expect.NoError(t, rt.Remove(context.Background(), "c1", path))
	}
	calls := h.Calls()
	if len(calls) < 10 || calls[0].Verb != "ADD" || calls[0].ContainerID != "c1" || calls[0].Type != "mine" || calls[0].NetNS != path {
		t.Errorf("calls %+v", calls)
	}
}
