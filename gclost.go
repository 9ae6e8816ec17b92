package cni

import (
	"encoding/json"
	"fmt"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/conflist"
	"github.com/embedcni/cni/internal/container"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/record"
)

// unrecorded are the attachments in libcni's cache, for a GC that judges those without a
// record. Either their records were lost, or another program has attached them.
type unrecorded struct {
	*snapshot
	host *hostns.NetNS
	by   map[record.Key]*libcni.NetworkAttachment
}

func (s *snapshot) unrecordedAttachments() (*unrecorded, error) {
	cached, err := chain.AllCached(s.stateDir, "")
	if err != nil {
		return nil, err
	}
	u := &unrecorded{snapshot: s, by: make(map[record.Key]*libcni.NetworkAttachment, len(cached))}
	for _, c := range cached {
		u.by[record.Key{ContainerID: record.PluginID(c.ContainerID), Network: c.Network, IfName: c.IfName}] = c
	}
	u.host, err = s.Hosts.Open(s.hostNetNS)
	return u, err
}

func (u *unrecorded) close() error { return u.host.Close() }

// stays reports whether an attachment in an earlier version's ledger, which is on no record, must
// stay because libcni's cache has it. left is the line about it for the report. If it
// once left nothing behind, the one in the cache is another program's.
func (u *unrecorded) stays(key record.Key, known record.Known) (left string, stays bool) {
	c := u.by[key]
	if c == nil {
		return "", false
	}
	if known.Gone {
		return "", true
	}
	lives, ended, err := u.judge(c)
	if ended && err == nil {
		return "", false
	}
	why := "nothing shows whether it lives"
	switch {
	case err != nil:
		why = fmt.Sprintf("it is not known whether it lives: %v", err)
	case lives:
		why = "it lives"
	}
	return fmt.Sprintf("%s %s on network %q: it is on no record, but in libcni's cache, perhaps by another program, and %s; "+
		"call Remove if the container is gone", key.ContainerID, key.IfName, key.Network, why), true
}

// judge looks for a cached attachment in its namespace and on the host.
func (u *unrecorded) judge(c *libcni.NetworkAttachment) (lives, ended bool, err error) {
	list, err := conflist.Parse(c.Config)
	if err != nil {
		return false, false, fmt.Errorf("its cached configuration: %w", err)
	}
	of := &chain.Attachment{RuntimeConf: libcni.RuntimeConf{ContainerID: c.ContainerID, IfName: c.IfName}}
	cached := chain.Cached{Dir: u.stateDir, List: list, Attachment: of}
	return container.Remains(u.host, c.NetNS, record.Attachment{
		Network: c.Network, IfName: c.IfName, Result: json.RawMessage(cached.Result()),
	})
}
