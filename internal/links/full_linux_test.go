package links

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestABridgeIsFull: the error says so, and nothing of the pair is left.
func TestABridgeIsFull(t *testing.T) {
	h := mustDial(t, newNS(t, "host"))
	container := newNS(t, "container")
	br := must[Link](t)(Bridge{Name: "br0"}.Create(h))
	for i := range mostPorts {
		must[Pair](t)(Veth{Name: fmt.Sprint("eth", i), Master: br.Index}.Create(h, container))
	}
	before := len(must[[]Link](t)(h.Links()))
	_, err := Veth{Name: "more", Master: br.Index}.Create(h, container)
	if !errors.Is(err, unix.EXFULL) || !strings.Contains(err.Error(), "bridge has 1023 interfaces, and the kernel takes no more") {
		t.Errorf("got %v", err)
	}
	if after := len(must[[]Link](t)(h.Links())); after != before {
		t.Errorf("%d interfaces instead of %d", after, before)
	}
}
