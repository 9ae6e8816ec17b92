package veth

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/builtin/prevresult"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/plugin"
)

// Check returns the container's end of the pair, or an error unless it is there,
// up if it should be, with all of its addresses and routes.
//
// The MTU is not compared. A plugin further behind may have set another, of
// which the result says nothing: the reference plugin tuning does not report it
// in any version of the specification.
func (c Config) Check(ctx context.Context, r *plugin.Request, up bool) (link links.Link, err error) {
	said, err := prevresult.Interface(r)
	if err != nil {
		return link, err
	}
	conn, err := links.Borrow(ctx, r.Container)
	if err != nil {
		return link, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if link, err = conn.Link(r.IfName); err != nil {
		return link, fmt.Errorf("in the container: %w", err)
	}
	err = same(link, up)
	if err == nil && !prevresult.SameMAC(said.Mac, link.MAC) {
		err = fmt.Errorf("its address is %s, not %s", link.MAC, said.Mac)
	}
	if err == nil {
		err = ipam.Verify(conn, link.Index, prevresult.Own(r))
	}
	if err != nil {
		return link, fmt.Errorf("interface %q in the container: %w", r.IfName, err)
	}
	return link, nil
}

// same looks at what nobody changes but by making another interface, or by
// taking this one out of service.
func same(link links.Link, up bool) error {
	switch {
	case link.Kind != "veth":
		return fmt.Errorf("it is not a veth interface, but %q", link.Kind)
	case up && !link.Up():
		return errors.New("it is down")
	}
	return nil
}

// CheckHost returns the host's end of the pair, or an error unless it is the
// peer of the container's, and up. The kernel says which one that is: its name
// and hardware address may have been changed, by an administrator or by udev,
// and packets pass all the same.
func (c Config) CheckHost(conn *links.Conn, r *plugin.Request, container links.Link) (links.Link, error) {
	said := HostInterface(r.PrevResult, r.IfName)
	if said.Name == "" {
		return links.Link{}, fmt.Errorf("prevResult has no interface of the host before %q", r.IfName)
	}
	link, err := conn.LinkByIndex(container.Peer.Index)
	if err != nil {
		return link, fmt.Errorf("interface %q on the host: %w", said.Name, err)
	}
	err = same(link, true)
	if err == nil && link.Peer.Index != container.Index {
		err = fmt.Errorf("it is not the other end of the container's %q", container.Name)
	}
	if err != nil {
		return link, fmt.Errorf("interface %q on the host: %w", link.Name, err)
	}
	return link, nil
}

// runTime is how long the kernel may take to notice that both ends are up. It
// does so at once, but for old kernels under load.
const runTime = 3 * time.Second

// AwaitRunning waits until packets pass, and returns the interface. Since
// Linux 6.8 they do by the first answer.
func AwaitRunning(ctx context.Context, conn *links.Conn, index int) (links.Link, error) {
	ctx, cancel := context.WithTimeout(ctx, runTime)
	defer cancel()
	for {
		link, err := conn.LinkByIndex(index)
		if err != nil || link.Running() {
			return link, err
		}
		select {
		case <-ctx.Done():
			return link, fmt.Errorf("interface %q is up, but has no carrier (operational state %d): %w", link.Name, link.OperState, context.Cause(ctx))
		case <-time.After(time.Millisecond):
		}
	}
}
