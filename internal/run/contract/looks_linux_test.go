package contract

import (
	"slices"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/thread"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/netns"
)

// TestViewsShareOneLookAtAHost, and ask each container by themselves.
func TestViewsShareOneLookAtAHost(t *testing.T) {
	host := expect.Value(netns.Current())(t)
	defer func() { expect.NoError(t, host.Close()) }()
	container := nettest.New(t)
	looks := Dumps()
	defer func() { expect.NoError(t, looks.Close()) }()
	const n = 20
	views := make([]*View, n)
	thread.Each(n, n, func(i int) {
		var err error
		if views[i], err = looks.Open(nil, host, container); err != nil {
			t.Error(err)
		}
	})
	for i, v := range views {
		if v.Host == nil || v.Host != views[0].Host {
			t.Errorf("view %d has a look at the host of its own", i)
		}
		if slices.ContainsFunc(views[:i], func(other *View) bool { return other.Container == v.Container }) {
			t.Errorf("view %d asks the container as another one does", i)
		}
	}
	for _, v := range views {
		expect.NoError(t, v.Close())
	}
}
