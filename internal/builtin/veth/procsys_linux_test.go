package veth_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
)

// trapSysctls makes every use of a file below /proc/sys/net fail, with an error
// that does not look like a missing or read-only setting. release ends that.
func trapSysctls(t *testing.T) (release func()) {
	t.Helper()
	expect.NoError(t, unix.Mount("tmpfs", "/proc/sys", "tmpfs", 0, ""))
	release = func() {
		t.Helper()
		expect.NoError(t, unix.Unmount("/proc/sys", unix.MNT_DETACH))
	}
	if err := os.Symlink("net", "/proc/sys/net"); err != nil {
		release()
		t.Fatal(err)
	}
	return release
}

// TestAddOpensNoSysctl: the more namespaces there are, the longer opening these
// files takes. Once a host is set up, a container with IPv4 addresses needs
// none.
func TestAddOpensNoSysctl(t *testing.T) {
	const v4 = `"ipMasq": true, "ipam": {"type": "host-local", "dataDir": "DIR/ipam", "ranges": [[{"subnet": "10.1.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}`
	const v6 = `"ipam": {"type": "host-local", "dataDir": "DIR/ipam", "ranges": [[{"subnet": "fd00:1::/64"}]]}`
	for _, typ := range []string{"bridge", "ptp"} {
		t.Run(typ, func(t *testing.T) {
			h := newHost(t)
			// ADD sets accept_ra on ptp's host end, which is new for each
			// container, unless the host has it off by default.
			h.sh("echo 0 > /proc/sys/net/ipv6/conf/default/accept_ra")
			add := func(id, port, conf string) error {
				c := attaching{typ: typ, conf: `"isGateway": true, ` + conf}.call()
				c.id = id
				h.namespace(id)
				out, err := h.run(t.Context(), "ADD", c)
				if err != nil {
					return err
				}
				ports := attaching{typ: "portmap", conf: `"runtimeConfig": {"portMappings": [{"hostPort": ` + port + `, "containerPort": 80, "protocol": "tcp"}]}`}.call()
				ports.id, ports.prev = id, out
				_, err = h.run(t.Context(), "ADD", ports)
				return err
			}
			expect.NoError(t, add("first", "8081", v4))
			trap := trapSysctls(t)
			err := add("second", "8082", v4)
			trapped := add("third", "8083", v6)
			trap()
			if err != nil {
				t.Errorf("IPv4: %v", err)
			}
			if !errors.Is(trapped, unix.ELOOP) && (trapped == nil || !strings.Contains(trapped.Error(), unix.ELOOP.Error())) {
				t.Errorf("IPv6, whose settings are files: got %v", trapped)
			}
			h.in("second", `test "$(cat /proc/sys/net/ipv4/conf/eth0/arp_notify)" = `+map[string]string{"bridge": "1", "ptp": "0"}[typ])
		})
	}
}
