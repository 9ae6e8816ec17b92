package backend_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// residentLimit is the size in KiB below which a daemon stays.
const residentLimit = sizeFactor * 150 << 10

// How many ADDs are asked for at once. With executed plugins each starts several processes.
var (
	builtInCrowd  = flag.Int("builtin", 150, "ADDs at once with plugins in process")
	executedCrowd = flag.Int("executed", 16, "ADDs at once with executed plugins")
)

// TestACrowdInProcess: through the socket, each with a bridge, an address and a host port.
func TestACrowdInProcess(t *testing.T) { newSite(t, false).crowd(*builtInCrowd) }

// TestACrowdWithExecutedPlugins is the same with the reference plugins' programs, of which
// as many run at once as calls do. With -executed=500 it takes minutes.
func TestACrowdWithExecutedPlugins(t *testing.T) { newSite(t, true).crowd(*executedCrowd) }

// crowd attaches n containers at once, and detaches them at once.
func (s *site) crowd(n int) {
	t := s.T
	t.Helper()
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
	family := watchFamily(d.Process.Pid)
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
	begin = time.Now()
	expect.NoError(t, testhost.InParallel(n, func(i int) error {
		_, err := s.call("DEL", fmt.Sprint("c", i), paths[i], 20000+i)
		return err
	}))
	most, processes := family()
	own := expect.Value(size(d.Process.Pid, "VmHWM"))(t)
	t.Logf("%d ADDs at once in %v, DELs in %v; the daemon's peak of resident memory: %d KiB, of these %d before; with up to %d processes of plugins: %d KiB, pages they share counted once",
		n, took.Round(time.Millisecond), time.Since(begin).Round(time.Millisecond), own, before, processes, most)
	if own > residentLimit || own <= 0 {
		t.Errorf("%d KiB are resident, the limit is %d", own, residentLimit)
	}
	if most > residentLimit || most <= 0 {
		t.Errorf("%d KiB with the processes of plugins, the limit is %d", most, residentLimit)
	}
	d.stop()
	s.WantClean(clean)
}

// watchFamily measures the memory of a process and its descendants, again and again, until the
// returned function is called: that returns the largest sum in KiB, and the largest number
// of descendants. Shared pages count in proportion (PSS in proc(5)).
func watchFamily(pid int) (stop func() (kib, processes int)) {
	end, watched := make(chan struct{}), sync.WaitGroup{}
	most, processes := 0, 0
	watched.Go(func() {
		for tick := time.NewTicker(100 * time.Millisecond); ; { // each look walks all pages
			all := descendants(pid)
			sum := proportional(pid)
			for _, one := range all {
				sum += proportional(one)
			}
			most, processes = max(most, sum), max(processes, len(all))
			select {
			case <-tick.C:
			case <-end:
				tick.Stop()
				return
			}
		}
	})
	return func() (int, int) {
		close(end)
		watched.Wait()
		return most, processes
	}
}

// descendants returns the children of a process and theirs.
func descendants(pid int) (all []int) {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return nil // it has ended
	}
	for _, thread := range threads {
		list, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, thread.Name()))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		for _, field := range strings.Fields(string(list)) {
			if child, err := strconv.Atoi(field); err == nil {
				all = append(append(all, child), descendants(child)...)
			}
		}
	}
	return all
}

// proportional returns the PSS of a process in KiB, 0 if it has ended.
func proportional(pid int) (kib int) {
	rollup, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(rollup), "\nPss:")
	_, _ = fmt.Sscan(after, &kib)
	return kib
}
