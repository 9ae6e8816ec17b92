package compare

import (
	"context"
	"slices"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/nettest"
)

// TestWorkersShareOneLookAtAHost, and read each container by themselves.
func TestWorkersShareOneLookAtAHost(t *testing.T) {
	host := expect.Value(hostns.NewFinder().Open(""))(t)
	defer func() { expect.NoError(t, host.Close()) }()
	container := nettest.New(t)
	looks := Dumps()
	defer func() { expect.NoError(t, looks.Close()) }()
	const n = 20
	hosts, containers := make([]Net, n), make([]Net, n)
	looks.Each(n, func(i int, its *Looks) {
		v, err := its.Open(context.Background(), host, container)
		if err != nil {
			t.Error(err)
			return
		}
		hosts[i], containers[i] = v.Host, v.Container
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	for i := range n {
		if hosts[i] == nil || hosts[i] != hosts[0] {
			t.Errorf("view %d has a look at the host of its own", i)
		}
		if slices.Contains(containers[:i], containers[i]) {
			t.Errorf("view %d asks the container as another one does", i)
		}
	}
}
