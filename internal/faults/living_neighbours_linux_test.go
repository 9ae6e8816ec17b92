package faults_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

// neighbourCases are calls for one container that once harmed another.
func neighbourCases() []livingCase {
	onDisk := []string{executables}
	return []livingCase{
		{"F30", "Remove behind an orphan, no Recover", onDisk, (*living).orphaned},
		{"F39", "GC beside another state directory", nil, (*living).otherDirectory},
		{"F40", "a second Remove, the path another's", nil, (*living).secondRemove},
		{"F42", "a retried DEL, the address another's", onDisk, (*living).retried},
		{"F52", "a Setup that fails, and an lo that was up", nil, (*living).failedBeside},
	}
}

// orphaned: a runtime is killed during an ADD while its plugin hangs. A plugin
// of a running runtime hangs too. Processes are found by the container's ID, so
// the IDs are unique to this case.
func (l *living) orphaned() {
	l.attach("f30-busy")
	l.spoil("bridge", fault{Verb: "CHECK", Hang: true, At: "before"})
	busy := begin(l.t, job{Verb: "CHECK", ID: "f30-busy", NetNS: l.netns("f30-busy"), Settings: l.set})
	hung(l.t, "f30-busy")
	l.spoil("firewall", fault{Verb: "ADD", Hang: true, Fork: true, At: "before"})
	dead := begin(l.t, job{Verb: "ADD", ID: "f30-dead", NetNS: l.container("f30-dead"), Settings: l.set})
	hung(l.t, "f30-dead")
	dead.kill()
	r := l.runtime(l.set)
	l.within(soon, "Remove", func() error { return r.Remove(context.Background(), "f30-dead", "") })
	if left := processesOf(l.t, "f30-dead"); len(left) > 0 {
		l.say("processes of the dead: %v", left)
	}
	if len(processesOf(l.t, "f30-busy")) == 0 {
		l.say("the plugin of a living runtime was killed")
	}
	busy.kill()
	l.heal()
	l.within(soon, "Recover", func() error {
		report, err := r.Recover(context.Background())
		if err == nil {
			err = report.Err()
		}
		return err
	})
}

// otherDirectory: two programs with their own state directories share the
// address directory with an administrator.
func (l *living) otherDirectory() {
	l.edit(`"cniVersion": "1.0.0"`, `"cniVersion": "1.1.0"`)
	other := l.set
	other.StateDir, other.Owner = l.path("other"), "other"
	l.attach("c1")
	l.attachBy(other, "theirs")
	reserved := map[string]string{"10.70.0.200": "", "10.70.0.201": "the printer's"}
	for address, content := range reserved {
		expect.NoError(l.t, os.WriteFile(l.path("ipam", "net0", address), []byte(content), 0o644))
	}
	_, err := l.setup(l.set, "dead")
	expect.NoError(l.t, err)
	l.remove(l.set, "dead", "")
	l.collect(l.set, "c1")
	l.collect(other, "theirs")
	for address := range reserved {
		l.ok("the administrator's reservation", os.Remove(l.path("ipam", "net0", address)))
	}
	l.leave(l.homes[1], other) // end uses the other directory
}

func (l *living) secondRemove() {
	l.attach("c1")
	_, err := l.setup(l.set, "dead", ports(20000)...)
	expect.NoError(l.t, err)
	l.remove(l.set, "dead", l.netns("dead"))
	l.remove(l.set, "dead", l.netns("c1"))
	_, err = l.setup(l.set, "dead", ports(20000)...)
	expect.NoError(l.t, err)
	l.remove(l.set, "dead", l.netns("c1"))
}

// failedBeside: in the namespace of a container whose lo is up, another Setup
// reaches lo and is undone.
func (l *living) failedBeside() {
	l.attach("c1")
	expect.NoError(l.t, l.homes[0].ns.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		return err
	}))
	l.photographAll()
	s := l.set
	s.Confs = [][]byte{[]byte(`{"cniVersion": "1.0.0", "name": "lo", "plugins": [{"type": "loopback"}, {"type": "nowhere"}]}`)}
	if _, err := l.runtime(s).Setup(context.Background(), "beside", l.netns("c1")); err == nil {
		l.t.Fatal("Setup succeeded")
	}
}

