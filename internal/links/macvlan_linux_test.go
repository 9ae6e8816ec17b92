package links

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMacvlanOnKernelsThatLookAtTheHost makes one with a random name, and then
// renames it.
func TestMacvlanOnKernelsThatLookAtTheHost(t *testing.T) {
	host, container := newNS(t, "host"), newNS(t, "container")
	outside, inside := mustDial(t, host), mustDial(t, container)
	pair, err := Veth{Name: "eth0"}.Create(outside, container)
	if err != nil {
		t.Fatal(err)
	}
	v := Macvlan{Name: "net1", Parent: pair.Host.Index, Mode: 4, MTU: 1400}
	if err := v.createAndRename(outside, container); err != nil {
		t.Fatal(err)
	}
	got, err := inside.Link("net1")
	if err != nil || got.Kind != "macvlan" || got.Peer.Index != pair.Host.Index || got.MTU != 1400 {
		t.Errorf("got %+v, %v", got, err)
	}
	// A name that is taken after all leaves nothing under the random one.
	before := got.Index
	if err := v.createAndRename(outside, container); !errors.Is(err, unix.EEXIST) {
		t.Errorf("got %v", err)
	}
	for index := before + 1; index < before+4; index++ {
		if l, err := inside.LinkByIndex(index); err == nil {
			t.Errorf("left %+v", l)
		}
	}
	if err := v.Create(outside, container); !errors.Is(err, unix.EEXIST) {
		t.Errorf("got %v", err)
	}
}
