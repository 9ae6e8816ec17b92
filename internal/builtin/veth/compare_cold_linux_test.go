package veth_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/embedcni/cni/internal/builtin"
	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
)

// TestEachOfManyNotesTheBridge: on a cold host one of many ADDs makes the bridge,
// and all of them note that.
func TestEachOfManyNotesTheBridge(t *testing.T) {
	h := newHost(t)
	h.side = plugintest.Ours(h.ns, builtin.New())
	all := make([]*attached, 50)
	for n := range all {
		all[n] = &attached{h: h, c: numbered(n).call(), memory: plugintest.NewMemory()}
		all[n].c.id = fmt.Sprint("c", n)
		h.namespace(all[n].c.id)
	}
	var wg sync.WaitGroup
	errs := make([]error, len(all))
	for n, a := range all {
		wg.Add(1)
		go func() {
			defer wg.Done()
			_, errs[n] = h.run(a.context(), "ADD", a.c)
		}()
	}
	wg.Wait()
	expect.NoError(t, errs...)
	for n, a := range all {
		expect.Same(t, fmt.Sprint("notes of ", n), strings.Join(a.memory.Keys(), " "), "bridge.made")
	}
}
