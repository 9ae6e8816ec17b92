package watch

import (
	"errors"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
)

func TestCompareRecords(t *testing.T) {
	key := func(id string) attachmentKey { return attachmentKey{id, "net", "eth0", "me"} }
	of := func(id string, state cni.AttachmentState) cni.Attachment {
		return cni.Attachment{ContainerID: id, Network: "net", IfName: "eth0", Owner: "me", State: state}
	}
	failed := of("c", cni.Failed)
	failed.LastError = "one\ntwo"
	before := map[attachmentKey]cni.Attachment{key("a"): of("a", cni.Attaching), key("b"): of("b", cni.Attached), key("c"): of("c", cni.Attached), key("d"): of("d", cni.Attached)}
	after := map[attachmentKey]cni.Attachment{key("a"): of("a", cni.Attached), key("c"): failed, key("d"): of("d", cni.Attached), key("e"): of("e", cni.Attaching)}
	event := func(kind Kind, id, detail string) Event {
		return Event{Event: kind, ContainerID: id, Network: "net", IfName: "eth0", Owner: "me", Detail: detail}
	}
	expect.Same(t, "events", compareRecords(before, after), []Event{
		event(Removed, "b", ""), event(Attached, "a", ""), event(Failed, "c", "one; two"), event(Attaching, "e", ""),
	})
	expect.Empty(t, "events of nothing", compareRecords(after, after))
}

func TestCompareVerdicts(t *testing.T) {
	port := cni.Difference{Network: "net", IfName: "eth0", Plugin: "bridge", Kind: "bridge port", Object: "veth1"}
	mtu := cni.Difference{Network: "net", IfName: "eth0", Plugin: "bridge", Kind: "interface", Object: "eth0", Inside: true, Wanted: "up", Found: "down"}
	verdict := func(state cni.HealthState, reason error, parts ...cni.Difference) verdict {
		return verdictOf(cni.Health{ContainerID: "a", State: state, Reason: reason, Differences: parts})
	}
	event := func(kind Kind, detail string) Event {
		return Event{Event: kind, ContainerID: "a", Network: "net", IfName: "eth0", Detail: detail}
	}
	healthy, unknown := verdict(cni.StateHealthy, nil), verdict(cni.StateUnknown, errors.New("one\ntwo"))
	broken := verdict(cni.StateBroken, nil, port)
	nothing := verdictOf(cni.Health{})
	for _, c := range []struct {
		what          string
		before, after verdictType
		want          []Event
	}{
		{"new and healthy", nothing, healthy, nil},
		{"new and broken", nothing, broken, []Event{event(Lost, "bridge port veth1 is missing")}},
		{"another part", broken, verdict(cni.StateBroken, nil, mtu), []Event{event(Back, "bridge port veth1"), event(Lost, "interface eth0 in the container is down, not up")}},
		{"well again", broken, healthy, []Event{event(Back, "bridge port veth1"), {Event: Healthy, ContainerID: "a"}}},
		{"not known", broken, unknown, []Event{{Event: Unknown, ContainerID: "a", Detail: "one; two"}}},
		{"the same", unknown, unknown, nil},
		{"known again", unknown, healthy, []Event{{Event: Healthy, ContainerID: "a"}}},
		{"gone", healthy, verdict(cni.StateGone, errors.New("why")), []Event{{Event: Gone, ContainerID: "a", Detail: "why"}}},
	} {
		expect.Same(t, c.what, compareVerdicts("a", c.before, c.after), c.want)
	}
}

// verdictType is a verdict; the test has a function of that name.
type verdictType = verdict
