package compare

import (
	"context"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/nettest"
)

func TestATornDumpIsNotBelieved(t *testing.T) {
	host := expect.Value(hostns.NewFinder().Open(""))(t)
	defer func() { expect.NoError(t, host.Close()) }()
	container := nettest.New(t)
	looks := Dumps()
	defer func() { expect.NoError(t, looks.Close()) }()
	for _, torn := range []bool{false, true} {
		if d := expect.Value(looks.dumps.of(host))(t); torn {
			d.net = nil
		}
		v := expect.Value(looks.Open(context.Background(), host, container))(t)
		if _, live := v.Host.(*links.Conn); live != torn {
			t.Errorf("torn: %t, but the kernel is asked: %t", torn, live)
		}
		expect.Value(v.Host.Link("lo"))(t)
		expect.NoError(t, v.Close())
	}
}

// TestWorkersShareOneLookAtAHost, and read each container by themselves.
func TestWorkersShareOneLookAtAHost(t *testing.T) {
	host := expect.Value(hostns.NewFinder().Open(""))(t)
	defer func() { expect.NoError(t, host.Close()) }()
	container := nettest.New(t)
	looks := Dumps()
	defer func() { expect.NoError(t, looks.Close()) }()
	const n = 20
	hosts, containers := make([]*Namespace, n), make(map[*Namespace]bool)
	seen := make([]*Namespace, n)
	looks.Each(n, func(i int, its *Looks) {
		v, err := its.Open(context.Background(), host, container)
		if err != nil {
			t.Error(err)
			return
		}
		hosts[i], _ = v.Host.(*Namespace)
		seen[i], _ = v.Container.(*Namespace)
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	for i := range n {
		if hosts[i] == nil || hosts[i] != hosts[0] {
			t.Errorf("view %d has a look at the host of its own", i)
		}
		containers[seen[i]] = true
	}
	expect.Same(t, "looks at the container", len(containers), n)
}
