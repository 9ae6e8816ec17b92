package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/cnitest"
	"github.com/embedcni/cni/internal/expect"
)

// The client's dealings with its networks are tested here without any: with a fake.

func conf() []cni.Opt {
	opts := []cni.Opt{cni.WithOwner(owner), cni.WithLoNetwork}
	for _, network := range networks() {
		opts = append(opts, cni.WithConfListBytes(network))
	}
	return opts
}

// clientWith returns a client, and everything that it prints.
func clientWith(rt attacher) (*client, *bytes.Buffer) {
	printed := &bytes.Buffer{}
	return &client{rt: rt, out: &printer{to: printed}, known: map[string]bool{}, ill: map[string]bool{}}, printed
}

var shop = allocation{ID: "shop-0", Job: job{
	Networks: []string{"tenants", "backplane"}, Labels: map[string]string{"tenant": "a"},
	Ports: []port{{"http", ":80"}, {"tls", "8443:443"}},
}}

func TestSetupAsksForWhatTheJobHas(t *testing.T) {
	ctx := context.Background()
	fake := expect.Value(cnitest.NewFake(conf()...))(t)
	c, _ := clientWith(fake)
	result, err := c.setup(ctx, shop)
	expect.NoError(t, err)
	http, _ := result.Port("http")
	expect.Same(t, "place", where(result), fmt.Sprintf("10.92.0.2, http on host port %d, tls on host port 8443", http.HostPort))
	var got []string
	for _, a := range fake.Calls()[0].Plan.Attachments {
		got = append(got, fmt.Sprint(a.IfName, " ", a.Network, " ", a.Args["tenant"]))
	}
	expect.Same(t, "attachments", got, []string{"lo cni-loopback a", "eth0 tenants a", "eth1 backplane a"})

	other := shop
	other.ID = "shop-1"
	if _, err := c.setup(ctx, other); err == nil || !strings.Contains(err.Error(), "8443") {
		t.Errorf("a port of another allocation: %v", err)
	}
	attached, err := c.attached()
	expect.NoError(t, err)
	expect.Same(t, "attached", attached, map[string]bool{"shop-0": true})
}

func TestARestartedClientAdoptsItsOwn(t *testing.T) {
	ctx := context.Background()
	fake := expect.Value(cnitest.NewFake(conf()...))(t)
	first, _ := clientWith(fake)
	_, err := first.setup(ctx, shop)
	expect.NoError(t, err)
	other := expect.Value(fake.Restart(append(conf(), cni.WithOwner("other"))...))(t)
	_, err = other.Setup(ctx, "theirs", "/run/netns/theirs", cni.WithNetwork("services"))
	expect.NoError(t, err)

	c, printed := clientWith(expect.Value(fake.Restart(conf()...))(t))
	attached, err := c.attached()
	expect.NoError(t, err, c.adopt(shop))
	expect.Same(t, "attached", attached, map[string]bool{"shop-0": true})
	if !c.known["shop-0"] || !strings.Contains(printed.String(), "shop-0: adopted at 10.92.0.2") {
		t.Errorf("known %v, printed %q", c.known, printed)
	}
	if err := c.adopt(allocation{ID: "web-0"}); err == nil || !strings.Contains(err.Error(), "it cannot be adopted") {
		t.Errorf("one that is not attached: %v", err)
	}
}

// TestAPluginThatIsGoneForGood: Remove cannot do without it, and the client cleans up.
func TestAPluginThatIsGoneForGood(t *testing.T) {
	ctx := context.Background()
	fake := expect.Value(cnitest.NewFake(conf()...))(t)
	c, printed := clientWith(fake)
	_, err := c.setup(ctx, shop)
	expect.NoError(t, err)
	fake.Inject(cnitest.Fault{Verb: "DEL", Network: "tenants", Plugin: "tenant", Err: cni.ErrPluginNotFound})
	err = c.rt.Remove(ctx, shop.ID, "")
	expect.Is(t, err, cni.ErrPluginNotFound)
	expect.NoError(t, c.cleanUp(ctx, shop.ID, err))
	attached, err := c.attached()
	expect.NoError(t, err)
	expect.Same(t, "attached", attached, map[string]bool{})
	for _, want := range []string{"shop-0: cannot be removed: ", "shop-0: cleaned up eth0 of tenants"} {
		if !strings.Contains(printed.String(), want) {
			t.Errorf("no %q in\n%s", want, printed)
		}
	}
}
