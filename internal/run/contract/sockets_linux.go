package contract

import (
	"context"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/netns"
)

// On calls do with a socket in a namespace, which is open until do returns.
func On(ctx context.Context, ns *netns.Handle, do func(*links.Conn) error) error {
	return From(ctx).Conns.Do(ns, do)
}

// Removal looks for an interface in a namespace. It returns a function that deletes it,
// for a batch, which must be called; nil if there is none, or if it is not the right one.
func Removal(ctx context.Context, ns *netns.Handle, name string, is func(links.Link) bool) (remove func(context.Context) error, err error) {
	conn, err := From(ctx).Conns.Borrow(ns)
	if err != nil {
		return nil, err
	}
	link, err := conn.Link(name)
	if err != nil || !is(link) {
		if links.NotFound(err) {
			err = nil
		}
		return nil, joined.Errors(err, conn.Close())
	}
	return func(context.Context) error { return links.DeleteAndClose(conn, link.Index, name) }, nil
}
