package behaviour_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/iptables"
	"github.com/embedcni/cni/internal/store/lock"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// orphaned is an attachment of c1 without a record.
type orphaned struct {
	*realHost
	reader *cni.Runtime // loads the network
	blind  *cni.Runtime // loads nothing
	before audit.Lines  // before c1's attachment
	other  *cni.Result  // the neighbour's, whose ID begins with c1's
}

// forget attaches c1 beside its neighbour, then deletes c1's namespace and
// record.
func forget(t *testing.T, network, ipam string, c testhost.Case) *orphaned {
	t.Helper()
	h := newRealHost(t)
	if ipam == "" {
		ipam = h.Path("ipam")
	}
	o := &orphaned{realHost: h, reader: h.Real(cni.WithConfListBytes(c.Conf(network, "1.0.0", ipam))), blind: h.Runtime()}
	// The neighbour comes first, so that all shared parts exist.
	testhost.MustSetUp(h.T, o.reader, "c11", h.Container("c11"), udpPort(8081))
	o.before = h.Audit()
	o.other = expect.Value(o.reader.Lookup("c11"))(t)
	pins := h.pins()
	path := h.Mortal("c1")
	result := testhost.MustSetUp(h.T, o.reader, "c1", path, udpPort(8080))
	for _, pin := range h.pins() {
		if !slices.Contains(pins, pin) {
			expect.NoError(t, netns.Remove(pin))
		}
	}
	expect.NoError(t, record.Open(h.Path("state", "embedcni", "attachments")).Delete("c1"), netns.Remove(path))
	for _, i := range result.Networks[0].Interfaces {
		if strings.HasPrefix(i.Name, "veth") {
			h.waitForNoLink(i.Name)
		}
	}
	return o
}

// waitForNoLink waits until the kernel has removed a namespace's end of a pair,
// and this link with it. It reads one name, because a list of all links can be
// interrupted by another removal.
func (h *realHost) waitForNoLink(name string) {
	h.T.Helper()
	expect.Eventually(h.T, "the end of link "+name, func() bool {
		return errors.As(errOf(netlink.LinkByName(name)), &netlink.LinkNotFoundError{})
	})
}

func everythingConf(network, ipam string) []byte {
	c := everything()
	return c.Conf(network, "1.0.0", ipam)
}

func udpPort(port int32) cni.NamespaceOpts {
	return cni.WithCapabilityPortMap([]cni.PortMapping{{HostPort: port, ContainerPort: 80, Protocol: "udp"}})
}

// wantOther compares with the snapshot before c1: nothing was added and nothing
// is missing, least of all the neighbour's parts.
func (o *orphaned) wantOther() {
	o.T.Helper()
	o.WantClean(o.before)
	expect.Same(o.T, "the neighbour is recorded as", expect.Value(o.reader.Lookup("c11"))(o.T), o.other)
	expect.NoError(o.T, o.reader.Check(context.Background(), "c11", o.Path("netns", "c11")))
}

func (h *realHost) pins() []string {
	h.T.Helper()
	return expect.Value(filepath.Glob(h.Path("state", "embedcni", "attachments", "netns", "*")))(h.T)
}

// everythingOf returns the lines for c1 on the network of everything(), beside
// c11.
func everythingOf(network, dn, ifb string) []string {
	var lines []string
	for _, f := range []struct{ tool, addr string }{{"ip6tables", "fd77::3/128"}, {"iptables", "10.77.0.3/32"}} {
		lines = append(lines,
			f.tool+` -t filter -D CNI-FORWARD -d `+f.addr+` -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT`,
			f.tool+` -t filter -D CNI-FORWARD -s `+f.addr+` -j ACCEPT`,
			f.tool+` -t nat -D CNI-HOSTPORT-DNAT -p udp -m comment --comment "dnat name: \"`+network+`\" id: \"c1\"" -m multiport --dports 8080 -j `+dn,
			f.tool+` -t nat -D POSTROUTING -s `+f.addr+` -m comment --comment "name: \"`+network+`\" id: \"c1\"" -j CNI-HASH`,
			f.tool+` -t nat -F CNI-HASH`, f.tool+` -t nat -F `+dn,
			f.tool+` -t nat -X CNI-HASH`, f.tool+` -t nat -X `+dn,
		)
	}
	return append(lines, "interface "+ifb+" on the host")
}

