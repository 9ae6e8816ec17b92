package behaviour_test

import (
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
)

// byReaper runs a verb in a process that reaps all its children. It returns the
// printed error, or nothing.
func (s *stage) byReaper(how, verb string, conf []byte, path string) string {
	s.T.Helper()
	out, err := testhost.Job{
		Verb: verb, ID: "c1", NetNS: path, Conf: conf, Reaps: how,
		StateDir: s.Path("state"), PluginDir: s.Path("bin"), HostNetNS: s.Path("netns", "host"),
	}.Command(s.T).CombinedOutput()
	expect.NoError(s.T, err)
	return string(out)
}

// TestFault_F52_AReapedPluginIsJudgedByItsResult: a program that reaps all its
// children takes the plugins' exit status. An ADD then counts by its result, a
// DEL if the sweep covers the plugin, a CHECK never.
func TestFault_F52_AReapedPluginIsJudgedByItsResult(t *testing.T) {
	const lost = "its exit status is lost"
	for _, how := range []string{"ignores SIGCHLD", "waits for all"} {
		t.Run(how, func(t *testing.T) {
			s := newStage(t)
			swept, other := s.Network("net", "1.0.0", "portmap"), s.Network("net", "1.0.0", "p")
			path := s.Container("c1")
			expect.Same(t, "ADD", s.byReaper(how, "ADD", swept, path), "")
			if said := s.byReaper(how, "CHECK", swept, path); how == "ignores SIGCHLD" && !strings.Contains(said, lost) {
				t.Errorf("CHECK: %q", said)
			}
			expect.Same(t, "DEL of a plugin that the sweep covers", s.byReaper(how, "DEL", swept, path), "")

			s.On("portmap", "ADD", testhost.Says(7, "no"))
			if said := s.byReaper(how, "ADD", swept, path); !strings.Contains(said, "no (code 7)") {
				t.Errorf("ADD that fails: %q", said)
			}
			half := `{"cniVersion": "1.0.0", "ips": [{"address": "10.1.`
			s.On("portmap", "ADD", scripted.Action{Stdout: &half})
			if said := s.byReaper(how, "ADD", swept, path); said == "" {
				t.Error("half a result counts")
			}

			expect.Same(t, "ADD of another plugin", s.byReaper(how, "ADD", other, path), "")
			if said := s.byReaper(how, "DEL", other, path); how == "ignores SIGCHLD" && !strings.Contains(said, lost) {
				t.Errorf("DEL of another plugin: %q", said)
			}
			expect.NoError(t, s.Runtime().Remove(t.Context(), "c1", path))
		})
	}
}
