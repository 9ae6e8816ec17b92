package behaviour_test

import (
	"context"
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/guard"
	"github.com/embedcni/cni/internal/expect"
)

// TestGuardRepairsPortModes: a mode that a port of the bridge loses is set again, however
// it was taken away, and nothing else is repaired. ADDs wake nobody.
func TestGuardRepairsPortModes(t *testing.T) {
	h := &guardedHost{realHost: newRealHost(t), t: t, wake: make(chan struct{}, 1)}
	h.outside = h.Outside()
	h.Serve(h.outside, 7)
	conf := strings.ReplaceAll(guardConf(false, ""), "IPAM", h.Path("ipam"))
	conf = strings.Replace(conf, `"bridge": "br0",`, `"bridge": "br0", "hairpinMode": true, "portIsolation": true,`, 1)
	h.r = h.Runtime(cni.WithConfListBytes([]byte(conf)), cni.WithBuiltinPlugins(), cni.WithHostNetNS(h.Path("netns", "host")))
	scripts := []string{
		"bridge link set dev END hairpin off",
		"bridge link set dev END isolated off",
		"ip link set dev END type bridge_slave hairpin off",
		`unshare -m sh -ec "mount -t sysfs sysfs /sys; echo 0 >/sys/class/net/END/brport/isolated"`,
	}
	h.attach(0)
	h.guard(h.r, guard.Options{Classes: guard.Links})
	h.quiet()
	h.taken()
	for i := 1; i < len(scripts); i++ {
		h.attach(i)
	}
	path := h.Container("c9")
	_, err := h.r.Setup(t.Context(), "c9", path)
	expect.NoError(t, err)
	h.quiet()
	expect.Same(t, "events of ADDs", len(h.taken()), 0)
	expect.NoError(t, h.r.Remove(t.Context(), "c9", path))
	h.quiet()
	h.wantOnlyLooks("a DEL", h.taken())
	for i, script := range scripts {
		h.shell(strings.ReplaceAll(script, "END", h.hostEnd(i)))
		e := h.awaitRepair(script)
		expect.Same(t, script+": repaired", e.ContainerID, h.ids[i])
		expect.Same(t, script+": kind", e.Difference.Kind, "bridge port")
		h.quiet()
		h.wantNoFlapping(script, h.taken())
		report, err := h.r.Health(context.Background(), cni.HealthOptions{WithoutCheck: true})
		expect.NoError(t, err)
		expect.Same(t, script+": healthy", report.Count(cni.StateHealthy), len(scripts))
		h.back(script)
	}
}
