package behaviour_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
)

// TestFault_F49_FieldsOfAnotherTypeKeepAnAttachmentFromBeingRemoved: a plugin's
// configuration is its own. A configuration that go-cni loads can be loaded,
// attached, and removed: by Remove, by CleanUp, by GC, and by a Setup that
// fails.
func TestFault_F49_FieldsOfAnotherTypeKeepAnAttachmentFromBeingRemoved(t *testing.T) {
	s := newStage(t)
	netNS := s.Container("c1")
	for _, typ := range []string{"own", "bridge", "portmap"} {
		for _, field := range testhost.OddFields() {
			t.Run(typ+"/"+field, func(t *testing.T) { removeInAllWays(t, s, netNS, typ, field) })
		}
	}
}

func removeInAllWays(t *testing.T, s *stage, netNS, typ, field string) {
	ctx, path := context.Background(), s.Plugin(scripted.Script{}, typ)
	list := fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "n1", "plugins": [{"type": %q, "script": %q, %s}]}`, typ, path, field)
	_, theirs := libcni.ConfListFromBytes(list) // like go-cni; the oracle compares both
	r := s.Runtime()
	err := r.Load(cni.WithConfListBytes(list))
	if (err == nil) != (theirs == nil) {
		t.Fatalf("Load: got %v, libcni %v", err, theirs)
	}
	if err != nil {
		return
	}
	setUp := func() error {
		_, err := r.Setup(ctx, "c1", netNS)
		return err
	}
	expect.NoError(t, setUp())
	expect.NoError(t, r.Remove(ctx, "c1", netNS))
	expect.NoError(t, setUp())
	found, err := r.CleanUp(ctx, cni.CleanUpTarget{ContainerID: "c1", Network: "n1", IfName: "eth0"})
	if err != nil || len(found) == 0 {
		t.Errorf("CleanUp: found %v, %v", found, err)
	}
	s.On(typ, "ADD", testhost.Says(100, "refused"))
	if err := setUp(); err == nil || errors.As(err, new(*cni.LeftoverError)) {
		t.Errorf("Setup that fails: %v", err)
	}
	s.On(typ, "ADD", scripted.Action{})
	expect.NoError(t, setUp())
	if report, err := r.GC(ctx, cni.GCOptions{KeepNone: true}); err != nil || report.Err() != nil {
		t.Errorf("GC: %v, %v", err, report.Err())
	}
	if all, err := r.Attachments(); err != nil || len(all) > 0 {
		t.Errorf("left on record: %v, %v", all, err)
	}
}

// TestFault_F49_ArgsThatAreNoObjectKeepTheIDForEver: the caller's arguments
// cannot be merged into args that are not an object. ADD reports that, and the
// plugins before that one are still undone.
func TestFault_F49_ArgsThatAreNoObjectKeepTheIDForEver(t *testing.T) {
	ctx, s := context.Background(), newStage(t)
	path := s.Plugin(scripted.Script{}, "first", "second")
	list := fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "n1", "plugins": [
		{"type": "first", "script": %q}, {"type": "second", "script": %q, "args": "none"}]}`, path, path)
	r := s.Runtime(cni.WithConfListBytes(list))
	netNS := s.Container("c1")
	if _, err := r.Setup(ctx, "c1", netNS, cni.WithConfigArgs("mac", "02:00:00:00:00:01")); err == nil || errors.As(err, new(*cni.LeftoverError)) {
		t.Errorf("got %v, want an error, and nothing left", err)
	}
	expect.Same(t, "calls", s.Took(), []string{"ADD first c1/eth0", "DEL second c1/eth0", "DEL first c1/eth0"})
	if _, err := r.Setup(ctx, "c1", netNS); err != nil {
		t.Errorf("Setup without them: %v", err)
	}
}

// TestFault_F49_ABuiltInPluginThatRefusesAFieldKeepsTheIDForEver: a built-in
// plugin that refuses a field of the wrong type has made nothing. Its undoing
// adds no other error.
func TestFault_F49_ABuiltInPluginThatRefusesAFieldKeepsTheIDForEver(t *testing.T) {
	for _, fields := range []string{
		`"type": "host-device", "device": 5`, `"type": "tuning", "mtu": "big"`, `"type": "tuning", "dataDir": []`, `"type": "bridge", "mtu": "big"`,
		`"type": "ptp", "ipMasq": "auto"`, `"type": "macvlan", "master": 5`, `"type": "portmap", "snat": "no"`, `"type": "firewall", "backend": 5`,
		`"type": "bandwidth", "ingressRate": "fast"`, `"type": "bridge", "ipam": {"type": "static", "addresses": 5}`,
	} {
		t.Run(fields, func(t *testing.T) {
			ctx, s := context.Background(), newStage(t)
			r := s.Runtime(cni.WithBuiltinPlugins(), cni.WithConfListBytes(fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "n1", "plugins": [{%s}]}`, fields)))
			netNS := s.Container("c1")
			if _, err := r.Setup(ctx, "c1", netNS); err == nil || errors.As(err, new(*cni.LeftoverError)) {
				t.Errorf("got %v, want an error, and nothing left", err)
			}
			if all, err := r.Attachments(); err != nil || len(all) > 0 {
				t.Errorf("left on record: %v, %v", all, err)
			}
		})
	}
}
