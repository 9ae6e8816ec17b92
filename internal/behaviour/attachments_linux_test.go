package behaviour_test

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/internal/testhost"
)

// TestAttachmentsHaveTheParametersOfTheSetup: a restarted program needs no notes of
// its own to know the ports, arguments and pods of its containers.
func TestAttachmentsHaveTheParametersOfTheSetup(t *testing.T) {
	s, r, path := threeNetworks(t)
	port := cni.PortMapping{HostPort: 8080, ContainerPort: 80, Protocol: "tcp", HostIP: "192.0.2.1"}
	_, err := r.Setup(t.Context(), "c1", path,
		cni.WithArgs("K8S_POD_NAME", "web"), cni.WithLabels(map[string]string{"tier": "front"}),
		cni.WithMetadata(map[string]string{"pod": "web", "zone": "a"}),
		cni.WithCapabilityPortMap([]cni.PortMapping{port}),
		cni.WithNetwork("one", cni.WithMetadata(map[string]string{"zone": "b"})),
		cni.WithNetwork("two", cni.WithArgs("K8S_POD_NAME", "other")))
	expect.NoError(t, err)
	for _, c := range s.TakeCalls() {
		expect.Lacks(t, c.Verb+" of "+c.Type+": the caller's metadata", string(c.Stdin), "zone")
	}
	all := expect.Value(s.Runtime().Attachments())(t)
	args := map[string]string{"K8S_POD_NAME": "web", "tier": "front"}
	other := maps.Clone(args)
	other["K8S_POD_NAME"] = "other"
	for i, want := range []cni.Attachment{
		{Network: "one", Args: args, Metadata: map[string]string{"pod": "web", "zone": "b"}, Plugins: map[string]string{"p": "executable"}},
		{Network: "two", Args: other, Metadata: map[string]string{"pod": "web", "zone": "a"}, Plugins: map[string]string{"q": "executable"}},
	} {
		got := all[i]
		expect.Same(t, want.Network, cni.Attachment{Network: got.Network, Args: got.Args, Metadata: got.Metadata, Plugins: got.Plugins}, want)
		expect.Same(t, want.Network+": ports", got.Ports, []cni.PortMapping{port})
	}
	expect.Same(t, "number", len(all), 2)
}

// TestAnAttachmentHasOnlyItsOwnFailure: the failure of one network is not that of the
// others, which stay on record only because of it.
func TestAnAttachmentHasOnlyItsOwnFailure(t *testing.T) {
	s, r, path := threeNetworks(t)
	testhost.MustSetUp(t, r, "c1", path)
	s.TakeCalls()
	s.On("q", "DEL", testhost.Says(5, "stuck"))
	expect.Same(t, "errors", testhost.Messages(r.Remove(t.Context(), "c1", "")), []string{"q: stuck"})
	all := expect.Value(r.Attachments())(t)
	for _, a := range all {
		failed := a.Network == "two"
		expect.Same(t, "network "+a.Network, a.State, map[bool]cni.AttachmentState{true: cni.Failed, false: cni.Detaching}[failed])
		has := strings.Contains(a.LastError, "stuck")
		expect.That(t, has == failed && (a.Failures > 0) == failed && a.LastTry.IsZero() != failed,
			"network %s: %d failures, the last %v: %q", a.Network, a.Failures, a.LastTry, a.LastError)
	}
	expect.Same(t, "number", len(all), 3)

	// Who restarts after the failure, removes all of them, and not before the failed
	// one is due.
	restarted := s.Runtime()
	report := expect.Value(restarted.Recover(t.Context()))(t)
	expect.Same(t, "adopted", report.Adopted, nil)
	expect.Same(t, "failed", len(report.Failed), 1)
	s.On("q", "DEL", scripted.Action{})
	expect.NoError(t, restarted.Remove(t.Context(), "c1", ""))
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{})
}

// TestAttachmentsOfOneContainer: they are those of the list, whatever state the record is in.
func TestAttachmentsOfOneContainer(t *testing.T) {
	s, r, path := threeNetworks(t)
	testhost.MustSetUp(t, r, "c1", path)
	for _, id := range []string{"damaged", "newer"} {
		testhost.MustSetUp(t, r, id, s.Container(id))
	}
	s.TakeCalls()
	spoilBase(s.Host, "damaged", "{")
	spoilBase(s.Host, "newer", `{"format": 99, "containerId": "newer"}`)
	all := expect.Value(r.Attachments())(t)
	for id, n := range map[string]int{"c1": 3, "damaged": 1, "newer": 1, "none": 0} {
		of := expect.Value(r.Attachments(id))(t)
		want := slices.DeleteFunc(slices.Clone(all), func(a cni.Attachment) bool { return a.ContainerID != id })
		if n > 0 {
			expect.Same(t, id, of, want)
		}
		expect.Same(t, id, []int{len(of), len(want)}, []int{n, n})
	}
	expect.Is(t, errOf(r.Attachments("../c1")), cni.ErrInvalidArgument)
	for _, id := range []string{"damaged", "newer"} {
		expect.NoError(t, os.Remove(s.RecordFile(id)+".json"))
	}
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
	s.TakeCalls()
}

