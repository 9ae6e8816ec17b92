package faults_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/netns"
)

// takenBack: shared objects are made before another runtime's first ADD. That
// ADD fails, and the objects are removed again while containers exist and new
// ones come.
func (l *living) takenBack() {
	const script = `#!/bin/sh
case $CNI_COMMAND in
ADD) cat %s; echo '{"cniVersion": "1.0.0", "code": 5, "msg": "as it was to"}'; exit 1 ;;
VERSION) echo '{"cniVersion": "1.0.0", "supportedVersions": ["1.0.0"]}' ;;
esac
`
	gate := l.path("gate")
	expect.NoError(l.t, unix.Mkfifo(gate, 0o600))
	expect.NoError(l.t, os.WriteFile(l.path("bin", "own"), fmt.Appendf(nil, script, gate), 0o755))
	conf := l.network(1)
	end := bytes.LastIndexByte(conf, ']')
	conf = fmt.Appendf(nil, `%s, {"type": "own"}%s`, conf[:end], conf[end:])
	for n := range 3 {
		other := l.settingsOf(executables)
		other.StateDir, other.Owner = l.path(fmt.Sprint("other", n)), "other" // where there was no first ADD
		other.Confs = [][]byte{conf}
		id := fmt.Sprint("fails", n)
		failing := begin(l.t, job{Verb: "ADD", ID: id, NetNS: l.container(id), Port: 20000, Settings: other})
		waits := expect.Value(os.OpenFile(gate, os.O_WRONLY, 0))(l.t) // opens when the plugin opens it
		if l.sometimes() {
			expect.NoError(l.t, waits.Close())
		}
		l.attach(fmt.Sprint("c", n))
		l.homes[n].own()
		_ = waits.Close() // or it failed before
		killed, said := failing.wait()
		expect.Must(l.t, !killed && strings.Contains(said, "as it was to"), "the ADD that was to fail: %q", said)
		for _, home := range l.homes {
			if !slices.Contains(home.see(), "reached by port") {
				home.lost = append(home.lost, "reached by port")
				l.t.Errorf("%s is not reached by its port", home.id)
			}
		}
	}
}

// own removes from the photograph the parts of a container that failed
// meanwhile. A chain without its rules says nothing new.
func (h *home) own() {
	h.host = h.host.Without(func(line string) bool {
		if strings.HasPrefix(line, "link ") && !strings.Contains(line, "br0") {
			return true // a network without a bridge yet
		}
		return slices.ContainsFunc([]string{" -N ", "10.71.", "net1", "br1", " 20000 "}, func(of string) bool { return strings.Contains(line, of) })
	})
}

// pass runs a runtime's passes until they have removed the abandoned
// containers. The last of these comes after all other containers.
func (l *living) pass() {
	l.t.Helper()
	r, ctx := l.runtime(l.set), context.Background()
	for n := range 2 {
		id := fmt.Sprint("gone", n)
		expect.Value(r.Setup(ctx, id, l.container(id)))(l.t)
		expect.NoError(l.t, netns.Remove(l.netns(id)))
		l.untilGone(func() error { return r.Remove(ctx, "nobody", "") }, id)
	}
}

// endless: nothing on the host shows the end of a macvlan's namespace, and a
// lent device would not come back.
func (l *living) endless() {
	l.cable("lan0")
	l.cable("nic0")
	l.base = l.audit()
	s := l.set
	for id, conf := range map[string][]byte{
		"lan": fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "lan", "plugins": [{"type": "macvlan", "master": "lan0",
			"ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.80.0.0/16"}]]}}]}`, l.path("ipam")),
		"lent": []byte(`{"cniVersion": "1.0.0", "name": "lent", "plugins": [{"type": "host-device", "device": "nic0"}]}`),
	} {
		before := l.audit()
		s.Confs = [][]byte{conf}
		expect.Value(l.setup(s, id))(l.t)
		expect.NoError(l.t, l.settle(id, l.netns(id), nil).abandon(before))
	}
	l.attach("c1")
	l.pass()
	for _, home := range l.homes[:2] {
		l.leave(home, s)
	}
	expect.NoError(l.t, nettest.OnLink("nic0", netlink.LinkSetUp)) // it comes back down
}

// abandon photographs a container whose path is gone.
func (h *home) abandon(before audit.Lines) error {
	err := netns.Remove(h.path)
	h.host = h.l.about(before)
	h.photograph()
	return err
}

// killedInTurn: three programs attach and remove containers, are killed, and
// restart with Recover and GC, possibly with another kind of plugins.
func (l *living) killedInTurn() {
	var owners []settings
	for n := range 3 {
		s := l.set
		s.Owner = fmt.Sprintf("owner%d", n)
		owners = append(owners, s)
		l.attachBy(s, fmt.Sprintf("c%d", n))
	}
	for n := range 6 {
		for i := range owners {
			owners[i].BuiltIn = l.random.IntN(2) == 0
		}
		s := owners[l.random.IntN(len(owners))]
		live := "c" + strings.TrimPrefix(s.Owner, "owner")
		j := job{Verb: "ADD", ID: fmt.Sprintf("dead%d", n), Port: int32(20000 + n), Settings: s}
		j.NetNS = l.container(j.ID)
		if l.random.IntN(2) == 0 {
			expect.NoError(l.t, elsewhere(l.t, j))
			j.Verb = "DEL"
		}
		delay := time.Duration(l.random.Int64N(int64(200 * time.Millisecond)))
		p := begin(l.t, j)
		<-time.After(delay)
		hit := p.kill()
		l.t.Logf("%s of %s by %s killed after %v: %v", j.Verb, j.ID, s.Owner, delay, hit)
		for _, next := range slices.Concat([]settings{s}, owners) {
			l.restart(next)
		}
		l.collect(s, live)
		expect.NoError(l.t, netns.Remove(j.NetNS))
	}
}
