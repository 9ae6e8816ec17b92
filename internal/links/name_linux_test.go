package links

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDuty_R4_NoInterfaceIsMadeUnderANumberedName: the kernel would make br0
// from "br%d", and nobody would find it again.
func TestDuty_R4_NoInterfaceIsMadeUnderANumberedName(t *testing.T) {
	host, container := newNS(t, "host"), newNS(t, "container")
	h := mustDial(t, host)
	br := must[Link](t)(Bridge{Name: "br0"}.Create(h))
	for name, try := range map[string]func() error{
		"bridge":  func() error { _, err := Bridge{Name: "br%d"}.Create(h); return err },
		"veth":    func() error { _, err := Veth{Name: "eth%d"}.Create(h, container); return err },
		"macvlan": func() error { return Macvlan{Name: "eth%d", Parent: br.Index}.Create(h, container) },
		"move":    func() error { return h.Move(br.Index, container, Move{Name: "eth%d"}) },
	} {
		if err := try(); !errors.Is(err, unix.EINVAL) {
			t.Errorf("%s: got %v, want EINVAL", name, err)
		}
	}
	for _, name := range []string{"br1", "eth0"} {
		if _, err := h.Link(name); !NotFound(err) {
			t.Errorf("%s on the host: %v", name, err)
		}
		if _, err := mustDial(t, container).Link(name); !NotFound(err) {
			t.Errorf("%s in the container: %v", name, err)
		}
	}
}