func TestCleanUpRemovesForgottenLeftovers(t *testing.T) {
	const dn, ifb = "CNI-DN-1d96a4c7e0d1b705cc10f", "bwp1d96a4c7e0d1"
	addresses := []string{"address 10.77.0.3 in DIR/ipam/podnet", "address fd77::3 in DIR/ipam/podnet"}
	cached := []string{"cached result in DIR/state/results"}
	for _, c := range []struct {
		name string
		lose []string // state that is lost
		give func(*orphaned, *cni.CleanUpTarget)
		want []string
	}{
		{name: "cached by libcni", want: slices.Concat(everythingOf("podnet", dn, ifb), addresses, cached)},
		{
			name: "configuration given", lose: []string{"state/results/podnet-c1-eth0"},
			give: func(o *orphaned, t *cni.CleanUpTarget) {
				t.Config = everythingConf("podnet", o.Path("ipam"))
			},
			want: slices.Concat(everythingOf("podnet", dn, ifb), addresses),
		},
		{
			name: "addresses given", lose: []string{"state/results/podnet-c1-eth0", "ipam/podnet/10.77.0.3", "ipam/podnet/fd77::3"},
			give: func(_ *orphaned, t *cni.CleanUpTarget) {
				t.Addresses = []netip.Addr{netip.MustParseAddr("::ffff:10.77.0.3"), netip.MustParseAddr("fd77::3")}
			},
			want: everythingOf("podnet", dn, ifb),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := forget(t, "podnet", "", everything())
			for _, file := range c.lose {
				expect.NoError(t, os.Remove(o.Path(file)))
			}
			target := cni.CleanUpTarget{ContainerID: "c1", Network: "podnet", IfName: "eth0"}
			if c.give != nil {
				c.give(o, &target)
			}
			o.wantCleanUp(target, c.want)
			o.wantOther()
		})
	}
}

// wantCleanUp checks that a dry run lists these lines and changes nothing, that
// the cleanup lists and removes the same lines, and that a second cleanup finds
// nothing.
func (o *orphaned) wantCleanUp(target cni.CleanUpTarget, want []string) {
	o.T.Helper()
	slices.Sort(want)
	ctx, before := context.Background(), o.Audit()
	dry := target
	dry.DryRun = true
	for _, one := range []struct {
		name   string
		target cni.CleanUpTarget
		want   []string
	}{{"dry run", dry, want}, {"cleanup", target, want}, {"again", target, nil}} {
		found, err := o.blind.CleanUp(ctx, one.target)
		got := o.withoutHashes(found)
		slices.Sort(got)
		expect.That(o.T, err == nil && slices.Equal(got, one.want),
			"%s: %v, found:\n%s\nwant:\n%s", one.name, err, strings.Join(got, "\n"), strings.Join(one.want, "\n"))
		if one.target.DryRun {
			expect.Same(o.T, "after the dry run", o.Audit(), before)
		}
	}
}

// TestCleanUpWithoutConfiguration relies on computed names and host-local's
// default directory only.
func TestCleanUpWithoutConfiguration(t *testing.T) {
	const dir = "/var/lib/cni/networks" // private to the sandbox
	t.Cleanup(func() { expect.NoError(t, os.RemoveAll(filepath.Join(dir, "cleanupnet"))) })
	o := forget(t, "cleanupnet", dir, everything())
	expect.NoError(t, os.Remove(o.Path("state/results/cleanupnet-c1-eth0")))
	o.wantCleanUp(cni.CleanUpTarget{ContainerID: "c1", Network: "cleanupnet", IfName: "eth0"},
		append(everythingOf("cleanupnet", "CNI-DN-304354b0d4b58098be47c", "bwp304354b0d4b5"),
			"address 10.77.0.3 in "+dir+"/cleanupnet", "address fd77::3 in "+dir+"/cleanupnet"))
	o.wantOther()
	for _, gone := range []string{"10.77.0.3", "fd77::3"} {
		expect.Same(t, gone+" is still held", expect.Exists(t, filepath.Join(dir, "cleanupnet", gone)), false)
	}
}

