package backend_test

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// residentLimit is the size in KiB below which a daemon stays.
var residentLimit = 150 << 10

// crowdSize is how many ADDs are asked for at once.
var crowdSize = flag.Int("crowd", 500, "ADDs at once")

// TestACrowdInProcess: through the socket, each with a bridge, an address and a host port,
// all are attached at once, adopted by another daemon, and detached at once.
func TestACrowdInProcess(t *testing.T) {
	s, n := newSite(t, false), *crowdSize
	paths := make([]string, n)
	for i := range paths {
		paths[i] = s.Container(fmt.Sprint("c", i))
	}
	first := start(t, s.settings)
	_, err := s.call("ADD", "c0", paths[0], 20000) // makes what plugins keep for the network
	expect.NoError(t, err)
	expect.Value(s.call("DEL", "c0", paths[0], 20000))(t)
	first.stop()
	clean := s.Audit()

	d := start(t, s.settings)
	before := expect.Value(size(d.Process.Pid, "VmHWM"))(t)
	addresses := make([]string, n)
	begin := time.Now()
	expect.NoError(t, testhost.InParallel(n, func(i int) (err error) {
		addresses[i], err = s.call("ADD", fmt.Sprint("c", i), paths[i], 20000+i)
		return err
	}))
	took := time.Since(begin)
	of := map[string]int{}
	for i, address := range addresses {
		if other, taken := of[address]; taken || address == "" {
			t.Errorf("c%d and c%d have the address %q", i, other, address)
		}
		of[address] = i
	}
	own := expect.Value(size(d.Process.Pid, "VmHWM"))(t)
	d.kill()
	begin = time.Now()
	d = start(t, s.settings)
	t.Logf("the next daemon serves after %v", time.Since(begin).Round(time.Millisecond))
	begin = time.Now()
	expect.NoError(t, testhost.InParallel(n, func(i int) error {
		_, err := s.call("DEL", fmt.Sprint("c", i), paths[i], 20000+i)
		return err
	}))
	t.Logf("%d ADDs at once in %v, DELs in %v; the daemon's peak of resident memory: %d KiB, of these %d before",
		n, took.Round(time.Millisecond), time.Since(begin).Round(time.Millisecond), own, before)
	if own > residentLimit || own <= 0 {
		t.Errorf("%d KiB are resident, the limit is %d", own, residentLimit)
	}
	d.stop()
	s.WantClean(clean)
}
