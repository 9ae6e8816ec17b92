package cni

import (
	"github.com/embedcni/cni/internal/tenant"
	"github.com/embedcni/cni/netns"
)

// avoidOthers makes the operation go on as if no path were given if the given path
// leads to another container's namespace: the other container keeps its interfaces,
// and the operation's own ended with their namespace. It is for removals without a
// record, which have nothing but the path to go by.
func (op *operation) avoidOthers() {
	if op.NetNS == nil || tenant.Untouched(op.Host, op.NetNS) && !op.Pins.Holds(op.NetNS) ||
		!op.isOthers(op.NetNS, op.Path, true) {
		return
	}
	op.Leave()
	op.Path = ""
}

// isOthers reports whether a namespace is another container's. It reads all records,
// so calls that have a record do not ask. With doubts it returns true unless the
// answer is certain.
func (op *operation) isOthers(ns *netns.Handle, path string, doubts bool) bool {
	boot, err := op.BootID()
	other := ""
	if err == nil {
		other, err = tenant.Search{
			ID: op.ID, PluginID: op.PluginID(), Boot: boot,
			Records: op.Records, CacheDir: op.stateDir, Host: op.Host, Pin: op.Pins.File,
		}.Other(ns, doubts)
	}
	if other == "" && (err == nil || !doubts) {
		return false
	}
	op.logger.Warn("the network namespace is not entered, since it is or may be another container's by now",
		"container", op.ID, "path", path, "other", other, "error", err)
	return true
}

// avoidOthers empties the attachment's path if it leads to another container's
// namespace for certain: for Setup, an attachment without a path is dead.
func (a *attachment) avoidOthers() {
	if a.NetNS == "" {
		return
	}
	ns, err := netns.Open(a.NetNS)
	if err != nil {
		return // it leads nowhere
	}
	if a.op.isOthers(ns, a.NetNS, false) {
		a.NetNS = ""
	}
	_ = ns.Close() // was only looked at
}
