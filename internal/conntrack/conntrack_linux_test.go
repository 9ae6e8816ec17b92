package conntrack

import (
	"testing"

	"github.com/embedcni/cni/internal/nettest"
)

// Flows of neither a port nor an address would be all of the host's.
func TestForgetRefusesAllFlows(t *testing.T) {
	ns := nettest.New(t)
	if n, err := Forget(ns, false, Flows{Port: 53}, Flows{}); err == nil {
		t.Errorf("forgot %d flows of any port and address", n)
	}
}
