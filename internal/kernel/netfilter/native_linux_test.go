package netfilter

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/nft"
)

func nativeTable() nft.Table { return nft.Table{Family: nft.FamilyInet, Name: "embedcni"} }

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// wanted are rules of every kind for one attachment.
func wanted(id, v4, v6 string, port uint16) testRules {
	o := Owner{Network: "podnet", ContainerID: id, IfName: "eth0"}
	return testRules{
		Masquerade: []testMasquerade{{Owner: o, Addresses: []netip.Prefix{prefix(v4), prefix(v6)}}},
		HostPorts: []testPorts{{Owner: o, V4: prefix(v4), V6: prefix(v6), SNAT: true, Ports: []HostPort{
			{HostPort: port, ContainerPort: 80, Protocol: "tcp"},
			{HostPort: port, ContainerPort: 53, Protocol: "udp", HostIP: netip.MustParseAddr("127.0.0.1")},
			{HostPort: port, ContainerPort: 54, Protocol: "sctp", HostIP: netip.MustParseAddr("fd00:99::1")},
			{HostPort: port, ContainerPort: 55, Protocol: "udp", HostIP: netip.MustParseAddr("::")},
		}}},
	}
}

func (h *host) mustWrite(r testRules) {
	h.t.Helper()
	expect.NoError(h.t, h.fw.Add(h.t.Context(), r.rules()...))
}

func (h *host) mustRemove(r testRules) {
	h.t.Helper()
	expect.NoError(h.t, h.fw.Remove(h.t.Context(), r.rules()...))
}

// TestNativeTable compares the table in nft's syntax. nft can also read its own
// listing.
func TestNativeTable(t *testing.T) {
	h := newHost(t, "nft")
	before := h.filters()
	r := wanted("c1", "10.1.0.2/24", "fd00:1::2/65", 8080)
	r.Forward = []testForward{{Owner: r.Masquerade[0].Owner, Ingress: "isolated", Bridge: "br1"}}
	h.mustWrite(r)
	const owner = ` comment "` + nftC1 + `"`
	want := []string{
		`containers4 10.1.0.2` + owner,
		`containers6 fd00:1::2` + owner,
		`subnets4_24 10.1.0.2 . 10.1.0.0` + owner,
		`subnets6_65 fd00:1::2 . fd00:1::` + owner,
		`hairpin4_24 10.1.0.2 . 10.1.0.0` + owner,
		`hairpin4_8 10.1.0.2 . 127.0.0.0` + owner,
		`hairpin6_65 fd00:1::2 . fd00:1::` + owner,
		`hostports4 tcp . 8080` + owner + ` : 10.1.0.2 . 80`,
		`hostports6 tcp . 8080` + owner + ` : fd00:1::2 . 80`,
		`hostports6 udp . 8080` + owner + ` : fd00:1::2 . 55`,
		`hostips4 udp . 127.0.0.1 . 8080` + owner + ` : 10.1.0.2 . 53`,
		`hostips6 sctp . fd00:99::1 . 8080` + owner + ` : fd00:1::2 . 54`,
	}
	for i := range want {
		want[i] = "nft element inet embedcni " + want[i]
	}
	slices.Sort(want)
	made := minus(h.filters(), before)
	expect.Same(t, "elements", made.Without(audit.Shared), want)
	shared := strings.Join(minus(made, made.Without(audit.Shared)), "\n")
	for _, line := range []string{
		`nft element inet embedcni bridges "br1"`,
		`nft element inet embedcni isolated "br1" . "br1"`,
		`nft rule inet embedcni subnets ip saddr . ip daddr & 255.255.255.0 @subnets4_24 accept comment "subnets4_24"`,
		`nft rule inet embedcni subnets ip6 saddr . ip6 daddr & ffff:ffff:ffff:ffff:8000:: @subnets6_65 accept comment "subnets6_65"`,
		`nft rule inet embedcni hairpin ip daddr . ip saddr & 255.0.0.0 @hairpin4_8 masquerade comment "hairpin4_8"`,
		`nft rule inet embedcni postrouting ct status dnat jump hairpin comment "hairpin"`,
		`nft rule inet embedcni containers masquerade comment "masquerade"`,
	} {
		expect.That(t, strings.Contains(shared+"\n", line+"\n"), "the shared lines lack %s:\n%s", line, shared)
	}
	full := h.filters()
	h.feed(h.dumpTables([]nft.Table{nativeTable()}), "nft", "-f", "-")
	h.wantFilters(full)
	expect.NoError(t, h.fw.Check(t.Context(), r))
	h.mustWrite(r) // again
	h.wantFilters(full)
	h.mustRemove(r)
	h.mustRemove(r)
	expect.Empty(t, "left", h.filters().Without(audit.Shared))
}

