package cli

import (
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/embedcni/cni/cnitest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

// TestSessionOfAnOperator is the session of docs/command.md: twenty containers, one of them
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

// TestSessionOfTwoOwners is about a container that two programs have attached.
func TestSessionOfTwoOwners(t *testing.T) {
	s := newSession(t)
	s.host.WriteConf("20-nets.conflist", strings.NewReplacer("pods", "nets", "10.1.", "10.2.", "DIR", s.host.Dir).Replace(pods))
	path := cnitest.Container(t)
	s.want(exitOK, "add", "pods", path, "--id", "web")
	s.want(exitOK, "add", "nets", path, "--id", "web", "--ifname", "net1", "--owner", "nomad", "--json")
	s.say("list -a")
	s.say("del nets /run/netns/container --id web --ifname net1")
	s.on("ip link set %s down", "pods0")
	s.on("ip link set %s down", "nets0")
	s.note("somebody sets both bridges down")
	s.say("health web")
	s.say("repair web")
	s.say("repair web --yes")
	s.say("repair web --yes --owner nomad")
	s.say("remove web")
	s.say("health --all-owners")
	s.say("remove web")
	s.compare("owners.txt")
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

// TestSessionOfCNI is that of somebody who knows cnitool.
func TestSessionOfCNI(t *testing.T) {
	s := newSession(t)
	s.say("ready")
	s.say("status pods")
	s.say("add pods /run/netns/tool --id tool")
	s.say("add pods /run/netns/tool --new-netns --id tool --publish 8080:80 --publish 127.0.0.1:5300:53/udp")
	s.say("add pods /run/netns/tool --id tool")
	s.say("check pods /run/netns/tool --id tool")
	s.say("add nets /run/netns/tool --id tool")
	s.on("ip link del pods0")
	s.note("somebody deletes the bridge")
	s.say("check pods /run/netns/tool --id tool")
	s.say("gc pods --keep tool --yes")
	s.say("gc pods")
	s.say("gc pods --keep-none")
	s.say("del pods /run/netns/tool --id tool --owner nomad")
	s.say("del pods /run/netns/tool --id tool")
	s.say("del pods /run/netns/tool --id tool")
	s.say("gc pods --keep-none --yes")
	s.compare("cni.txt")
}

// TestSessionOfPrograms is that of a program that reads JSON.
func TestSessionOfPrograms(t *testing.T) {
	s := newSession(t)
	for _, line := range []string{"ready --json", "list --json", "health --json"} {
		s.say(line)
	}
	s.say("add pods /run/netns/web --new-netns --id web --publish 8080:80 --args IgnoreUnknown=1;FOO=bar")
	for _, line := range []string{"list --json", "show web --json", "health --json"} {
		s.say(line)
	}
	s.on("ip link del pods0")
	s.note("somebody deletes the bridge")
	for _, line := range []string{"health --json", "repair --json", "repair --json --yes", "gc --keep-none --json", "cleanup web --json", "remove web --json"} {
		s.say(line)
	}
	s.compare("json.txt")
}

// TestSessionOfTheDead is about containers that are gone, and what they have left.
func TestSessionOfTheDead(t *testing.T) {
	s := newSession(t)
	gone := cnitest.Container(t)
	s.want(exitOK, "add", "pods", gone, "--id", "gone", "--publish", "8080:80")
	s.want(exitOK, "add", "pods", cnitest.Container(t), "--id", "alive")
	s.say("release")
	s.letGo("gone", gone)
	s.note("the namespace of the container ends")
	s.say("health")
	s.say("list --address 10.1.0.2")
	s.say("release")
	s.say("release --yes")
	s.say("release alive")
	s.say("release gone --yes")
	s.say("cleanup gone")
	s.say("cleanup alive")
	s.say("cleanup alive pods eth0 --yes")
	s.say("cleanup alive pods eth0 --yes")
	s.compare("gone.txt")
}

// letGo ends the namespace of a container, as the next boot of the machine does: also the pin
// that keeps it alive.
func (s *session) letGo(id, path string) {
	s.t.Helper()
	end := s.hostEnd(id)
	h := expect.Value(netns.Open(path))(s.t)
	pins := expect.Value(netns.List(filepath.Join(s.host.StateDir, "embedcni", "attachments", "netns")))(s.t)
	for _, pin := range append(pins, netns.Entry{Path: path, ID: h.ID()}) {
		if pin.ID == h.ID() {
			expect.NoError(s.t, netns.Remove(pin.Path))
		}
	}
	expect.NoError(s.t, h.Close())
	expect.Eventually(s.t, "the kernel to end the namespace", func() bool {
		return s.host.Do(func() error { _, err := net.InterfaceByName(end); return err }) != nil
	})
}
