package cli

import (
	"fmt"
	"os/exec"
	"testing"

	"github.com/embedcni/cni/cnitest"
)

// TestSessionOfAnOperator is the session of docs/operating.md: twenty containers, one of them
// broken and repaired, and one of another program.
func TestSessionOfAnOperator(t *testing.T) {
	s := newSession(t)
	for i := 1; i <= 20; i++ {
		s.want(exitOK, "add", "pods", cnitest.Container(t), "--id", fmt.Sprintf("web-%02d", i), "--publish", fmt.Sprintf("%d:80", 8000+i))
	}
	s.want(exitOK, "add", "pods", cnitest.Container(t), "--id", "db-1", "--owner", "nomad")
	s.say("list")
	s.say("health")
	s.note("somebody takes a container from its bridge")
	s.on("ip link set %s nomaster", s.hostEnd("web-07"))
	s.say("health")
	s.say("repair")
	s.say("repair web-07 --yes")
	s.say("health web-07")
	s.say("show web-07")
	s.say("remove db-1")
	s.say("remove web-01 web-99")
	s.say("remove web-01 web-02")
	s.say("list --all-owners")
	s.compare("session.txt")
}

// on runs a command on the host.
func (s *session) on(format string, args ...any) {
	s.t.Helper()
	line := fmt.Sprintf(format, args...)
	err := s.host.Do(func() error {
		if out, err := exec.CommandContext(s.t.Context(), "sh", "-c", line).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", line, err, out)
		}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
}
