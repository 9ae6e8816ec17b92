package cni

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/outcome"
)

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
	all := []Health{
		{ContainerID: "a", State: StateHealthy, Uncompared: []string{"x", "y"}},
		{ContainerID: "b", State: StateBroken, Differences: []Difference{missing, differs, failed}, Reason: ErrBusy},
		{ContainerID: "c", State: StateUnknown, Reason: errors.New("killed")},
		{ContainerID: "d", State: StateNotAttached},
	}
	var lines []string
	for _, h := range all {
		lines = append(lines, h.String())
	}
	expect.Same(t, "text", strings.Join(lines, "\n"), `a: healthy; not compared: x, y
b: broken: another call for the container is under way
  network "net", interface eth0, plugin bridge: address 10.1.0.1/24 on cni0 is missing
  network "net", interface eth0, plugin bridge: interface eth0 in the container is down, not up (not repairable: it differs)
  network "net", interface eth0, plugin x: check: no (code 5) (not repairable: ask it)
c: unknown: killed
d: not attached`)
	missing.Repaired, differs.Repaired = true, true
	repaired := RepairReport{ContainerID: "b", Repaired: []Difference{missing, differs}, Remaining: []outcome.Remaining{{Difference: failed, Reason: ErrNotRepairable}}}
	expect.Same(t, "text of a repair", repaired.String(), `b: made again: network "net", interface eth0, plugin bridge: address 10.1.0.1/24 on cni0 was missing
b: made again: network "net", interface eth0, plugin bridge: interface eth0 in the container was down, not up
b: remains: network "net", interface eth0, plugin x: check: no (code 5): not repairable`)
	expect.Same(t, "text of a Recover", Report{Adopted: []string{"b"}, Repaired: map[string][]Difference{"b": {missing}}}.String(),
		`b: adopted
b: made again: network "net", interface eth0, plugin bridge: address 10.1.0.1/24 on cni0 was missing`)
	data := expect.Value(json.Marshal(all[1]))(t)
	expect.Same(t, "JSON", string(data), `{"ContainerID":"b","State":"broken","Differences":[`+
		`{"Network":"net","IfName":"eth0","Plugin":"bridge","Kind":"address","Inside":false,"Object":"10.1.0.1/24 on cni0","Wanted":"","Found":"","Repairable":true,"Why":"","Err":"no address"},`+
		`{"Network":"net","IfName":"eth0","Plugin":"bridge","Kind":"interface","Inside":true,"Object":"eth0","Wanted":"up","Found":"down","Repairable":false,"Why":"it differs","Err":"it is down"},`+
		`{"Network":"net","IfName":"eth0","Plugin":"x","Kind":"check","Inside":false,"Object":"","Wanted":"","Found":"","Repairable":false,"Why":"ask it","Err":"no (code 5)"}],`+
		`"Uncompared":null,"Reason":"another call for the container is under way"}`)
	expect.Same(t, "no error", all[0].Err(), nil)
	expect.Is(t, all[1].Err(), missing.Err, differs.Err, failed.Err, ErrBusy)
	expect.Is(t, all[3].Err(), ErrNotAttached)
}