// TestAttachmentsAreInTheOrderOfIDs, whatever the order of their files.
func TestAttachmentsAreInTheOrderOfIDs(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(s.declaring("net", "p"))
	var got, want []string
	for i := range 12 {
		id := fmt.Sprintf("c%02d", (i*7)%12)
		expect.Value(r.Setup(t.Context(), id, s.Container(id)))(t)
		want = append(want, fmt.Sprintf("c%02d", i))
	}
	for _, a := range expect.Value(r.Attachments())(t) {
		got = append(got, a.ContainerID)
	}
	expect.Same(t, "IDs", got, want)
}

// metadataOf returns the metadata of a container's attachments, by interface.
func metadataOf(t *testing.T, r *cni.Runtime, id string) map[string]map[string]string {
	t.Helper()
	all := expect.Value(r.Attachments())(t)
	found := map[string]map[string]string{}
	for _, a := range all {
		if a.ContainerID == id {
			found[a.IfName] = a.Metadata
		}
	}
	return found
}

// TestSetMetadata: values of the caller's are on record until the container is removed,
// in each process, and only those of its own attachments change.
func TestSetMetadata(t *testing.T) {
	h := newRealHost(t)
	list := cni.WithConfListBytes(dualList(h))
	r := h.Runtime(cni.WithPluginDir(nil), list, cni.WithLoNetwork)
	other := h.Runtime(cni.WithPluginDir(nil), cni.WithOwner("other"), cni.WithInterfacePrefix("net"), list)
	before := h.Audit()
	path := h.Container("c1")
	testhost.MustSetUp(t, r, "c1", path, cni.WithMetadata(map[string]string{"pod": "p", "pid": ""}))
	testhost.MustSetUp(t, other, "c1", path, cni.WithMetadata(map[string]string{"pid": "other's"}))

	size := recordSize(h, "c1")
	for range 3 { // once is enough
		expect.NoError(t, r.SetMetadata(t.Context(), "c1", map[string]string{"pid": "7", "pidfd": "x"}))
	}
	grown := recordSize(h, "c1") - size
	expect.That(t, grown > 0 && grown <= 2048, "the record has grown by %d bytes", grown)
	want := map[string]string{"pod": "p", "pid": "7", "pidfd": "x"}
	others := map[string]string{"pid": "other's"}
	wantAll := map[string]map[string]string{"lo": want, "eth0": want, "net0": others}
	restarted := h.Runtime(cni.WithPluginDir(nil), list, cni.WithLoNetwork)
	expect.Same(t, "after a restart", metadataOf(t, restarted, "c1"), wantAll)

	for _, values := range []map[string]string{
		{"": "x"}, {"pod": strings.Repeat("x", 4096)}, {"a": strings.Repeat("x", 2048), "b": strings.Repeat("x", 2048)},
	} {
		expect.Is(t, errOf(r.Setup(t.Context(), "c2", path, cni.WithMetadata(values))), cni.ErrInvalidArgument)
		expect.Is(t, r.SetMetadata(t.Context(), "c1", values), cni.ErrInvalidArgument)
	}
	expect.Is(t, r.SetMetadata(t.Context(), "c1", map[string]string{"pod": strings.Repeat("x", 4090)}), cni.ErrInvalidArgument) // with the others
	expect.NoError(t, r.SetMetadata(t.Context(), "c1", nil))
	expect.Same(t, "after invalid values", metadataOf(t, r, "c1"), wantAll)

	third := h.Runtime(cni.WithPluginDir(nil), cni.WithOwner("third"), cni.WithInterfacePrefix("aux"), list)
	expect.Is(t, third.SetMetadata(t.Context(), "c1", want), cni.ErrNotAttached)
	expect.Value(third.Setup(t.Context(), "c1", path))(t) // it writes the record anew
	wantAll["aux0"] = nil
	expect.Same(t, "in a new record", metadataOf(t, r, "c1"), wantAll)
	changed := maps.Clone(want)
	changed["pid"] = "8"
	expect.NoError(t, restarted.SetMetadata(t.Context(), "c1", map[string]string{"pid": "8"}))
	expect.Same(t, "changed", metadataOf(t, r, "c1")["eth0"], changed)

	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
	expect.Is(t, r.SetMetadata(t.Context(), "c1", want), cni.ErrNotAttached)
	h.WantClean(before)
}

