package container

import (
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/netns"
)

// Place is where a container is attached, and how that was found.
type Place struct {
	Host  *hostns.NetNS // in which its plugins run
	NetNS *netns.Handle // its own, open until Leave; nil if no path leads there
	Path  string        // CNI_NETNS

	Reached  Reached // how the recorded namespace was found
	Rebooted bool    // the record is of another boot of the machine
	HostGone bool    // the recorded host namespace is gone, with everything that plugins made there

	callers *hostns.NetNS // the caller's host namespace while Host is the recorded one
}

// Inside returns the open namespace if an attachment's path leads there: libcni's
// cache can have another path.
func (p *Place) Inside(path string) *netns.Handle {
	if path != p.Path {
		return nil
	}
	return p.NetNS
}

// leave closes the container's namespace.
func (p *Place) leave() (err error) {
	if p.NetNS != nil {
		err = p.NetNS.Close()
	}
	p.NetNS = nil
	return err
}

// leaveHost returns to the host namespace of the caller.
func (p *Place) leaveHost() (err error) {
	if p.callers != nil {
		err = p.Host.Close()
		p.Host, p.callers = p.callers, nil
	}
	return err
}
