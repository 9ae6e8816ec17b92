package cli

import (
	"regexp"
	"strings"
	"testing"

	"github.com/embedcni/cni/cnitest"
	"github.com/embedcni/cni/internal/expect"
)

// TestSessionOfAnAuditor is about what a restored disk has left: containers without records.
func TestSessionOfAnAuditor(t *testing.T) {
	s := newSession(t)
	s.want(exitOK, "add", "pods", cnitest.Container(t), "--id", "web", "--publish", "8080:80")
	s.want(exitOK, "add", "pods", cnitest.Container(t), "--id", "ghost", "--publish", "8081:80")
	s.say("audit --netns-dir " + s.netnsDir() + " --proc " + s.procDir())
	end := s.hostEnd("ghost")
	s.lose("ghost")
	s.note("the records are those of yesterday")
	s.say("audit --netns-dir " + s.netnsDir() + " --proc " + s.procDir())
	s.say("audit --json --netns-dir " + s.netnsDir() + " --proc " + s.procDir())
	s.say("cleanup ghost pods eth0")
	s.say("cleanup ghost pods eth0 --yes")
	s.deleteLink(end)
	s.on("umount %s/embedcni/attachments/netns/ead6ef* && rm %s/embedcni/attachments/netns/ead6ef*", s.host.StateDir, s.host.StateDir)
	s.say("audit --netns-dir " + s.netnsDir() + " --proc " + s.procDir())
	s.compare("audit.txt")
}

// TestSessionOfAnAuthor writes a configuration and breaks it.
func TestSessionOfAnAuthor(t *testing.T) {
	s := newSession(t)
	s.say("conf new bridge --name apps --subnet 10.2.0.0/24 --subnet6 fd00:2::/64 --ports --firewall")
	s.say("conf check")
	s.host.WriteConf("20-apps.conflist", `{
  "cniVersion": "1.0.0",
  "name": "apps",
  "plugins": [
    {
      "type": "bridge",
      "isGatway": true,
      "mtu": "1400",
      "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24", "gateway": "10.2.0.1"}]]}
    },
    {"type": "portmap"}
  ]
}
`)
	s.say("conf check")
	s.say("conf check --json " + s.host.ConfDir + "/10-pods.conflist")
	s.compare("conf.txt")
}

// TestSessionOfAWatch is what watch prints while containers come, break, and go.
func TestSessionOfAWatch(t *testing.T) {
	s := newSession(t)
	lines, end := s.follow("watch")
	take := func(n int) {
		for n > 0 {
			line := regexp.MustCompile(`^\d\d:\d\d:\d\d\.\d\d\d`).ReplaceAllString(expect.Await(t, "line", lines), "12:34:56.789")
			if strings.Contains(line, " attaching ") {
				continue // it is seen if that takes long
			}
			s.text.WriteString(line + "\n")
			n--
		}
	}
	s.text.WriteString("$ embedcni watch\n")
	take(1)
	s.attach("web-7")
	take(1)
	s.on("ip link set %s nomaster", s.hostEnd("web-7"))
	take(1)
	s.want(exitOK, "repair", "web-7", "--yes")
	take(2)
	s.host.WriteConf("20-bad.conflist", "{")
	take(1)
	s.want(exitOK, "remove", "web-7")
	for line := range lines { // it may have seen the container while that was detached
		if removed := regexp.MustCompile(` removed .*`).FindString(line); removed != "" {
			s.text.WriteString("12:34:56.789 " + removed + "\n")
			break
		}
	}
	expect.Same(t, "exit code", end(), exitOK)
	s.compare("watch.txt")
}