// TestNativeCheckFindsEachDamage: each element, each fixed rule, each chain and
// set whose loss matters.
func TestNativeCheckFindsEachDamage(t *testing.T) {
	h := newHost(t, "nft")
	r := wanted("c1", "10.1.0.2/24", "fd00:1::2/65", 8080)
	r.Forward = []testForward{{Owner: r.Masquerade[0].Owner, Ingress: "same-bridge", Bridge: "br1"}}
	h.mustWrite(r)
	var damages []string
	element := regexp.MustCompile(`^nft element inet embedcni (\S+) (.*?)( comment ".*?")?( : .*)?$`)
	for _, line := range h.filters() {
		e := element.FindStringSubmatch(line)
		if e == nil {
			continue
		}
		set, key, comment, value := e[1], e[2], e[3], e[4]
		bare := " element inet embedcni " + set + " { " + key
		damages = append(damages, "delete"+bare+" }")
		if comment != "" {
			damages = append(damages, "delete"+bare+" }\nadd"+bare+` comment "another"`+value+" }")
		}
		if value != "" {
			other := " : 10.1.0.9 . 80"
			if strings.HasSuffix(set, "6") {
				other = " : fd00:1::9 . 80"
			}
			damages = append(damages, "delete"+bare+" }\nadd"+bare+comment+other+" }")
		}
	}
	for _, rule := range h.rulesOf(nativeTable()) {
		damages = append(damages, fmt.Sprintf("delete rule inet embedcni %s handle %d", rule.Chain, rule.Handle))
	}
	damages = append(damages, "flush table inet embedcni", "delete table inet embedcni")
	expect.That(t, len(damages) >= 50, "only %q", damages)
	for _, damage := range damages {
		err := h.fw.Check(t.Context(), r)
		expect.Must(t, err == nil, "undamaged: %v", err)
		h.feed(damage+"\n", "nft", "-f", "-")
		err = h.fw.Check(t.Context(), r)
		expect.That(t, err != nil && strings.HasPrefix(err.Error(), "nftables: "), "%s: %v", damage, err)
		// Handles belong to this table, so missing parts are made in it.
		h.mustRemove(r)
		h.sh("nft delete element inet embedcni containers4 '{ 10.1.0.2 }' 2>/dev/null || true; nft delete table inet embedcni 2>/dev/null || true")
		h.mustWrite(r)
	}
}

// TestNativeSparesNeighbours: an element of a neighbour, another network or
// another port is not touched.
func TestNativeSparesNeighbours(t *testing.T) {
	h := newHost(t, "nft")
	var neighbours []testRules
	for i, id := range []string{"c", "c11", "C1"} {
		neighbours = append(neighbours, wanted(id, fmt.Sprintf("10.1.0.%d/24", 10+i), fmt.Sprintf("fd00:1::%x/64", 10+i), uint16(1000+i)))
	}
	elsewhere := wanted("c1", "10.2.0.2/16", "fd00:2::2/64", 2000)
	elsewhere.Masquerade[0].Network, elsewhere.HostPorts[0].Network = "podnet2", "podnet2"
	second := wanted("c1", "10.1.0.3/24", "fd00:1::3/64", 3000)
	second.Masquerade[0].IfName, second.HostPorts[0].IfName = "eth1", "eth1"
	for _, r := range append(neighbours, elsewhere, second) {
		h.mustWrite(r)
	}
	before := h.filters()
	r := wanted("c1", "10.1.0.2/24", "fd00:1::2/64", 8080)
	unknown := testRules{
		Masquerade: []testMasquerade{{Owner: r.Masquerade[0].Owner}},
		HostPorts:  []testPorts{{Owner: r.HostPorts[0].Owner}},
	}
	onlyPorts := testRules{Masquerade: unknown.Masquerade, HostPorts: []testPorts{{Owner: r.HostPorts[0].Owner, Ports: r.HostPorts[0].Ports}}}
	for name, removed := range map[string]testRules{"all is known": r, "nothing is known": unknown, "the ports are known": onlyPorts} {
		h.mustWrite(r)
		h.mustRemove(removed)
		left, gone := audit.Diff(before, h.filters())
		expect.Unchanged(t, name, left, gone)
	}
}

