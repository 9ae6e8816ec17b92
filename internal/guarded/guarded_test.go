package guarded

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/guard"
	"github.com/embedcni/cni/internal/record"
)

func TestScopeIncludesContainersThatSomebodyHas(t *testing.T) {
	scope := Scope{Owner: "me", Boot: "b", Host: "4-1"}
	whole := record.Record{ContainerID: "c", Owner: "me", Boot: "b", Host: "4-1"}
	for name, tt := range map[string]struct {
		change func(*record.Record)
		want   bool
	}{
		"in scope":          {func(*record.Record) {}, true},
		"of a pool":         {func(r *record.Record) { r.Warm = true }, false},
		"of another boot":   {func(r *record.Record) { r.Boot = "a" }, false},
		"of another host":   {func(r *record.Record) { r.Host = "4-2" }, false},
		"of no known host":  {func(r *record.Record) { r.Host = "" }, false},
		"of somebody else":  {func(r *record.Record) { r.Owner = "you" }, false},
		"of both":           {func(r *record.Record) { r.Attachments = []record.Attachment{{Owner: "you"}, {}} }, true},
		"of both, mine now": {func(r *record.Record) { r.Attachments = []record.Attachment{{Owner: "you"}, {State: record.Deleted}} }, false},
	} {
		rec := whole
		tt.change(&rec)
		expect.Same(t, name, scope.Includes(&rec), tt.want)
	}
}

func TestClassOf(t *testing.T) {
	for want, kinds := range map[guard.Class][]compare.Kind{
		guard.Rules:  {compare.Rule, compare.Port, compare.Zone},
		guard.Links:  {compare.Interface, compare.Address, compare.Bridge, compare.BridgePort, compare.Queue, compare.Sysctl},
		guard.Routes: {compare.Route},
		0:            {compare.Reservation},
	} {
		for _, kind := range kinds {
			expect.Same(t, string(kind), ClassOf(compare.Difference{Kind: kind}), want)
			expect.Same(t, string(kind)+" in the container", ClassOf(compare.Difference{Kind: kind, Inside: true}), 0)
		}
	}
}

// result is that of an ADD whose interface on the host is veth1, and whose container has
// an address.
const result = `{"cniVersion": "1.0.0", "interfaces": [{"name": "veth1"}, {"name": "eth0", "sandbox": "/n"}],
	"ips": [{"address": "10.1.0.2/24", "interface": 1}]}`

func attached(id record.ID) *record.Record {
	return &record.Record{ContainerID: id, Owner: "me", Boot: "b", Host: "4-1", Attachments: []record.Attachment{
		{Network: "net", IfName: "eth0", State: record.Added, Result: json.RawMessage(result)},
	}}
}

func TestSignsOfAnAttachment(t *testing.T) {
	got, ok := signsOf(attached("c"), "me")
	expect.Same(t, "guarded", ok, true)
	expect.Same(t, "signs", got, []guard.Sign{guard.OfAddress(netip.MustParseAddr("10.1.0.2")), guard.OfLink("veth1")})
}

func TestNoSignsOfWhatIsNotToBeWhole(t *testing.T) {
	for name, change := range map[string]func(*record.Record){
		"being attached":   func(r *record.Record) { r.Attachments[0].State = record.Planned },
		"with one that is": func(r *record.Record) { r.Attachments = append(r.Attachments, record.Attachment{IfName: "eth1"}) },
		"being detached":   func(r *record.Record) { r.Attachments[0].State = record.Deleting },
		"not removed":      func(r *record.Record) { r.Attachments[0].Failures = 1 },
		"somebody else's":  func(r *record.Record) { r.Attachments[0].Owner = "you" },
	} {
		rec := attached("c")
		change(rec)
		signs, ok := signsOf(rec, "me")
		expect.Same(t, name, signs, nil)
		expect.Same(t, name+": guarded", ok, false)
	}
}

// TestSignsWithoutAResult: an ADD need not report anything.
func TestSignsWithoutAResult(t *testing.T) {
	rec := attached("c")
	rec.Attachments[0].Result = nil
	signs, ok := signsOf(rec, "me")
	expect.Same(t, "signs", signs, nil)
	expect.Same(t, "guarded", ok, true)
}
