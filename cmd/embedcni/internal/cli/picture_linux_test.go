package cli

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/cnitest"
	"github.com/embedcni/cni/internal/expect"
)

// picture is the one in docs/command.md. go test -run Picture -update draws it again.
const picture = "../../../../docs/networks.svg"

// TestPicture draws what the documents show: twenty containers on a bridge of both families,
// two of them on a second one, and one that somebody has taken from its bridge.
func TestPicture(t *testing.T) {
	s := newSession(t)
	for _, conf := range [][]string{
		{"10-pods.conflist", "--name=pods", "--subnet=10.1.0.0/24", "--subnet6=fd00:1::/64", "--ports", "--firewall"},
		{"20-dmz.conflist", "--name=dmz", "--subnet=192.168.7.0/24"},
	} {
		stdout, _ := s.want(exitOK, append([]string{"conf", "new", "bridge", "--data-dir", s.host.Dir + "/ipam"}, conf[1:]...)...)
		s.host.WriteConf(conf[0], stdout)
	}
	rt := s.host.Runtime(cni.WithAllConf, cni.WithOwner("embedcni"), cni.WithoutReaping())
	names := []*regexp.Regexp{}
	for i := range 20 {
		id := fmt.Sprintf("web-%d", i+1)
		opts := []cni.NamespaceOpts{cni.WithNetwork("pods")}
		if i%5 == 0 {
			opts = []cni.NamespaceOpts{cni.WithNetwork("pods", cni.WithPorts(cni.Port{HostPort: int32(8080 + i), ContainerPort: 80}))}
		}
		if i < 2 {
			opts = append(opts, cni.WithNetwork("dmz", cni.WithInterfaceName("eth1")))
		}
		result, err := rt.SetupSerially(t.Context(), id, cnitest.Container(t), opts...)
		expect.NoError(t, err)
		for _, n := range result.Networks {
			names = append(names, regexp.MustCompile(regexp.QuoteMeta(n.Interfaces[1].Name)))
		}
	}
	s.on("ip link set %s nomaster", s.hostEnd("web-7"))
	stdout, _ := s.want(exitOK, "graph", "--name", "node-1")
	got := regexp.MustCompile(`/tmp/Test\w+/\d+/netns`).ReplaceAllString(stdout, "/run/netns/…")
	for i, name := range names { // as long as the real ones
		got = name.ReplaceAllString(got, fmt.Sprintf("veth%08x", 0x1c0de*(i+7)))
	}
	if *update {
		expect.NoError(t, os.WriteFile(picture, []byte(got), 0o644))
	}
	want, err := os.ReadFile(picture)
	expect.NoError(t, err)
	expect.That(t, bytes.Equal([]byte(got), want), "%s is not what graph draws; look at it, and if it is right: go test -run Picture -update", picture)
	expect.Same(t, "broken boxes, and the legend's", strings.Count(got, `class="box broken"`), 2)
}
