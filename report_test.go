package cni

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

func TestAReportIsEncodedWithItsErrors(t *testing.T) {
	r := Report{
		Adopted: []string{"a", "b"}, Removed: []string{"c"},
		Kept: map[string]error{"b": errors.New("CHECK failed")}, Failed: map[string]error{"e": errors.New("stuck"), "d": errors.New("busy")},
		Reclaimed: []string{"address 10.1.0.2"}, Left: []string{"a file"},
	}
	data := expect.Value(json.Marshal(&r))(t)
	expect.Same(t, "JSON", string(data), `{"Adopted":["a","b"],"Removed":["c"],"Reclaimed":["address 10.1.0.2"],"Left":["a file"],`+
		`"Kept":{"b":"CHECK failed"},"Failed":{"d":"busy","e":"stuck"},"Skipped":null}`)
	expect.Same(t, "text", r.String(), `a: adopted
b: adopted, not known to be healthy: CHECK failed
c: removed
d: failed: busy
e: failed: stuck
reclaimed: address 10.1.0.2
left: a file`)
	expect.Same(t, "empty", Report{}.String(), "")
}

func TestTheErrorOfAReport(t *testing.T) {
	expect.NoError(t, (*Report)(nil).Err(), new(Report).Err(), (&Report{Kept: map[string]error{"a": errors.New("CHECK failed")}}).Err())
	r := &Report{Failed: map[string]error{"e": errors.New("stuck"), "d": errors.New("busy")}}
	expect.Same(t, "failures", r.Err().Error(), "container d: busy\ncontainer e: stuck")
}

func TestAVerdictPrintsAndEncodesWell(t *testing.T) {
	missing := Difference{
		Network: "net", IfName: "eth0", Plugin: "bridge", Kind: "address", Object: "10.1.0.1/24 on cni0",
		Repairable: true, Err: errors.New("no address"),
	}
	differs := Difference{
		Network: "net", IfName: "eth0", Plugin: "bridge", Kind: "interface", Inside: true, Object: "eth0",
		Wanted: "up", Found: "down", Why: "it differs", Err: errors.New("it is down"),
	}
	failed := Difference{Network: "net", IfName: "eth0", Plugin: "x", Kind: "check", Err: errors.New("no (code 5)"), Why: "ask it"}
	report := &HealthReport{
		Containers: []Health{
			{ContainerID: "a", State: StateHealthy, Uncompared: []string{"x", "y"}},
			{ContainerID: "b", State: StateBroken, Differences: []Difference{missing, differs, failed}, Reason: ErrBusy},
			{ContainerID: "c", State: StateUnknown, Reason: errors.New("killed")},
			{ContainerID: "d", State: StateNotAttached},
		},
		Checks: HealthChecks{Asked: 4, Failed: 1, Unanswered: 1, NotAsked: 2},
	}
	expect.Same(t, "text", report.String(), `a: healthy; not compared: x, y
b: broken: another call for the container is under way
  network "net", interface eth0, plugin bridge: address 10.1.0.1/24 on cni0 is missing
  network "net", interface eth0, plugin bridge: interface eth0 in the container is down, not up (not repairable: it differs)
  network "net", interface eth0, plugin x: check: no (code 5) (not repairable: ask it)
c: unknown: killed
d: not attached
CHECK: 4 asked, 1 failed, 1 gave no answer; 2 attachments not asked`)
	data := expect.Value(json.Marshal(report.Containers[1]))(t)
	expect.Same(t, "JSON", string(data), `{"ContainerID":"b","State":"broken","Differences":[`+
		`{"Network":"net","IfName":"eth0","Plugin":"bridge","Kind":"address","Inside":false,"Object":"10.1.0.1/24 on cni0","Wanted":"","Found":"","Repairable":true,"Why":"","Err":"no address"},`+
		`{"Network":"net","IfName":"eth0","Plugin":"bridge","Kind":"interface","Inside":true,"Object":"eth0","Wanted":"up","Found":"down","Repairable":false,"Why":"it differs","Err":"it is down"},`+
		`{"Network":"net","IfName":"eth0","Plugin":"x","Kind":"check","Inside":false,"Object":"","Wanted":"","Found":"","Repairable":false,"Why":"ask it","Err":"no (code 5)"}],`+
		`"Uncompared":null,"Reason":"another call for the container is under way"}`)
	expect.Same(t, "no error", report.Containers[0].Err(), nil)
	expect.Is(t, report.Containers[1].Err(), missing.Err, differs.Err, failed.Err, ErrBusy)
	expect.Is(t, report.Containers[3].Err(), ErrNotAttached)
	_, ok := report.Of("e")
	expect.Same(t, "unknown container", ok, false)
}