// TestNativeAddressGivenAgain: the elements of the address's new attachment
// replace the stale ones. The old attachment's late DEL leaves them alone.
func TestNativeAddressGivenAgain(t *testing.T) {
	h := newHost(t, "nft")
	old, young := wanted("old", "10.1.0.2/24", "fd00:1::2/64", 1000), wanted("young", "10.1.0.2/24", "fd00:1::2/64", 2000)
	h.mustWrite(old)
	h.mustWrite(young)
	expect.NoError(t, h.fw.Check(t.Context(), young))
	expect.Fails(t, "the old attachment is said to be complete", h.fw.Check(t.Context(), old))
	h.mustRemove(old)
	expect.NoError(t, h.fw.Check(t.Context(), young))
	for _, line := range h.filters().Without(audit.Shared) {
		expect.That(t, strings.Contains(line, "id: young"), "left: %s", line)
	}
}

// TestNativePortTaken: a port belongs to the first container. The error names
// it, and nothing of the second attachment is made.
func TestNativePortTaken(t *testing.T) {
	h := newHost(t, "nft")
	first, second := wanted("first", "10.1.0.2/24", "fd00:1::2/64", 8080), wanted("second", "10.1.0.3/24", "fd00:1::3/64", 8080)
	h.mustWrite(first)
	before := h.filters()
	err := h.fw.Add(t.Context(), second.rules()...)
	want := `the host port is taken: there is element inet embedcni hostips4 { udp . 127.0.0.1 . 8080 comment "` +
		Owner{Network: "podnet", ContainerID: "first", IfName: "eth0"}.Comment() + `" : 10.1.0.2 . 53 }`
	expect.That(t, errors.Is(err, ErrHostPortTaken) && err.Error() == want, "got %v, want %s", err, want)
	h.wantFilters(before)
	expect.NoError(t, h.fw.Remove(t.Context(), second.rules()...))
	h.wantFilters(before)
	// Of one address and of all are two ports, as they are for the plugins.
	second.HostPorts[0].Ports = []HostPort{{HostIP: netip.MustParseAddr("192.0.2.1"), HostPort: 8080, ContainerPort: 80, Protocol: "tcp"}}
	h.mustWrite(second)
	// Twice in one request it is refused, too.
	third := wanted("third", "10.1.0.4/24", "fd00:1::4/64", 9000)
	third.HostPorts[0].Ports = []HostPort{{HostPort: 1, ContainerPort: 80, Protocol: "tcp"}, {HostPort: 1, ContainerPort: 81, Protocol: "tcp"}}
	expect.Is(t, h.fw.Add(t.Context(), third.rules()...), ErrHostPortTaken)
}

// TestNativeOwnElementsAreReplaced: the container of the same name restarts
// with other ports.
func TestNativeOwnElementsAreReplaced(t *testing.T) {
	h := newHost(t, "nft")
	h.mustWrite(wanted("c1", "10.1.0.2/24", "fd00:1::2/64", 8080))
	r := wanted("c1", "10.1.0.9/24", "fd00:1::9/64", 8080)
	h.mustWrite(r)
	expect.NoError(t, h.fw.Check(t.Context(), r))
}

