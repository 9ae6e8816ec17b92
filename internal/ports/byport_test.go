package ports

import (
	"fmt"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

func TestByPort(t *testing.T) {
	var b ByPort
	find := func(protocol string, port uint16) string {
		return fmt.Sprint(b.Find([]Claim{{Protocol: protocol, Port: port}}))
	}
	b.Set("nothing", "")
	expect.Same(t, "empty", find("tcp", 80), "[]")
	b.Set("web", "t80.8000-8019u53")
	b.Set("dns", "u53")
	b.Set("broad", "t1000-2000")
	b.Set("any", codeAny)
	for _, tt := range []struct {
		protocol string
		port     uint16
		want     string
	}{
		{"tcp", 80, "[any web]"}, {"tcp", 8019, "[any web]"}, {"tcp", 8020, "[any]"},
		{"udp", 53, "[any dns web]"}, {"udp", 80, "[any]"}, {"tcp", 1500, "[any broad]"},
	} {
		expect.Same(t, fmt.Sprint(tt.protocol, " ", tt.port), find(tt.protocol, tt.port), tt.want)
	}
	expect.Same(t, "code", b.Code("dns"), "u53")
	both := []Claim{{Protocol: "tcp", Port: 80}, {Protocol: "udp", Port: 53}}
	expect.Same(t, "each once", fmt.Sprint(b.Find(both)), "[any dns web]")

	b.Set("any", "")
	b.Set("web", "t81")
	expect.Same(t, "another code", fmt.Sprint(b.Find(both)), "[dns]")
	expect.Same(t, "its port", find("tcp", 81), "[web]")
	b.Set("web", "")
	b.Set("dns", "")
	b.Set("broad", "")
	expect.Same(t, "names left", len(b.codes)+len(b.wide), 0)
	expect.Same(t, "ports left", len(b.slots), 0)
}
