package cni

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/runner"
	"github.com/embedcni/cni/internal/sweep"
)

// inDoubt reports whether another container may have the attachment's addresses
// by now: an earlier DEL may have released them, or the machine was rebooted. At
// the first DEL of an attachment, they are still reserved.
func (a *attachment) inDoubt() bool {
	if a.attempted {
		return false // added by this call
	}
	if a.op.Rebooted || a.op.Damaged || a.op.Record == nil {
		return true
	}
	n := a.op.Record.Find(a.IfName)
	return a.state != record.Added || n == nil || n.Failures > 0
}

// sparing returns a DEL's call as it may run, and reports whether it may run at
// all. A plugin may delete by a name or an address that another attachment has
// by now. The sweep, which knows the owners, then deletes the rest.
func (a *attachment) sparing(ctx context.Context, call chain.Call, kind runner.Kind) (chain.Call, bool, error) {
	switch {
	case call.Verb != "DEL" || kind == runner.Registered:
	case call.Plugin == known.Firewall && (a.inDoubt() || a.described().IsZoned()):
		err := a.withoutClaimed(&call)
		return call, err == nil, err
	case call.Plugin == known.Bandwidth && (kind == runner.Executable || a.partial == nil):
		run, err := a.mayUnshape(ctx)
		return call, run, err
	}
	return call, true, nil
}

// mayUnshape reports whether the DEL of the plugin bandwidth may run. It deletes
// a device by a name that other interfaces of the container share, and some of
// other containers.
func (a *attachment) mayUnshape(ctx context.Context) (bool, error) {
	t, done := a.target()
	defer done()
	if t.Host == nil {
		return true, nil
	}
	others, err := sweep.NotItsShaper(ctx, t)
	if others {
		a.op.logger.Debug("DEL of bandwidth is left to the sweep: the device may be another attachment's",
			"container", a.op.ID, "interface", a.IfName)
	}
	return err == nil && !others, err
}

// withoutClaimed removes the addresses of other attachments from the previous
// result: the plugin firewall deletes the rules of all addresses in it.
func (a *attachment) withoutClaimed(call *chain.Call) error {
	t, done := a.target()
	defer done()
	taken := t.Addresses // after a reboot only restored rules exist, and the sweep finds those
	inUse := t.InUse
	if a.described().IsZoned() {
		inUse = t.InZones
	}
	if !a.op.Rebooted {
		var err error
		if taken, err = inUse(); err != nil {
			return fmt.Errorf("find the present owners of the addresses: %w", err)
		}
	}
	var err error
	call.Stdin, err = withoutAddresses(call.Stdin, taken)
	return err
}

// withoutAddresses returns a request without these addresses in its previous
// result:
//
//	{"prevResult": {"ips": [{"address": "10.1.0.2/24"}]}}
func withoutAddresses(request []byte, taken []netip.Addr) ([]byte, error) {
	var outer, result map[string]json.RawMessage
	var ips []json.RawMessage
	if err := json.Unmarshal(request, &outer); err != nil || outer["prevResult"] == nil {
		return request, err
	}
	if err := json.Unmarshal(outer["prevResult"], &result); err != nil || result["ips"] == nil {
		return request, err
	}
	if err := json.Unmarshal(result["ips"], &ips); err != nil {
		return request, err
	}
	kept := slices.DeleteFunc(slices.Clone(ips), func(raw json.RawMessage) bool {
		var ip struct {
			Address netip.Prefix `json:"address"`
		}
		return json.Unmarshal(raw, &ip) == nil && slices.Contains(taken, ip.Address.Addr().Unmap())
	})
	if len(kept) == len(ips) {
		return request, nil
	}
	var err error
	if result["ips"], err = json.Marshal(kept); err != nil {
		return nil, err
	}
	if outer["prevResult"], err = json.Marshal(result); err != nil {
		return nil, err
	}
	return json.Marshal(outer)
}