// retried: the runtime is killed after bridge has released the address. The
// DELs are repeated when another container has it.
func (l *living) retried() {
	l.edit(`{"subnet": "10.70.0.0/16"}`, `{"subnet": "10.70.0.0/16", "rangeStart": "10.70.0.9", "rangeEnd": "10.70.0.9"}`)
	path := l.container("dead")
	expect.NoError(l.t, elsewhere(l.t, job{Verb: "ADD", ID: "dead", NetNS: path, Port: 20000, Settings: l.set}))
	l.spoil("bridge", fault{Verb: "DEL", Kill: "parent", At: "after"})
	if killed, said := begin(l.t, job{Verb: "DEL", ID: "dead", NetNS: path, Settings: l.set}).wait(); !killed {
		l.t.Fatalf("the runtime was not killed: %s", said)
	}
	l.heal()
	l.attach("c1")
	if address := l.homes[0].address; address != "10.70.0.9" {
		l.t.Fatalf("c1 has %s, want the dead one's address", address)
	}
	l.restart(l.set)
	l.remove(l.set, "dead", "")
}

// deviceCases cover interfaces.
func deviceCases() []livingCase {
	inProcess := []string{ourNFTables}
	return []livingCase{
		{"F46", "tuning's DEL killed, a NIC of the host", []string{executables}, (*living).lent},
		{"F47", "a neighbour renames its macvlan", []string{executables, ourNFTables}, (*living).renamed},
		{"F48", "ifbs of siblings and equal names", inProcess, (*living).shaped},
	}
}

// lent: a host's interface is lent to a container and changed there. The plugin
// that should change it back is killed.
func (l *living) lent() {
	l.attach("c1")
	nic := l.cable("nic0")
	before, err := netlink.LinkByName("nic0")
	expect.NoError(l.t, err)
	lending := l.set
	lending.Confs = [][]byte{[]byte(`{"cniVersion": "1.0.0", "name": "lent", "plugins": [
		{"type": "host-device", "device": "nic0"}, {"type": "tuning", "mac": "02:00:00:00:00:09", "mtu": 1400, "promisc": true}]}`)}
	_, err = l.setup(lending, "dead")
	expect.NoError(l.t, err)
	l.spoil("tuning", fault{Verb: "DEL", Kill: "self", At: "before"})
	err = l.runtime(lending).Remove(context.Background(), "dead", "")
	l.heal()
	if err != nil { // the error reports a leftover
		l.remove(lending, "dead", "")
	}
	after, err := netlink.LinkByName("nic0")
	expect.NoError(l.t, err)
	was, is := before.Attrs(), after.Attrs()
	if is.HardwareAddr.String() != was.HardwareAddr.String() || is.MTU != was.MTU || is.Promisc != was.Promisc {
		l.say("the host's interface comes back with %v, MTU %d, promiscuity %d, and had %v, %d, %d",
			is.HardwareAddr, is.MTU, is.Promisc, was.HardwareAddr, was.MTU, was.Promisc)
	}
	expect.NoError(l.t, netlink.LinkDel(nic))
}

