package storm

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/embedcni/cni/internal/expect"
)

// cut waits until a plugin of a verb has ended, any of them, and for a moment more.
func (s *storm) cut(verb string) {
	plugins := append([]string{"loopback"}, chains[s.variant%len(chains)]...)
	plugin := plugins[s.random.IntN(len(plugins))]
	came := s.daemon.await(func(e entry) bool { return e.Operation == verb && e.Plugin == plugin })
	select {
	case <-came:
	case <-time.After(time.Second): // a container of another chain, or none
	}
	most := 3 * time.Millisecond
	if plugin == "loopback" { // eth0 comes after another execution of the shim
		most = 40 * time.Millisecond
	}
	s.pause(most)
}

func (s *storm) duringADD(state string) {
	s.begin(2, s.run)
	s.cut("ADD")
	s.kill(state)
}

func (s *storm) duringDEL(state string) {
	s.endAll(s.take(2))
	s.cut("DEL")
	s.kill(state)
}

func (s *storm) duringBoth(state string) {
	s.endAll(s.take(1))
	s.begin(1, s.run)
	s.cut([]string{"ADD", "DEL"}[s.random.IntN(2)])
	s.kill(state)
}

// starting kills a daemon that does not serve yet, while a pod is asked for.
func (s *storm) starting(state string) {
	s.kill("idle")
	s.begin(1, s.run)
	s.startOther()
	s.pause(s.took + s.took/4)
	s.kill(state)
}

// draining kills a daemon with DELs in the queue, while it carries them out.
func (s *storm) draining(state string) {
	s.kill("idle")
	s.endAll(s.take(2))
	s.busy.Wait()
	queued := s.counts()["queued"]
	expect.That(s.t, queued > 0, "%s: no DEL is queued", s.moment)
	s.startOther()
	for end := time.Now().Add(expect.Patience); s.counts()["queued"] == queued && time.Now().Before(end); {
		select {
		case <-s.daemon.serving:
			end = time.Now()
		case <-time.After(time.Millisecond):
		}
	}
	if s.counts()["queued"] > 0 {
		s.held++
	}
	s.kill(state)
}

// reloading kills a daemon that reads a changed conflist and a changed configuration.
func (s *storm) reloading(state string) {
	s.change(s.variant + 1)
	expect.NoError(s.t, s.daemon.cmd.Process.Signal(unix.SIGHUP))
	s.begin(1, s.run)
	s.pause(150 * time.Millisecond)
	s.kill(state)
}

// withoutConflist: while there is none a sandbox is refused, and others end as before.
func (s *storm) withoutConflist(state string) {
	expect.NoError(s.t, os.Remove(confDir+"/10-net.conflist"))
	expect.Await(s.t, "the daemon to see that the conflist is gone", s.daemon.await(func(e entry) bool { return e.Msg == "watch of the configuration: unloaded" }))
	_, err := s.client().RunPodSandbox(s.t.Context(), &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "early", Uid: "early", Namespace: "storm"},
		Linux:    &runtimeapi.LinuxPodSandboxConfig{CgroupParent: "/" + cgroupName()},
	}})
	expect.That(s.t, err != nil, "%s: a sandbox runs without a network", s.moment)
	s.endAll(s.take(1))
	s.busy.Wait()
	s.kill(state)
	s.change(s.variant + 1)
}

// reboot cuts the power while pods begin and end.
func (s *storm) reboot(state string) {
	s.endAll(s.take(1))
	s.begin(1, s.run)
	s.pause(300 * time.Millisecond)
	s.Lock()
	for _, p := range s.alive {
		p.probing.Lock()
		p.ended = true
		p.probing.Unlock()
	}
	clear(s.alive)
	s.boots.Add(1)
	s.Unlock()
	s.reboots++
	s.kill(state)
	s.halt()
	s.boot()
	s.down = time.Now()
}
