package storm

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/cnitest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

var (
	kills = flag.Int("kills", 14, "daemons to kill")
	pods  = flag.Int("pods", 3, "pods that live meanwhile")
	seed  = flag.Uint64("seed", 0, "seed of the moments; 0: by the clock")
)

// TestStorm: whatever the daemon is doing when it is killed, every sandbox runs in the end, no
// living one is harmed, and nothing is left of one that has ended. The next daemon is another
// build, conflists change, and the host reboots.
func TestStorm(t *testing.T) {
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", *seed)
	s := newStorm(t)
	s.change(0)
	s.restart()
	before := s.audit()
	probing, stop := context.WithCancel(t.Context())
	probed := make(chan struct{})
	go func() { defer close(probed); s.probe(probing) }()
	s.begin(*pods, s.run)
	s.settle("the first pods")
	for n := range *kills {
		s.round(n)
		if t.Failed() {
			break
		}
	}
	stop()
	expect.Await(t, "the last probe", probed)
	s.report()
	s.finish(before)
}

// storm is the whole.
type storm struct {
	*kubelet
	random  *rand.Rand
	daemon  *daemon
	builds  int            // daemons started
	variant int            // of the conflist
	states  map[string]int // kills in each
	doing   map[string]int // plugins after which calls were cut off
	down    time.Time      // since when no daemon serves
	took    time.Duration  // of the last start
	longest time.Duration  // from a kill until the next daemon serves
	held    int            // kills while DELs were queued
	reboots int
	moment  string
}

func newStorm(t *testing.T) *storm {
	s := &storm{random: rand.New(rand.NewPCG(*seed, 0)), states: map[string]int{}, doing: map[string]int{}}
	s.kubelet = newKubelet(newNode(t))
	s.t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		log, _ := os.ReadFile(disk + "/containerd.log")
		t.Logf("%s; the end of containerd's log:\n%s", s.moment, log[max(0, len(log)-20000):])
		if s.daemon != nil {
			text, _ := json.MarshalIndent(s.daemon.lines, "", " ")
			t.Logf("the end of the daemon's log:\n%s", text[max(0, len(text)-20000):])
		}
	})
	return s
}

// restart starts the other build, and waits until it serves.
func (s *storm) restart() {
	s.t.Helper()
	s.startOther()
	s.daemon.serves()
	s.took = s.daemon.served.Sub(s.daemon.begun)
	if !s.down.IsZero() {
		s.longest = max(s.longest, s.daemon.served.Sub(s.down))
	}
	s.down = time.Time{}
}

func (s *storm) startOther() {
	s.builds++
	s.daemon = s.start(stamps[s.builds%len(stamps)])
}

// kill kills the daemon in a state.
func (s *storm) kill(state string) {
	doing := s.daemon.kill()
	if s.down.IsZero() {
		s.down = time.Now()
	}
	s.states[state]++
	for _, what := range doing {
		s.doing[what]++
	}
}

// pause lets a random part of most pass: the moment of a kill.
func (s *storm) pause(most time.Duration) { <-time.After(time.Duration(s.random.Int64N(int64(most)))) }

// round kills the daemon once, and looks whether all is well. The states come in turn.
func (s *storm) round(n int) {
	s.t.Helper()
	states := []struct {
		name string
		do   func(string)
	}{
		{"ADD", s.duringADD}, {"starting", s.starting}, {"DEL", s.duringDEL}, {"draining", s.draining}, {"reloading", s.reloading},
		{"idle", s.kill}, {"ADD and DEL", s.duringBoth}, {"reboot", s.reboot}, {"no conflist", s.withoutConflist},
	}
	state := states[n%len(states)]
	s.moment = fmt.Sprintf("kill %d, %s", n, state.name)
	state.do(state.name)
	s.restart()
	s.busy.Wait()
	s.Lock()
	more := *pods - len(s.alive)
	s.Unlock()
	if more > 0 {
		s.begin(more, s.run)
	} else {
		s.endAll(s.take(-more))
	}
	s.settle(s.moment)
}

// chains are the plugins of the variants of the conflist. The last is executed.
var chains = [][]string{{"bridge", "portmap"}, {"bridge", "portmap", "tuning"}, {"ptp", "portmap", "scripted"}, {"bridge", "bandwidth", "portmap", "scripted"}}

