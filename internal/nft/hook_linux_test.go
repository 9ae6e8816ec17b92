package nft

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
)

// TestHooks as nft has made them.
func TestHooks(t *testing.T) {
	ns := nettest.New(t)
	nettest.Run(t, ns, "nft", `add table ip nat; add chain ip nat jumped
		add chain ip nat after { type nat hook postrouting priority 100; }
		add chain ip nat early { type filter hook prerouting priority -5; policy drop; }`)
	var hooks []*Hook
	expect.NoError(t, In(ns, func() error {
		c, err := Open()
		if err != nil {
			return err
		}
		defer c.Close()
		hooks, err = c.Hooks(FamilyIPv4, Chain{"nat", "early"}, Chain{"nat", "jumped"}, Chain{"nat", "missing"}, Chain{"other", "after"}, Chain{"nat", "after"})
		return err
	}))
	expect.Same(t, "hooks", hooks, []*Hook{{Type: "filter", Number: unix.NF_INET_PRE_ROUTING, Priority: -5}, nil, nil, nil, SourceNAT()})
}

// TestReadHook: what is no hook is none.
func TestReadHook(t *testing.T) {
	for _, data := range [][]byte{nil, {1}, appendNested(nil, unix.NFTA_CHAIN_HOOK, func(b []byte) []byte { return appendNumber(b, unix.NFTA_HOOK_HOOKNUM, 1) })} {
		if h := readHook(data); h != nil {
			t.Errorf("%x: got %+v", data, h)
		}
	}
}
