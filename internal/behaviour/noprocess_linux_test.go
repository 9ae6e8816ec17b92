package behaviour_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// TestInProcessStartsNoProcess has no plugin directory at all. It also runs
// executables, to prove that it would notice them. The network of WithLoNetwork is in
// process even with executables, and a configuration like it is not.
func TestInProcessStartsNoProcess(t *testing.T) {
	plugintest.UseIPTables(t, "nft") // which has rules that are changed and read without it
	h := newRealHost(t)
	cycle := func(r *cni.Runtime, id string) func() error {
		path := h.Container(id)
		return func() error {
			_, err := r.Setup(t.Context(), id, path, onePort)
			return errors.Join(err, r.Check(t.Context(), id, path), r.Remove(t.Context(), id, path))
		}
	}
	expect.Same(t, "a process was started", startsProcess(t, cycle(h.Runtime(cni.WithLoNetwork, cni.WithPluginDir(nil)), "c1")), false)
	expect.Same(t, "a process was started", startsProcess(t, cycle(h.Real(cni.WithLoNetwork, cni.WithoutBuiltinPlugins()), "c2")), true)
	expect.Same(t, "a process was started", startsProcess(t, cycle(h.Real(cni.WithLoNetwork), "c3")), false)
	own := cni.WithConfListBytes([]byte(`{"cniVersion": "0.4.0", "name": "cni-loopback", "plugins": [{"type": "loopback"}]}`))
	expect.Same(t, "a process was started", startsProcess(t, cycle(h.Real(own), "c4")), true)
	expect.Same(t, "a process was started", startsProcess(t, cycle(h.Real(own, cni.WithBuiltinPlugins("loopback")), "c5")), false)

	for i, backend := range []string{``, `, "ipMasqBackend": "nftables"`, ``} {
		firewall := ""
		if i == 2 { // whose rules a network's first container gets from iptables
			firewall = `, {"type": "firewall"}`
		}
		conf := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "net%d", "plugins": [
			{"type": "bridge", "bridge": "noproc%d", "isGateway": true, "ipMasq": true%s,
			 "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.%d.0.0/24"}], [{"subnet": "fd%d::/64"}]]}},
			{"type": "portmap"%s, "capabilities": {"portMappings": true}}, {"type": "tuning"}%s]}`,
			i, i, backend, h.Path("ipam"), 80+i, 80+i, strings.Replace(backend, "ipMasqBackend", "backend", 1), firewall)
		id := fmt.Sprint("nat", i)
		r := h.Runtime(cni.WithBuiltinPlugins(), cni.WithConfListBytes([]byte(conf)))
		if firewall != "" {
			testhost.MustSetUp(t, r, "first", h.Container("first"))
		}
		expect.Same(t, "a process was started", startsProcess(t, cycle(r, id)), false)
	}
}

// startsProcess reports whether fn starts a process, in any way: one that was waited for
// is in the kernel's account of children, where even the start of a program has page
// faults, and another is below this one, because orphans become the test binary's.
func startsProcess(t *testing.T, fn func() error) bool {
	t.Helper()
	faults := func() int64 {
		var u unix.Rusage
		expect.NoError(t, unix.Getrusage(unix.RUSAGE_CHILDREN, &u))
		return int64(u.Minflt) + int64(u.Majflt)
	}
	before, used := testhost.Children(t), faults()
	expect.NoError(t, fn())
	return faults() != used || !slices.Equal(before, testhost.Children(t))
}