// TestCleanUpOfOneOfTwoAttachments: a running container loses one attachment.
// It keeps the others and their record.
func TestCleanUpOfOneOfTwoAttachments(t *testing.T) {
	h := newRealHost(t)
	second := testhost.Case{Plugins: []string{`{"type": "ptp", "ipMasq": true, ` + testhost.HostLocal(`[{"subnet": "10.78.0.0/24"}]`) + `}`}}
	r := h.Real(cni.WithConfListBytes(second.Conf("second", "1.0.0", h.Path("ipam"))),
		cni.WithConfListBytes(everythingConf("podnet", h.Path("ipam"))))
	path := h.Container("c1")
	testhost.MustSetUp(h.T, r, "c1", path, cni.WithNetwork("second"))
	before := h.Audit().Without(func(l string) bool { return strings.Contains(l, "/attachments/") })
	testhost.MustSetUp(h.T, r, "c1", path, cni.WithNetwork("podnet"), udpPort(8080))

	target := cni.CleanUpTarget{ContainerID: "c1", Network: "podnet", IfName: "eth1"}
	found := expect.Value(h.Runtime().CleanUp(context.Background(), target))(t)
	expect.Same(t, "it has found eth1", slices.Contains(found, "interface eth1 in the container"), true)
	h.WantClean(before)
	all := expect.Value(r.Attachments("c1"))(t)
	expect.Same(t, "on record", []any{len(all), all[0].Network, all[0].State}, []any{1, "second", cni.Attached})
	expect.NoError(t, r.Check(context.Background(), "c1", path, cni.WithNetwork("second")))
	expect.NoError(t, r.Remove(context.Background(), "c1", path))
	expect.Same(t, "on record after Remove", testhost.Recorded(t, r), []string{})
}

// TestCleanUpThatIsNotComplete: leftovers that cannot be removed are reported,
// the others are removed, and the record stays.
func TestCleanUpThatIsNotComplete(t *testing.T) {
	h := newRealHost(t)
	r := h.Real(cni.WithConfListBytes(everythingConf("podnet", h.Path("ipam"))))
	before := h.Audit()
	testhost.MustSetUp(h.T, r, "c1", h.Container("c1"), udpPort(8080))
	stuck := h.Path("ipam/podnet/10.77.0.2")
	if err := unix.Mount(stuck, stuck, "", unix.MS_BIND, ""); err != nil { // a mount point cannot be unlinked
		t.Fatal(err)
	}
	target := cni.CleanUpTarget{ContainerID: "c1", Network: "podnet", IfName: "eth0"}
	_, err := r.CleanUp(context.Background(), target)
	var left *cni.LeftoverError
	expect.That(t, errors.As(err, &left) && slices.Equal(left.Left, []string{"address 10.77.0.2 in " + h.Path("ipam/podnet")}) && left.ContainerID == "c1" && errors.Is(err, unix.EBUSY),
		"CleanUp: %v", err)
	expect.Same(t, "on record", len(testhost.Recorded(t, r)), 1)
	expect.NoError(t, unix.Unmount(stuck, 0))
	found := expect.Value(r.CleanUp(context.Background(), target))(t)
	expect.Same(t, "then found", found, []string{
		"address 10.77.0.2 in " + h.Path("ipam/podnet"),
		"attachment record in " + h.Path("state/embedcni/attachments"), "cached result in " + h.Path("state/results"),
	})
	h.WantClean(before)
	expect.Same(t, "on record in the end", testhost.Recorded(t, r), []string{})
}

func TestCleanUpValidatesBeforeAnything(t *testing.T) {
	h := newRealHost(t)
	before := h.Audit()
	good := cni.CleanUpTarget{ContainerID: "c1", Network: "podnet", IfName: "eth0"}
	for name, c := range map[string]struct {
		spoil func(*cni.CleanUpTarget)
		want  error
	}{
		"no id":          {func(t *cni.CleanUpTarget) { t.ContainerID = "" }, cni.ErrInvalidArgument},
		"id is a path":   {func(t *cni.CleanUpTarget) { t.ContainerID = "../c1" }, cni.ErrInvalidArgument},
		"no network":     {func(t *cni.CleanUpTarget) { t.Network = "" }, cni.ErrInvalidArgument},
		"net is a path":  {func(t *cni.CleanUpTarget) { t.Network = ".." }, cni.ErrInvalidArgument},
		"no interface":   {func(t *cni.CleanUpTarget) { t.IfName = "" }, cni.ErrInvalidArgument},
		"zero address":   {func(t *cni.CleanUpTarget) { t.Addresses = make([]netip.Addr, 1) }, cni.ErrInvalidArgument},
		"not JSON":       {func(t *cni.CleanUpTarget) { t.Config = []byte("{") }, cni.ErrInvalidConfig},
		"another's conf": {func(t *cni.CleanUpTarget) { t.Config = everythingConf("other", "") }, cni.ErrInvalidArgument},
	} {
		target := good
		c.spoil(&target)
		found, err := h.Runtime().CleanUp(context.Background(), target)
		expect.That(t, found == nil && errors.Is(err, c.want), "%s: found %q, %v, want %v", name, found, err, c.want)
	}
	added, removed := audit.Diff(before, h.Audit())
	expect.Unchanged(t, "host", added, removed)
	found := expect.Value(h.Runtime().CleanUp(context.Background(), good))(t) // it is not known
	expect.Same(t, "found", found, nil)
	h.WantClean(before)
}