// change writes another conflist, with another subnet and other plugins.
func (s *storm) change(variant int) {
	s.t.Helper()
	s.variant = variant
	var plugins []map[string]any
	for _, name := range chains[variant%len(chains)] {
		p := map[string]any{"type": name}
		switch name {
		case "bridge", "ptp":
			p["ipam"] = map[string]any{"type": "host-local", "dataDir": dataDir, "ranges": [][]any{{map[string]any{"subnet": fmt.Sprintf("10.90.%d.0/24", variant)}}}}
			if name == "bridge" {
				p["bridge"], p["isGateway"] = fmt.Sprint("st", variant), true
			}
		case "portmap":
			p["capabilities"] = map[string]bool{"portMappings": true}
		case "bandwidth":
			p["ingressRate"], p["ingressBurst"] = 1000000000, 1000000000
		}
		plugins = append(plugins, p)
	}
	network := map[string]any{"cniVersion": "1.0.0", "name": fmt.Sprint("net", variant%2), "plugins": plugins}
	s.write(confDir+"/10-net.conflist", network)
	s.write(daemonConf, map[string]any{"confDir": confDir, "pluginDirs": []string{disk + "/plugins"}, "limits": map[string]any{"queued": 1024 + variant}})
}

func (s *storm) write(path string, v any) {
	s.t.Helper()
	expect.NoError(s.t, os.WriteFile(path+".new", expect.Value(json.Marshal(v))(s.t), 0o644), os.Rename(path+".new", path))
}

// settle waits for all calls, and until nothing is there but what the living pods have.
func (s *storm) settle(moment string) {
	s.t.Helper()
	s.busy.Wait()
	s.collect()
	s.Lock()
	want := len(s.alive)
	for _, harm := range s.harmed {
		s.t.Errorf("%s: a living pod: %s", moment, harm)
	}
	s.harmed = nil
	s.Unlock()
	var got map[string]int
	for end := time.Now().Add(expect.Patience); time.Now().Before(end); <-time.After(20 * time.Millisecond) {
		if got = s.counts(); !slices.ContainsFunc([]string{"veths", "addresses", "records", "pins", "namespaces", "cached"}, func(what string) bool { return got[what] != want }) && got["queued"] == 0 {
			return
		}
	}
	s.t.Errorf("%s: %d pods live, and there are %v", moment, want, got)
}

// counts returns how many there are of what a pod has one of, and of queued DELs.
func (s *storm) counts() map[string]int {
	s.t.Helper()
	files := func(pattern string) int { return len(expect.Value(filepath.Glob(pattern))(s.t)) }
	got := map[string]int{
		"addresses": files(dataDir + "/*/10.*"), "records": files("/var/lib/embedcni/embedcni/attachments/*.json"),
		"pins": files("/var/lib/embedcni/embedcni/attachments/netns/*"), "namespaces": files("/run/netns/*"),
		"cached": files("/var/lib/cni/results/*-eth0"), "queued": files("/var/lib/embedcni/dels/*"),
	}
	expect.NoError(s.t, netns.Do(s.host, func() error {
		all, err := net.Interfaces()
		for _, i := range all {
			if strings.HasPrefix(i.Name, "veth") {
				got["veths"]++
			}
		}
		return err
	}))
	return got
}

// audit lists all that can be left on the host, in its namespace. The daemon makes its two lock
// files with the first call.
func (s *storm) audit() (lines []string) {
	s.t.Helper()
	expect.NoError(s.t, netns.Do(s.host, func() (err error) {
		lines, err = cnitest.Audit(s.t.Context(), cnitest.Options{StateDirs: []string{"/var/lib/cni", "/var/lib/embedcni", dataDir}})
		return err
	}))
	return slices.DeleteFunc(lines, func(line string) bool {
		return strings.Contains(line, "/embedcni/embedcni/locks ") || strings.Contains(line, "/embedcni/embedcni/alive ")
	})
}

// finish ends all pods, and compares what is there with what was before.
func (s *storm) finish(before []string) {
	t := s.t
	s.endAll(s.take(1 << 30))
	s.settle("the end")
	expect.NoError(t, s.daemon.cmd.Process.Signal(unix.SIGTERM), s.daemon.cmd.Wait())
	<-s.daemon.read
	expect.Same(t, "left on the host", cnitest.Diff(before, s.audit()), "")
	expect.NoError(t, s.containerd.Process.Signal(unix.SIGTERM), s.containerd.Wait())
	expect.Eventually(t, "the end of all processes", func() bool { return len(processes(t)) == 0 })
	expect.NoError(t, netns.Remove(s.host))
	expect.Same(t, "mounts", mounts(t), s.mounts)
	s.wantNoCgroups()
}

func (s *storm) report() {
	s.Lock()
	defer s.Unlock()
	f := s.figures
	s.t.Logf("%d sandboxes ran; %d attempts were refused, and %d sandboxes ran after that; %d were ended, %d requests of that repeated", f.ran, f.refused, f.recovered, f.ended, f.again)
	s.t.Logf("kills: %v, %d while DELs were queued, %d reboots; calls cut off: %v", s.states, s.held, s.reboots, s.doing)
	s.t.Logf("longest from a kill until the next daemon serves %v, from the request of a sandbox until it ran %v; %d probes of living ones", s.longest, f.longest, s.probes.Load())
}
