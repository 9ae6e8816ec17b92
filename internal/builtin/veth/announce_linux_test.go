package veth_test

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/builtin"
	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// TestAnAddressesNewOwnerIsAnnounced: when ADD returns, the host knows the new
// owner of an address, and other containers are informed.
func TestAnAddressesNewOwnerIsAnnounced(t *testing.T) {
	for what, ports := range map[string]int{"few ports": 0, "many ports": 70} {
		t.Run(what, func(t *testing.T) { announced(t, ports) })
	}
}

func announced(t *testing.T, ports int) {
	const conf, wrong = `"isGateway": true, "ipam": {"type": "static", "addresses": [{"address": "10.1.0.2/24", "gateway": "10.1.0.1"}]}`, "02:00:00:00:00:09"
	h := newHost(t)
	known := builtin.New() // remembers that there are many
	ends := "1"
	h.side = plugintest.Ours(h.ns, func(typ string) plugin.Plugin {
		if typ == "static" {
			return looking{known(typ), h, ends}
		}
		return known(typ)
	})
	another := attaching{typ: "bridge", conf: strings.ReplaceAll(conf, ".2/", ".9/")}.call()
	another.id = "another"
	h.namespace(another.id)
	h.must("ADD", another)
	ends = "2"
	h.sh(fmt.Sprintf("for i in $(seq %d); do ip link add port$i type veth peer name other$i; ip link set port$i master cni0; done", ports))
	listener := h.open(another.id)
	defer listener.Close()
	for i := range 20 {
		h.sh("ip neigh replace 10.1.0.2 lladdr " + wrong + " dev cni0 nud reachable")
		h.in(another.id, "ip neigh replace 10.1.0.2 lladdr "+wrong+" dev eth0 nud reachable")
		c := attaching{typ: "bridge", conf: conf}.call()
		c.id = fmt.Sprint("c", i)
		h.namespace(c.id)
		h.must("ADD", c)
		h.sh("! ip neigh show 10.1.0.2 dev cni0 | grep " + wrong)
		expect.Eventually(t, "another container's news of "+c.id, func() bool { return !strings.Contains(neighbours(t, listener), wrong) })
		h.must("DEL", c)
	}
}

// looking is a slow IPAM plugin. Meanwhile the kernel notices that the new port
// has no carrier yet. Without a request that can take it a second.
type looking struct {
	plugin.Plugin
	h    *host
	ends string // number of pairs' ends on the host
}

func (l looking) Add(ctx context.Context, r *plugin.Request) (*types100.Result, error) {
	cmd := exec.CommandContext(ctx, "sh", "-ec", "until [ $(ip -o link | grep -c ': veth') = "+l.ends+" ]; do :; done; "+
		"for port in $(ip -o link | grep -o ' veth[0-9a-f]*'); do ip link show dev $port; done")
	if err := l.h.ns.Do(cmd.Run); err != nil { // not in the test's goroutine
		return nil, fmt.Errorf("look at the ports: %w", err)
	}
	return l.Plugin.Add(ctx, r)
}

func neighbours(t *testing.T, ns *netns.Handle) string {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command("ip", "neigh")
	cmd.Stdout = &out
	expect.NoError(t, ns.Do(cmd.Run))
	return out.String()
}