func (l *living) renamed() {
	l.cable("lan0")
	l.base = l.audit()
	l.set.Confs = [][]byte{fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "lan", "plugins": [{"type": "macvlan", "master": "lan0",
		"ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.80.0.0/16"}]]}}]}`, l.path("ipam"))}
	for _, id := range []string{"c1", "c2", "dead"} {
		_, err := l.setup(l.set, id)
		expect.NoError(l.t, err)
		if id != "dead" {
			l.settle(id, l.netns(id), nil) // the host cannot reach a macvlan on its own interface
		}
	}
	ns, err := netns.Open(l.netns("dead"))
	expect.NoError(l.t, err)
	expect.NoError(l.t, ns.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		return errors.Join(err, netlink.LinkSetDown(link), netlink.LinkSetName(link, "mine"), netlink.LinkSetUp(link))
	}))
	expect.NoError(l.t, ns.Close())
	l.remove(l.set, "dead", l.netns("dead"))
	if inside := l.inside("dead"); len(inside) > 0 {
		l.say("%v", inside)
	}
}

// shaped: a limit is an interface whose name is a hash of network and ID.
// Siblings share that name, and so do "podn"+"et1x" and "pod"+"net1x".
func (l *living) shaped() {
	conf := func(n int, name string) []byte {
		c := strings.Replace(string(l.network(n)), fmt.Sprintf(`"net%d"`, n), fmt.Sprintf("%q", name), 1)
		return []byte(strings.Replace(c, `{"type": "firewall", "backend": "iptables"}`,
			`{"type": "bandwidth", "capabilities": {"bandwidth": true}}`, 1))
	}
	l.set.Confs = [][]byte{conf(0, "podn"), conf(1, "pod")}
	limit := cni.WithCapabilityBandWidth(cni.BandWidth{IngressRate: 8e6, IngressBurst: 8e6, EgressRate: 8e6, EgressBurst: 8e6})
	before := l.audit()
	first, err := l.setup(l.set, "et1x", cni.WithNetwork("podn"), limit)
	expect.NoError(l.t, err)
	l.settle("et1x", l.netns("et1x"), first).host = l.about(before)
	for _, unshaped := range []bool{true, false} {
		var opts []cni.NamespaceOpts
		if !unshaped {
			opts = append(opts, limit)
		}
		for _, id := range []string{"et1x", "net1x"} {
			network := map[string]cni.NamespaceOpts{"et1x": cni.WithNetwork("podn", cni.WithInterfaceName("eth1")), "net1x": cni.WithNetwork("pod")}[id]
			_, err := l.setup(l.set, id, append(opts, network)...)
			expect.NoError(l.t, err)
			r := l.runtime(l.set)
			l.ok("remove "+id, r.Remove(context.Background(), id, l.netns(id), network))
		}
	}
}

// processCases cover processes and their numbers.
func processCases() []livingCase {
	return []livingCase{
		{"F59", "Recover with few descriptors", nil, (*living).fewDescriptors},
		{"F59", "Recover beside a stopped process", []string{executables}, (*living).stopped},
	}
}

func (l *living) fewDescriptors() {
	l.attach("c1", "c2", "c3")
	for few := uint64(7); few < 40; few += 3 {
		killed, said := start(l.t, job{Verb: "RESTART", NoFile: few, Settings: l.set}, nil).wait()
		l.t.Logf("with %d descriptors: killed %v, %s", few, killed, said)
	}
	l.restart(l.set)
}

func (l *living) stopped() {
	l.attach("c1", "c2")
	l.spoil("bridge", fault{Verb: "ADD", Hang: true, At: "before"})
	busy := begin(l.t, job{Verb: "ADD", ID: "f59-busy", NetNS: l.container("f59-busy"), Settings: l.set})
	hung(l.t, "f59-busy")
	expect.NoError(l.t, busy.cmd.Process.Signal(syscall.SIGSTOP))
	var status syscall.WaitStatus
	_, err := syscall.Wait4(busy.cmd.Process.Pid, &status, syscall.WUNTRACED, nil) // until it has stopped
	expect.NoError(l.t, err)
	r := l.runtime(l.set)
	l.within(soon, "Recover", func() error {
		report, err := r.Recover(context.Background())
		if err == nil && !errors.Is(report.Skipped["f59-busy"], cni.ErrBusy) {
			err = fmt.Errorf("%+v, want that busy was skipped", *report)
		}
		return err
	})
	busy.kill()
	l.heal()
	l.restart(l.set)
}

// ownerCases: several programs share a host.
func ownerCases() []livingCase {
	return []livingCase{
		{"F41", "a second owner adds an interface", nil, (*living).secondOwner},
		{"F41", "three owners killed in turn", []string{builtIn}, (*living).killedInTurn},
	}
}

func (l *living) secondOwner() {
	l.attach("c1", "c2")
	second := l.set
	second.Owner = "second"
	second.Confs = [][]byte{l.network(1)}
	_, err := l.setup(second, "c1", cni.WithNetwork("net1", cni.WithInterfaceName("eth7")))
	expect.NoError(l.t, err)
	l.restart(second)
	l.restart(l.set)
	l.collect(l.set, "c1", "c2")
	l.collect(second)
	l.restart(second)
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