func TestNativeRefusesUnsupportedRules(t *testing.T) {
	h := newHost(t, "nft")
	before := h.filters()
	forward := func(f testForward) func(*testRules) {
		return func(r *testRules) { f.Owner = r.Masquerade[0].Owner; r.Forward = []testForward{f} }
	}
	for field, change := range map[string]func(*testRules){
		"conditions":     func(r *testRules) { r.HostPorts[0].Conditional = true },
		"ingressPolicy":  forward(testForward{Ingress: "shut"}),
		"interface name": forward(testForward{Ingress: "isolated", Bridge: "averyveryverylongname"}),
		"protocol":       func(r *testRules) { r.HostPorts[0].Ports[0].Protocol = "icmp" },
		"host port 0":    func(r *testRules) { r.HostPorts[0].Ports[0].HostPort = 0 },
		"container ID":   func(r *testRules) { r.Masquerade[0].ContainerID = "" },
		"not valid":      func(r *testRules) { r.Masquerade[0].Addresses[0] = netip.Prefix{} },
	} {
		r := wanted("c1", "10.1.0.2/24", "fd00:1::2/64", 8080)
		change(&r)
		expect.Says(t, "ADD", h.fw.Add(t.Context(), r.rules()...), field)
		expect.Succeeds(t, field+": remove", h.fw.Remove(t.Context(), r.rules()...))
	}
	h.wantFilters(before)
}

// TestNativePrefixes: no mask, a full mask, and addresses in another form.
func TestNativePrefixes(t *testing.T) {
	h := newHost(t, "nft")
	for _, addrs := range [][2]string{{"10.1.0.2/32", "fd00:1::2/128"}, {"10.1.0.2/0", "fd00:1::2/0"}, {"::ffff:10.1.0.2/120", "fd00:1::2/1"}} {
		r := wanted("c1", addrs[0], addrs[1], 8080)
		h.mustWrite(r)
		err := h.fw.Check(t.Context(), r)
		expect.That(t, err == nil, "%q: %v", addrs, err)
		state := h.filters()
		h.feed(h.dumpTables([]nft.Table{nativeTable()}), "nft", "-f", "-")
		h.wantFilters(state)
		h.mustRemove(r)
		left := h.filters().Without(audit.Shared)
		expect.That(t, len(left) == 0, "%q: left %q", addrs, left)
	}
}

// TestNativeRefusalNamesTheElement: a refusal by the kernel is reported with
// its element.
func TestNativeRefusalNamesTheElement(t *testing.T) {
	h := newHost(t, "nft")
	h.sh("nft 'add table inet embedcni; add set inet embedcni containers4 { type ipv6_addr; }; add map inet embedcni hostports4 { type ipv6_addr : ipv6_addr; }'")
	err := h.fw.Add(t.Context(), wanted("c1", "10.1.0.2/24", "fd00:1::2/64", 8080).rules()...)
	want := `nftables: element inet embedcni containers4 { 10.1.0.2 comment "` + nftC1 + `" }: invalid argument`
	expect.That(t, errors.Is(err, unix.EINVAL) && err.Error() == want, "got %v, want %s", err, want)
}

// TestNativeWithoutPrivilege: without the capability the error names it.
func TestNativeWithoutPrivilege(t *testing.T) {
	h := newHost(t, "nft")
	err := h.ns.Do(func() error {
		caps := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData // of a thread that ends, because it cannot return
		if err := unix.Capset(&caps, &data[0]); err != nil {
			return err
		}
		return Open(nil, Options{}).Add(t.Context(), wanted("c1", "10.1.0.2/24", "fd00:1::2/64", 8080).rules()...)
	})
	expect.Is(t, err, unix.EPERM)
}

// TestNativeManyPorts: a transaction larger than the socket's usual buffer.
func TestNativeManyPorts(t *testing.T) {
	h := newHost(t, "nft")
	r := wanted("c1", "10.1.0.2/24", "fd00:1::2/64", 8080)
	for i := range 700 {
		r.HostPorts[0].Ports = append(r.HostPorts[0].Ports, HostPort{HostPort: uint16(20000 + i), ContainerPort: 1, Protocol: "tcp", HostIP: netip.IPv4Unspecified()})
	}
	h.mustWrite(r)
	expect.NoError(t, h.fw.Check(t.Context(), r))
	h.mustRemove(r)
	left := h.filters().Without(audit.Shared)
	expect.That(t, len(left) == 0, "left %d lines", len(left))
}