func TestCleanUpWaitsForOtherCallsOfTheContainer(t *testing.T) {
	h := newRealHost(t)
	held := expect.Value(lock.Open(h.Path("state", "embedcni", "locks")).Lock(context.Background(), "container/c1"))(t)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	target := cni.CleanUpTarget{ContainerID: "c1", Network: "podnet", IfName: "eth0", DryRun: true}
	expect.Is(t, expect.Err(h.Runtime().CleanUp(ctx, target)), context.DeadlineExceeded)
	expect.NoError(t, held.Release())
	expect.NoError(t, errOf(h.Runtime().CleanUp(context.Background(), target)))
}

// withoutHashes removes from the lines the hashes of chains, comments and
// files, and the variant of iptables.
func (h *realHost) withoutHashes(lines []string) []string {
	hash := regexp.MustCompile(`\b(CNI-)?([0-9a-f]{16}-[0-9a-f]{16}|[0-9a-f]{24,})\b`)
	tool := regexp.MustCompile(`^(ip6?tables)-(nft|legacy)\b`)
	content := regexp.MustCompile(` sha256:\w+$`)
	var out []string
	for _, l := range h.Normalize(lines) {
		l = content.ReplaceAllString(tool.ReplaceAllString(l, "$1"), "")
		out = append(out, hash.ReplaceAllString(l, "${1}HASH"))
	}
	return out
}

// TestCleanUpWithAConfigurationInPlaceOfTheRecorded: a later version may accept
// a configuration that this one refuses. CleanUp then uses the caller's.
func TestCleanUpWithAConfigurationInPlaceOfTheRecorded(t *testing.T) {
	s, r := leasing(t, "c1")
	s.hold(map[string]string{"10.9.0.2": "c1\r\neth0", "10.9.0.3": "c2\r\neth0"})
	s.ChangeRecord("c1", func(rec *record.Record) { rec.Attachments[0].Config = []byte("{}") })
	target := cni.CleanUpTarget{ContainerID: "c1", Network: "net", IfName: "eth0"}
	expect.Is(t, errOf(r.CleanUp(t.Context(), target)), cni.ErrInvalidConfig)
	target.Config = fmt.Appendf(nil,
		`{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "x", "ipam": {"type": "host-local", "dataDir": %q}}]}`, s.Path("ipam"))
	found := expect.Value(r.CleanUp(t.Context(), target))(t)
	expect.Same(t, "found", found, []string{
		"address 10.9.0.2 in " + filepath.Join(s.Path("ipam"), "net"),
		"attachment record in " + s.Path("state", "embedcni", "attachments"),
		"cached result in " + s.Path("state", "results"),
	})
	expect.Same(t, "files", s.held(), []string{"10.9.0.3"})
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{})
}

// TestRemoveWaitsForNobodyWhoHoldsTheLockOfItsNetworksRules: a process was stopped while it
// made rules. The last container of the network waits, as its rules are to be deleted.
func TestRemoveWaitsForNobodyWhoHoldsTheLockOfItsNetworksRules(t *testing.T) {
	h := newRealHost(t)
	c := testhost.Case{Plugins: []string{testhost.BridgeConf(testhost.HostLocal(testhost.V4Range)), `{"type": "firewall"}`}}
	r := h.Runtime(cni.WithPluginDir(nil), cni.WithConfListBytes(c.Conf("net", "1.0.0", h.Path("ipam"))))
	before := h.Audit()
	paths := map[string]string{"c1": h.Container("c1"), "c2": h.Container("c2")}
	for id, path := range paths {
		testhost.MustSetUp(t, r, id, path)
	}
	unlock := expect.Value(iptables.LockNamespace(t.Context(), h.current(), true))(t)
	expect.Soon(t, "Remove", func() error { return r.Remove(t.Context(), "c1", paths["c1"]) })
	expect.NoError(t, unlock(), r.Remove(t.Context(), "c2", paths["c2"]))
	h.WantClean(before)
}
