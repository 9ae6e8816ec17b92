package backend

import (
	"context"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/thick/server"
)

// GC removes what Adds have attached for interfaces that are not valid. What began since
// the request came is kept: the client cannot have known of it.
//
// The plugins that are asked to collect garbage are those of the request's networks, as
// libcni asks those of the list alone: the loaded ones if the request names none. Networks
// of annotations are not among them: no client has asked for their GC, and other programs
// may use them.
func (b *Backend) GC(ctx context.Context, r *server.Request) error {
	before, err := b.runtime.Attachments()
	if err != nil {
		return refused(err)
	}
	all, err := b.inRequest(r)
	if err != nil {
		return refused(err)
	}
	o := cni.GCOptions{KeepIf: keepIf(before, r)}
	for _, n := range all {
		if n.config != nil {
			o.Configs = append(o.Configs, n.config)
		}
	}
	report, err := b.runtime.GC(ctx, o)
	err = joined.Errors(err, b.forgetGone(before))
	if report != nil {
		err = joined.Errors(err, report.Err())
		for id, why := range report.Skipped {
			b.options.Logger.Warn("a container is left alone by GC", "container", id, "reason", why)
		}
		if len(report.Left) > 0 {
			b.options.Logger.Warn("GC has left what may be others'", "left", strings.Join(report.Left, "; "))
		}
	}
	return refused(err)
}

// keepIf returns the rule of a GC.
func keepIf(before []cni.Attachment, r *server.Request) func(cni.Attachment) bool {
	type key struct{ container, ifName string }
	gone := map[key]cni.Attachment{}
	stays, had := map[string]bool{}, map[string]bool{} // containers with valid attachments, and with any of Adds
	for _, a := range before {
		if !isAdds(a) {
			continue
		}
		had[a.ContainerID] = true
		valid := types.GCAttachment{ContainerID: a.ContainerID, IfName: a.Metadata[keyIfName]}
		if a.Metadata[keyNetwork] != r.Network || a.State == cni.Attaching || slices.Contains(r.Valid, valid) {
			stays[a.ContainerID] = true
		} else {
			gone[key{a.ContainerID, a.IfName}] = a
		}
	}
	for _, a := range before {
		if a.Metadata[keyDelegate] != "" && had[a.ContainerID] && !stays[a.ContainerID] {
			gone[key{a.ContainerID, a.IfName}] = a
		}
	}
	return func(a cni.Attachment) bool {
		then, ok := gone[key{a.ContainerID, a.IfName}]
		return !ok || !then.Since.Equal(a.Since) || then.Metadata[keyBegan] != a.Metadata[keyBegan]
	}
}