// TestSetMetadataOfADamagedRecord says so.
func TestSetMetadataOfADamagedRecord(t *testing.T) {
	h := newRealHost(t)
	r := h.Runtime(cni.WithPluginDir(nil), cni.WithConfListBytes(dualList(h)))
	testhost.MustSetUp(t, r, "c1", h.Container("c1"))
	spoilBase(h.Host, "c1", "{")
	expect.Is(t, r.SetMetadata(t.Context(), "c1", map[string]string{"pid": "7"}), record.ErrBad)
}

// dualList is a bridge with addresses of both families.
func dualList(h *realHost) []byte {
	return fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "net", "plugins": [
		{"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "ipMasq": true,
		 "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd00:77::/64"}]]}},
		{"type": "firewall"}]}`, h.Path("ipam"))
}

// whoHas returns the containers that have an address, as "c1/eth0".
func whoHas(t *testing.T, r *cni.Runtime, addr string) []string {
	t.Helper()
	all, err := r.LookupAddr(netip.MustParseAddr(addr))
	if all == nil {
		expect.Is(t, err, cni.ErrNotAttached)
		return nil
	}
	expect.NoError(t, err)
	var names []string
	for _, a := range all {
		names = append(names, a.ContainerID+"/"+a.IfName)
	}
	slices.Sort(names)
	return names
}

// TestLookupAddrFindsTheContainer, in another process too, whatever that has seen before.
func TestLookupAddrFindsTheContainer(t *testing.T) {
	h := newRealHost(t)
	opts := []cni.Opt{cni.WithPluginDir(nil), cni.WithLoNetwork, cni.WithConfListBytes(dualList(h))}
	r, other := h.Runtime(opts...), h.Runtime(append(opts, cni.WithOwner("other"))...)
	addrs := map[string]cni.Address{}
	for _, id := range []string{"c1", "c2"} {
		result := testhost.MustSetUp(t, r, id, h.Container(id))
		addrs[id] = result.IPv4()
		expect.Same(t, "IPv4", whoHas(t, other, result.IPv4().IP().String()), []string{id + "/eth1"})
		expect.Same(t, "IPv6", whoHas(t, other, result.IPv6().IP().String()), []string{id + "/eth1"})
		expect.Same(t, "mapped", whoHas(t, r, "::ffff:"+result.IPv4().IP().String()), []string{id + "/eth1"})
		expect.Same(t, "the host's", whoHas(t, other, result.IPv4().Gateway.String()), nil)
	}
	all := expect.Value(other.LookupAddr(addrs["c2"].IP()))(t)
	listed := expect.Value(other.Attachments())(t)
	i := slices.IndexFunc(listed, func(a cni.Attachment) bool { return a.ContainerID == "c2" && a.IfName == "eth1" })
	expect.Same(t, "attachment", all, listed[i:i+1])

	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
	expect.Same(t, "removed", whoHas(t, other, addrs["c1"].IP().String()), nil)
	for _, addr := range []string{"127.0.0.1", "::1", "0.0.0.0", "::", "224.0.0.1", "ff02::1"} {
		expect.Is(t, errOf(r.LookupAddr(netip.MustParseAddr(addr))), cni.ErrInvalidArgument)
	}
	expect.Is(t, errOf(r.LookupAddr(netip.Addr{})), cni.ErrInvalidArgument)

	h.ChangeRecord("c2", func(rec *record.Record) { rec.Boot = "another" })
	expect.Same(t, "of an earlier boot", whoHas(t, other, addrs["c2"].IP().String()), nil)
	expect.NoError(t, r.Remove(t.Context(), "c2", ""))
}

// TestLookupAddrOfADamagedRecord: the address may be in use.
func TestLookupAddrOfADamagedRecord(t *testing.T) {
	h := newRealHost(t)
	r := h.Runtime(cni.WithPluginDir(nil), cni.WithConfListBytes(dualList(h)))
	result := testhost.MustSetUp(t, r, "c1", h.Container("c1"))
	spoilBase(h.Host, "c1", "{")
	all := expect.Value(r.LookupAddr(result.IPv4().IP()))(t)
	expect.Same(t, "state", []any{len(all), all[0].ContainerID, all[0].State}, []any{1, "c1", cni.Unknown})
	expect.NoError(t, r.Remove(t.Context(), "c1", h.Path("netns", "c1")))
}

func recordSize(h *realHost, id string) int64 {
	h.T.Helper()
	return expect.Value(os.Stat(h.RecordFile(id) + ".json"))(h.T).Size()
}
