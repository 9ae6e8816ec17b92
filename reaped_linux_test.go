package cni_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/scripted"
)

// byReaper runs a verb in a process that reaps all its children, and returns the
// error that it printed, or nothing.
func (s *stage) byReaper(how, verb string, conf []byte, path string) string {
	s.t.Helper()
	input, err := json.Marshal(job{
		Verb: verb, ID: "c1", NetNS: path, Conf: conf, Reaps: how,
		StateDir: s.path("state"), PluginDir: s.path("bin"), HostNetNS: s.path("netns", "host"),
	})
	wantNil(s.t, err)
	cmd := exec.CommandContext(s.t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), otherRuntimeEnv+"=1")
	cmd.Stdin = bytes.NewReader(input)
	out, err := cmd.CombinedOutput()
	wantNil(s.t, err)
	return string(out)
}

// A program that reaps all its children takes the exit status of plugins. An ADD
// counts by its result, a DEL where the sweep covers the plugin, a CHECK never.
func TestFault_F52_AReapedPluginIsJudgedByItsResult(t *testing.T) {
	const lost = "its exit status is lost"
	for _, how := range []string{"ignores SIGCHLD", "waits for all"} {
		t.Run(how, func(t *testing.T) {
			s := newStage(t)
			swept, other := s.network("net", "1.0.0", "portmap"), s.network("net", "1.0.0", "p")
			path := s.container("c1")
			wantSame(t, "ADD", s.byReaper(how, "ADD", swept, path), "")
			if said := s.byReaper(how, "CHECK", swept, path); how == "ignores SIGCHLD" && !strings.Contains(said, lost) {
				t.Errorf("CHECK: %q", said)
			}
			wantSame(t, "DEL of a plugin that the sweep covers", s.byReaper(how, "DEL", swept, path), "")

			s.on("portmap", "ADD", says(7, "no"))
			if said := s.byReaper(how, "ADD", swept, path); !strings.Contains(said, "no (code 7)") {
				t.Errorf("ADD that fails: %q", said)
			}
			half := `{"cniVersion": "1.0.0", "ips": [{"address": "10.1.`
			s.on("portmap", "ADD", scripted.Action{Stdout: &half})
			if said := s.byReaper(how, "ADD", swept, path); said == "" {
				t.Error("half a result counts")
			}

			wantSame(t, "ADD of another plugin", s.byReaper(how, "ADD", other, path), "")
			if said := s.byReaper(how, "DEL", other, path); how == "ignores SIGCHLD" && !strings.Contains(said, lost) {
				t.Errorf("DEL of another plugin: %q", said)
			}
			wantNil(t, s.runtime().Remove(t.Context(), "c1", path))
		})
	}
}
