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

// inDoubt reports whether the attachment's addresses may be another container's
// by now: an earlier DEL may have released them, or the machine was rebooted. The
// first DEL of an attachment finds them reserved still.
func (a *attachment) inDoubt() bool {
	if a.attempted {
		return false // added by this very call
	}
	if a.op.Rebooted || a.op.Damaged || a.op.Record == nil {
		return true
	}
	n := a.op.Record.Find(a.IfName)
	return a.state != record.Added || n == nil || n.Failures > 0
}

// sparing is a DEL as it may be run, and whether it may be run at all, where the
// plugin would delete by a name or an address that another attachment has by
// now. The sweep, which knows whose they are, deletes the rest.
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

// mayUnshape reports whether the DEL of the plugin bandwidth can be run. It
// deletes a device by a name that other interfaces of the container share, and so
// do some of other containers.
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

// withoutClaimed takes the addresses that other attachments have out of the
// previous result: the plugin firewall deletes the rules of whatever addresses it
// finds there.
func (a *attachment) withoutClaimed(call *chain.Call) error {
	t, done := a.target()
	defer done()
	taken := t.Addresses // no rule outlives a reboot but those that were restored, which the sweep finds
	inUse := t.InUse
	if a.described().IsZoned() {
		inUse = t.InZones
	}
	if !a.op.Rebooted {
		var err error
		if taken, err = inUse(); err != nil {
			return fmt.Errorf("who has the addresses by now: %w", err)
		}
	}
	var err error
	call.Stdin, err = withoutAddresses(call.Stdin, taken)
	return err
}

// withoutAddresses is a request without the addresses in its previous result:
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