// TestNativeAddRepairs: somebody has emptied the chains, and the next
// container's ADD makes them again.
func TestNativeAddRepairs(t *testing.T) {
	h := newHost(t, "nft")
	h.mustWrite(wanted("c1", "10.1.0.2/24", "fd00:1::2/64", 8080))
	full := h.filters()
	out, err := exec.Command("nft", "flush", "table", "inet", "embedcni").CombinedOutput()
	expect.Must(t, err == nil, "%v: %s", err, out)
	// Any reason to look is one to repair.
	h.mustWrite(wanted("c1", "10.1.0.2/24", "fd00:1::2/64", 8080))
	h.wantFilters(full)
}

// nativeTarget returns the runtime's description of the attachment of [wanted].
func nativeTarget() Target {
	t := Target{Owner: Owner{Network: "podnet", ContainerID: "c1", IfName: "eth0"}, Addresses: addrs("10.1.0.2", "fd00:1::2")}
	t.Ports = wanted("c1", "10.1.0.2/24", "fd00:1::2/64", 8080).HostPorts[0].Ports
	return t
}

// TestSweepOfNative: the dry run has a line for each element, and the sweep
// removes exactly those, whether it finds them by key or by listing.
func TestSweepOfNative(t *testing.T) {
	for name, change := range map[string]func(*Target){
		"known":             func(*Target) {},
		"addresses unknown": func(t *Target) { t.Addresses, t.Ports = nil, nil },
		"ports unknown":     func(t *Target) { t.Ports, t.Thorough = nil, true },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, "nft")
			other := wanted("c2", "10.1.0.3/16", "fd00:1::3/64", 1000)
			other.Forward = []testForward{{Owner: other.Masquerade[0].Owner, Ingress: "same-bridge", Bridge: "br2"}}
			h.mustWrite(other)
			before := h.filters()
			h.mustWrite(wanted("c1", "10.1.0.2/24", "fd00:1::2/64", 8080))
			target := nativeTarget()
			change(&target)
			got := h.sweep(target).String()
			want := `nft delete element inet embedcni containers4 { 10.1.0.2 } # OWNER
nft delete element inet embedcni containers6 { fd00:1::2 } # OWNER
nft delete element inet embedcni hairpin4_24 { 10.1.0.2 . 10.1.0.0 } # OWNER
nft delete element inet embedcni hairpin4_8 { 10.1.0.2 . 127.0.0.0 } # OWNER
nft delete element inet embedcni hairpin6_64 { fd00:1::2 . fd00:1:: } # OWNER
nft delete element inet embedcni hostips4 { udp . 127.0.0.1 . 8080 } # OWNER
nft delete element inet embedcni hostips6 { sctp . fd00:99::1 . 8080 } # OWNER
nft delete element inet embedcni hostports4 { tcp . 8080 } # OWNER
nft delete element inet embedcni hostports6 { tcp . 8080 } # OWNER
nft delete element inet embedcni hostports6 { udp . 8080 } # OWNER
nft delete element inet embedcni subnets4_24 { 10.1.0.2 . 10.1.0.0 } # OWNER
nft delete element inet embedcni subnets6_64 { fd00:1::2 . fd00:1:: } # OWNER
`
			want = strings.ReplaceAll(want, "OWNER", fmt.Sprintf("%q", nftC1))
			expect.That(t, got == want, "got\n%s\nwant\n%s", got, want)
			h.wantFiltersAndShared(before)
		})
	}
}

// wantFiltersAndShared is like wantFilters, but allows sets and their rules
// that stay for the next container.
func (h *host) wantFiltersAndShared(want audit.Lines) {
	h.t.Helper()
	left, gone := audit.Diff(want, h.filters())
	expect.Unchanged(h.t, "left behind", audit.Lines(left).Without(audit.Shared), gone)
}
